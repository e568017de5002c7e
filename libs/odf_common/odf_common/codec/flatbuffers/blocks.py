"""Encoding and decoding of blocks, events and engine messages as FlatBuffers (spec: Metadata Chain, Engine Protocol).

A stored block is a `Manifest` whose content is a second buffer, the `MetadataBlock`. Its hash covers the bytes of the
manifest, so blocks from elsewhere are kept as they are and never encoded again.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, TypeVar

from odf_common.codec.flatbuffers.reader import read_root, table_reader, wrapper_reader
from odf_common.codec.flatbuffers.writer import Buffer, table_writer, union_writer
from odf_common.codec.model_schema import EVENTS
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_common.metadata.events import MetadataBlock, MetadataEvent, UnknownEvent
from odf_common.metadata.scalars import Int32, Int64

BLOCK_KIND: Final = 0x400000  # multicodec odf-metadata-block
VERSIONS: Final = (2, 3)
M = TypeVar("M", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The wrapper around the bytes of an object: its kind as a multicodec, and the version of its format."""

    kind: Int64
    version: Int32
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBlock:
    """A block and the version of its manifest."""

    version: int
    block: MetadataBlock


def encode_block(block: MetadataBlock, version: int = 3) -> bytes:
    """Return the complete manifest of a block: the bytes that are stored, sent and hashed."""
    if version not in VERSIONS:
        raise InvalidInput(text=f"block version {version} is not supported; expected one of {VERSIONS}")
    if isinstance(block.event, UnknownEvent):
        content = _copy_unknown(block, block.event, lambda raw: read_root(table_reader(MetadataBlock), raw))
    else:
        content = _encode(MetadataBlock, block, align_structs=version >= 3)
    return _encode(Manifest, Manifest(kind=BLOCK_KIND, version=version, content=content))


def decode_block(raw: bytes) -> DecodedBlock:
    """Decode a block; raises `InvalidInput` unless the bytes are a block of a known version."""
    manifest: Manifest = read_root(table_reader(Manifest), bytes(raw))
    if manifest.kind != BLOCK_KIND:
        raise InvalidInput(text=f"expected kind {BLOCK_KIND:#x}, a metadata block, got {manifest.kind:#x}")
    if manifest.version not in VERSIONS:
        raise InvalidInput(
            text=f"block version {manifest.version} is not supported; expected one of {VERSIONS}"
        )
    block: MetadataBlock = read_root(table_reader(MetadataBlock), manifest.content)
    return DecodedBlock(version=manifest.version, block=block)


def block_hash(raw: bytes) -> Multihash:
    """Return the hash by which a block is named: SHA3-256 of the bytes of its manifest."""
    return physical_hash_of(raw)


def encode_event(event: MetadataEvent) -> bytes:
    """Encode a single event for the bus, as a `MetadataEventWrapper`."""
    if isinstance(event, UnknownEvent):
        return _copy_unknown(event, event, decode_event)
    buffer = Buffer()
    return buffer.finish(union_writer(EVENTS)(buffer, event))


def decode_event(raw: bytes) -> MetadataEvent:
    """Decode a single event from a `MetadataEventWrapper`; raises `InvalidInput` for malformed bytes."""
    event: MetadataEvent = read_root(wrapper_reader(EVENTS), bytes(raw))
    return event


def encode_message(message: object) -> bytes:
    """Encode a message of the engine contract, or any other metadata object, as a root table."""
    return _encode(type(message), message)


def decode_message(cls: type[M], raw: bytes) -> M:
    """Decode a root table as an object of class `cls`; raises `InvalidInput` for malformed bytes."""
    message: M = read_root(table_reader(cls), bytes(raw))
    return message


def _copy_unknown(whole: object, event: UnknownEvent, read: Callable[[bytes], object]) -> bytes:
    """Return the original bytes of an unknown event; raises `InvalidInput` if anything around it has changed."""
    if not event.raw or read(event.raw) != whole:
        raise InvalidInput(text="an event of unknown kind cannot be encoded, only copied")
    return event.raw


def _encode(cls: type, value: object, *, align_structs: bool = True) -> bytes:
    buffer = Buffer(align_structs=align_structs)
    return buffer.finish(table_writer(cls)(buffer, value))
