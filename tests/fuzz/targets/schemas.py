"""Schemas of a registry and payloads: an input is a schema, the byte 255, and a payload."""

import base64
import json

from odf_common.errors import OdfError
from odf_ingest.registry.avro import avro_decoder
from odf_ingest.registry.client import Schema
from odf_ingest.registry.protobuf import ProtobufDecoder

END = b"\xff"  # in no UTF-8 text, and rarely in a descriptor


def check(raw: bytes) -> None:
    """Decode the payload with the schema in both formats; the result is a JSON object."""
    schema, _, payload = raw.partition(END)
    _check_avro(schema, payload)
    _check_protobuf(schema, payload)


def _check_avro(schema: bytes, payload: bytes) -> None:
    try:
        text = avro_decoder(Schema(kind="AVRO", text=schema.decode(errors="replace")))(payload)
    except OdfError:
        return
    assert isinstance(json.loads(text), dict)


def _check_protobuf(schema: bytes, payload: bytes) -> None:
    try:
        text = ProtobufDecoder(Schema(kind="PROTOBUF", text=base64.b64encode(schema).decode()))(payload)
    except OdfError:
        return
    assert isinstance(json.loads(text), dict)
