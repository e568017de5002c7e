"""Converts messages in a schema registry's wire format to JSON, which is then read like any other message.

A message is a zero byte and the schema's id (4 bytes, big-endian), or the byte 1 and the schema's GUID (16 bytes), for
Protobuf the message's indexes, and the payload in Avro, Protobuf or JSON. All that is before the payload may be in a
header instead. Values are written exactly: no number passes through a double, bytes are base64.
"""

from odf_ingest.registry.decoder import REGISTRY_SETTING, Decoder, Registries, decode_batch, json_step

__all__ = ["REGISTRY_SETTING", "Decoder", "Registries", "decode_batch", "json_step"]
