"""A codec between FlatBuffers and the model. It is our own: the `flatbuffers` package cannot verify untrusted bytes."""

from odf_common.codec.flatbuffers.blocks import (
    BLOCK_KIND,
    VERSIONS,
    DecodedBlock,
    Manifest,
    block_hash,
    decode_block,
    decode_event,
    decode_message,
    encode_block,
    encode_event,
    encode_message,
)

__all__ = [
    "BLOCK_KIND",
    "VERSIONS",
    "DecodedBlock",
    "Manifest",
    "block_hash",
    "decode_block",
    "decode_event",
    "decode_message",
    "encode_block",
    "encode_event",
    "encode_message",
]
