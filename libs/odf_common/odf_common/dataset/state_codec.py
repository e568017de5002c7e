"""The state of a chain ⇄ bytes, for caches: a table in FlatBuffers, like the metadata it is folded from.

A cache entry may be dropped, stale or damaged: a state names its head, so a stale one is seen as such; damaged bytes
and those of another format version raise `InvalidInput`, and the caller folds the chain again.
"""

import zlib
from dataclasses import dataclass
from typing import Final

from odf_common.chain.state import ChainState, Definitions, InputProgress
from odf_common.codec.flatbuffers import decode_message, encode_message
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import (
    AddPushSource,
    Checkpoint,
    DatasetKind,
    SetAttachments,
    SetDataSchema,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
)
from odf_common.metadata.scalars import Int32, Timestamp, UInt64

_MAGIC: Final = b"odfs\x03"  # the last byte is the version of the format: change it with the tables below
_CRC_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    dataset_id: DatasetId
    last_block: Multihash | None = None
    last_offset: UInt64 | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """A `ChainState` with its definitions, as a table: mappings are lists of values that know their names."""

    head: Multihash
    dataset_id: DatasetId
    block_version: Int32
    kind: DatasetKind
    sequence_number: UInt64
    system_time: Timestamp
    last_offset: UInt64 | None = None
    watermark: Timestamp | None = None
    checkpoint: Checkpoint | None = None
    source_states: tuple[SourceState, ...] = ()
    last_source_state: SourceState | None = None
    input_progress: tuple[_Progress, ...] = ()
    schema: SetDataSchema | None = None
    vocab: SetVocab | None = None
    info: SetInfo | None = None
    license: SetLicense | None = None
    attachments: SetAttachments | None = None
    transform: SetTransform | None = None
    polling_source: SetPollingSource | None = None
    push_sources: tuple[AddPushSource, ...] = ()
    disabled_sources: tuple[str, ...] = ()
    has_opaque_source: bool = False
    renamed_after: Multihash | None = None


def state_to_bytes(state: ChainState) -> bytes:
    """Return the state in a form that `state_from_bytes` reads back as equal."""
    definitions = state.definitions
    table = _State(
        head=state.head,
        dataset_id=state.dataset_id,
        block_version=state.block_version,
        kind=state.kind,
        sequence_number=state.sequence_number,
        system_time=state.system_time,
        last_offset=state.last_offset,
        watermark=state.watermark,
        checkpoint=state.checkpoint,
        source_states=tuple(state.source_states.values()),
        last_source_state=state.last_source_state,
        input_progress=tuple(
            _Progress(
                dataset_id=progress.dataset_id,
                last_block=progress.last_block,
                last_offset=progress.last_offset,
            )
            for progress in state.input_progress
        ),
        schema=definitions.schema,
        vocab=definitions.vocab,
        info=definitions.info,
        license=definitions.license,
        attachments=definitions.attachments,
        transform=definitions.transform,
        polling_source=definitions.polling_source,
        push_sources=tuple(definitions.push_sources.values()),
        disabled_sources=tuple(sorted(definitions.disabled_sources)),
        has_opaque_source=definitions.has_opaque_source,
        renamed_after=state.renamed_after,
    )
    body = encode_message(table)
    return _MAGIC + zlib.crc32(body).to_bytes(_CRC_BYTES, "little") + body


def state_from_bytes(raw: bytes) -> ChainState:
    """Return the state in `raw`; raises `InvalidInput` for other versions of the format and for damaged bytes."""
    start = len(_MAGIC) + _CRC_BYTES
    if raw[: len(_MAGIC)] != _MAGIC:
        raise InvalidInput(text="not the state of a chain in this version's format")
    if zlib.crc32(raw[start:]) != int.from_bytes(raw[len(_MAGIC) : start], "little"):
        raise InvalidInput(text="the state of a chain is damaged")
    table = decode_message(_State, raw[start:])
    return ChainState(
        head=table.head,
        block_version=table.block_version,
        dataset_id=table.dataset_id,
        kind=table.kind,
        sequence_number=table.sequence_number,
        system_time=table.system_time,
        last_offset=table.last_offset,
        watermark=table.watermark,
        checkpoint=table.checkpoint,
        source_states={state.source_name: state for state in table.source_states},
        last_source_state=table.last_source_state,
        input_progress=tuple(
            InputProgress(
                dataset_id=progress.dataset_id,
                last_block=progress.last_block,
                last_offset=progress.last_offset,
            )
            for progress in table.input_progress
        ),
        definitions=Definitions(
            schema=table.schema,
            vocab=table.vocab,
            info=table.info,
            license=table.license,
            attachments=table.attachments,
            transform=table.transform,
            polling_source=table.polling_source,
            push_sources={source.source_name: source for source in table.push_sources},
            disabled_sources=frozenset(table.disabled_sources),
            has_opaque_source=table.has_opaque_source,
        ),
        renamed_after=table.renamed_after,
    )
