"""FlatBuffers ⇄ the model, in code of our own: the stock package has no verifier for bytes that come from strangers."""

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
