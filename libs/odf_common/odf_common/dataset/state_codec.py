"""The state of a chain ⇄ bytes, for caches.

A cache entry may be dropped, stale or damaged: a state names its head, so a stale one is seen as such; damaged bytes
and those of another format version raise `InvalidInput`, and the caller folds the chain anew.
"""

import zlib
from collections.abc import Iterable
from typing import Final, TypeVar

from odf_common.chain.state import ChainState, Definitions, InputProgress
from odf_common.codec.flatbuffers import decode_event, encode_event
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash, read_varint, write_varint
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import (
    AddPushSource,
    Checkpoint,
    DatasetKind,
    KnownEvent,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
)
from odf_common.metadata.scalars import Timestamp

_MAGIC: Final = b"odfs\x01"  # the last byte is the version of the format
_CRC: Final = 4  # bytes
E = TypeVar("E")


def state_to_bytes(state: ChainState) -> bytes:
    """Return the state in a form that `state_from_bytes` reads back as equal."""
    writer = _Writer()
    writer.octets(state.head.raw)
    writer.octets(state.dataset_id.raw)
    writer.number(state.block_version)
    writer.number(state.kind)
    writer.number(state.sequence_number)
    writer.number(state.system_time.ns)
    writer.number(state.last_offset)
    writer.number(None if state.watermark is None else state.watermark.ns)
    writer.octets(None if state.checkpoint is None else state.checkpoint.physical_hash.raw)
    writer.number(None if state.checkpoint is None else state.checkpoint.size)
    writer.source_states(state.source_states.values())
    writer.source_states(() if state.last_source_state is None else (state.last_source_state,))
    writer.number(len(state.input_progress))
    for progress in state.input_progress:
        writer.octets(progress.dataset_id.raw)
        writer.octets(None if progress.last_block is None else progress.last_block.raw)
        writer.number(progress.last_offset)
    writer.definitions(state.definitions)
    body = bytes(writer.out)
    return _MAGIC + zlib.crc32(body).to_bytes(_CRC, "little") + body


def state_from_bytes(raw: bytes) -> ChainState:
    """Return the state in `raw`; raises `InvalidInput` for other versions of the format and for damaged bytes."""
    start = len(_MAGIC) + _CRC
    if raw[: len(_MAGIC)] != _MAGIC:
        raise InvalidInput(text="not the state of a chain in this version's format")
    if zlib.crc32(raw[start:]) != int.from_bytes(raw[len(_MAGIC) : start], "little"):
        raise InvalidInput(text="the state of a chain is damaged")
    reader = _Reader(raw[start:])
    try:
        state = _read_state(reader)
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidInput(text=f"the state of a chain cannot be read: {error}") from error
    if reader.at != len(reader.raw):
        raise InvalidInput(text="the state of a chain has bytes too many")
    return state


def _read_state(reader: "_Reader") -> ChainState:
    head, dataset = reader.hash(), DatasetId.from_bytes(reader.octets())
    version, kind, sequence_number = reader.number(), DatasetKind(reader.number()), reader.number()
    system_time, last_offset, watermark = reader.number(), reader.number_or_none(), reader.number_or_none()
    checkpoint, size = reader.hash_or_none(), reader.number_or_none()
    states, last = reader.source_states(), reader.source_states()
    inputs = tuple(
        InputProgress(
            dataset_id=DatasetId.from_bytes(reader.octets()),
            last_block=reader.hash_or_none(),
            last_offset=reader.number_or_none(),
        )
        for _ in range(reader.number())
    )
    return ChainState(
        head=head,
        block_version=version,
        dataset_id=dataset,
        kind=kind,
        sequence_number=sequence_number,
        system_time=Timestamp(system_time),
        last_offset=last_offset,
        watermark=None if watermark is None else Timestamp(watermark),
        checkpoint=None if checkpoint is None else Checkpoint(physical_hash=checkpoint, size=size or 0),
        source_states={one.source_name: one for one in states},
        last_source_state=last[0] if last else None,
        input_progress=inputs,
        definitions=reader.definitions(),
    )


class _Writer:
    """Values one after another, each with its length; length 0 is None."""

    def __init__(self) -> None:
        self.out = bytearray()

    def octets(self, value: bytes | None) -> None:
        if value is None:
            self.out.append(0)
            return
        self.out += write_varint(len(value) + 1)
        self.out += value

    def number(self, value: int | None) -> None:
        size = 0 if value is None else value.bit_length() // 8 + 1
        self.octets(None if value is None else value.to_bytes(size, "little", signed=True))

    def text(self, value: str) -> None:
        self.octets(value.encode())

    def event(self, value: KnownEvent | None) -> None:
        self.octets(None if value is None else encode_event(value))

    def source_states(self, states: Iterable[SourceState]) -> None:
        known = tuple(states)
        self.number(len(known))
        for one in known:
            self.text(one.source_name)
            self.text(one.kind)
            self.text(one.value)

    def definitions(self, known: Definitions) -> None:
        self.event(known.schema)
        self.event(known.vocab)
        self.event(known.info)
        self.event(known.license)
        self.event(known.attachments)
        self.event(known.transform)
        self.event(known.polling_source)
        self.number(len(known.push_sources))
        for source in known.push_sources.values():
            self.event(source)
        self.number(len(known.disabled_sources))
        for name in sorted(known.disabled_sources):
            self.text(name)
        self.number(known.has_opaque_source)


class _Reader:
    """What a `_Writer` wrote, value by value; raises `InvalidInput` where one is missing or cut off."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.at = 0

    def octets_or_none(self) -> bytes | None:
        length, start = read_varint(self.raw, self.at)
        self.at = start + max(length - 1, 0)
        if self.at > len(self.raw):
            raise InvalidInput(text="the state of a chain is cut off")
        return None if length == 0 else self.raw[start : self.at]

    def octets(self) -> bytes:
        value = self.octets_or_none()
        if value is None:
            raise InvalidInput(text="the state of a chain lacks a value")
        return value

    def number_or_none(self) -> int | None:
        value = self.octets_or_none()
        return None if value is None else int.from_bytes(value, "little", signed=True)

    def number(self) -> int:
        return int.from_bytes(self.octets(), "little", signed=True)

    def text(self) -> str:
        return self.octets().decode()

    def hash_or_none(self) -> Multihash | None:
        value = self.octets_or_none()
        return None if value is None else Multihash.from_bytes(value)

    def hash(self) -> Multihash:
        return Multihash.from_bytes(self.octets())

    def event(self, kind: type[E]) -> E | None:
        value = self.octets_or_none()
        event = None if value is None else decode_event(value)
        if event is not None and not isinstance(event, kind):
            raise InvalidInput(text=f"the state of a chain has {type(event).__name__} for {kind.__name__}")
        return event

    def source_states(self) -> list[SourceState]:
        return [
            SourceState(source_name=self.text(), kind=self.text(), value=self.text())
            for _ in range(self.number())
        ]

    def definitions(self) -> Definitions:
        return Definitions(
            schema=self.event(SetDataSchema),
            vocab=self.event(SetVocab),
            info=self.event(SetInfo),
            license=self.event(SetLicense),
            attachments=self.event(SetAttachments),
            transform=self.event(SetTransform),
            polling_source=self.event(SetPollingSource),
            push_sources={
                one.source_name: one
                for one in (self.event(AddPushSource) for _ in range(self.number()))
                if one is not None
            },
            disabled_sources=frozenset(self.text() for _ in range(self.number())),
            has_opaque_source=bool(self.number()),
        )
