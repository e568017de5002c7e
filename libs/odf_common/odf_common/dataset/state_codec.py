"""The state of a chain ⇄ bytes, for caches: a table in FlatBuffers, like the metadata it is folded from.

A cache entry may be dropped, stale or damaged: a state names its head, so a stale one is seen as such; damaged bytes
and those of another format version raise `InvalidInput`, and the caller folds the chain again.
"""

import zlib
from dataclasses import dataclass, fields
from typing import Any, Final

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
_BY_SOURCE: Final = ("source_states", "push_sources")  # mappings by the name of the source


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """The fields of a `ChainState` and its definitions, as a table; mappings are lists of values with their names."""

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
    input_progress: tuple[InputProgress, ...] = ()
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
    values = {**_values_of(state), **_values_of(state.definitions)}
    values.update({name: tuple(values[name].values()) for name in _BY_SOURCE})
    values["disabled_sources"] = tuple(sorted(state.definitions.disabled_sources))
    body = encode_message(_State(**{field.name: values[field.name] for field in fields(_State)}))
    return _MAGIC + zlib.crc32(body).to_bytes(_CRC_BYTES, "little") + body


def state_from_bytes(raw: bytes) -> ChainState:
    """Return the state in `raw`; raises `InvalidInput` for other versions of the format and for damaged bytes."""
    start = len(_MAGIC) + _CRC_BYTES
    if raw[: len(_MAGIC)] != _MAGIC:
        raise InvalidInput(text="not the state of a chain in this version's format")
    if zlib.crc32(raw[start:]) != int.from_bytes(raw[len(_MAGIC) : start], "little"):
        raise InvalidInput(text="the state of a chain is damaged")
    values = _values_of(decode_message(_State, raw[start:]))
    values.update({name: {source.source_name: source for source in values[name]} for name in _BY_SOURCE})
    values["disabled_sources"] = frozenset(values["disabled_sources"])
    definitions = Definitions(**{field.name: values.pop(field.name) for field in fields(Definitions)})
    return ChainState(**values, definitions=definitions)


def _values_of(value: ChainState | Definitions | _State) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}
