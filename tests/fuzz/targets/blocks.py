"""Metadata blocks, events and engine messages as FlatBuffers."""

from odf_common.codec.flatbuffers import (
    block_hash,
    decode_block,
    decode_event,
    decode_message,
    encode_block,
    encode_event,
    encode_message,
)
from odf_common.codec.manifests import block_from_text, block_to_yaml
from odf_common.errors import OdfError
from odf_common.metadata.engine_messages import (
    RawQueryRequest,
    RawQueryResponseRoot,
    TransformRequest,
    TransformResponseRoot,
)
from odf_common.metadata.events import MetadataBlock, UnknownEvent

MESSAGES = (
    MetadataBlock,
    RawQueryRequest,
    RawQueryResponseRoot,
    TransformRequest,
    TransformResponseRoot,
)


def check(raw: bytes) -> None:
    """Read `raw` as every type that it may be; the result can be shown, and survives a round trip."""
    _check_block(raw)
    _check_event(raw)
    for cls in MESSAGES:
        _check_message(cls, raw)


def _check_block(raw: bytes) -> None:
    try:
        decoded = decode_block(raw)
    except OdfError:
        return
    block_hash(raw)
    shown = block_to_yaml(raw)
    if isinstance(decoded.block.event, UnknownEvent):
        return
    assert decode_block(encode_block(decoded.block, decoded.version)) == decoded
    try:
        block_from_text(shown.encode(), "block")
    except OdfError:
        return  # attributes of a block may be any text, those of a manifest may not


def _check_event(raw: bytes) -> None:
    try:
        event = decode_event(raw)
    except OdfError:
        return
    if not isinstance(event, UnknownEvent):
        assert decode_event(encode_event(event)) == event


def _check_message(cls: type, raw: bytes) -> None:
    try:
        message: object = decode_message(cls, raw)
    except OdfError:
        return
    if not isinstance(getattr(message, "event", None), UnknownEvent):
        assert decode_message(cls, encode_message(message)) == message
