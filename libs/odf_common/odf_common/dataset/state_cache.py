"""Cached chain states: a state is folded from the blocks once, so that appending takes constant time.

A cached state is stored as a FlatBuffers table, like the metadata that it is derived from. Entries may be missing,
stale or damaged. A state names its head, so a stale state is a starting point for folding the newer blocks. Damaged
bytes, and those of another format version, raise `InvalidInput`; the chain is then folded from its first block.
"""

import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Final, Protocol

import structlog

from odf_common.chain.state import ChainState, Definitions, InputProgress
from odf_common.chain.walk import ChainBroken, fold
from odf_common.codec.flatbuffers import decode_message, encode_message
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
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
from odf_common.ports.store import BlobStore, RefStore, block_reader

_MAGIC: Final = b"odfs\x03"  # the last byte is the version of the format: change it with the tables below
_CRC_BYTES: Final = 4
_BY_SOURCE: Final = ("source_states", "push_sources")  # mappings by the name of the source


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """A `ChainState` and its definitions as one table; mappings become lists of values that contain their names."""

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
    """Return the state as bytes, from which `state_from_bytes` restores an equal state."""
    values = {**_values_of(state), **_values_of(state.definitions)}
    values.update({name: tuple(values[name].values()) for name in _BY_SOURCE})
    values["disabled_sources"] = tuple(sorted(state.definitions.disabled_sources))
    body = encode_message(_State(**{field.name: values[field.name] for field in fields(_State)}))
    return _MAGIC + zlib.crc32(body).to_bytes(_CRC_BYTES, "little") + body


def state_from_bytes(raw: bytes) -> ChainState:
    """Return the state that `raw` contains; raises `InvalidInput` for another format version or damaged bytes."""
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


log = structlog.stdlib.get_logger(__name__)

MAX_CACHED_STATES: Final = 20_000  # states cached in this process, a few kilobytes each
# Of all of them, encoded. Descriptions, attachments and sources are of any size, and others may push them.
MAX_CACHED_BYTES: Final = 256 * 1024**2
LARGEST_SHARE: Final = 16  # a state that takes more than one part in so many is not kept
# While the cache is full, only one of this number of states that are merely read replaces the oldest.
READS_PER_ADMISSION: Final = 16


class StateCache(Protocol):
    """A cache that keeps the last known state of each chain; entries may disappear at any time."""

    def get(self, dataset: DatasetId) -> bytes | None:
        """Return the cached state of a dataset; None if there is none."""

    def put(self, dataset: DatasetId, state: bytes) -> None:
        """Store the state of a dataset, replacing an earlier one."""

    def forget(self, dataset: DatasetId) -> None:
        """Remove the cached state of a dataset."""


class NoStateCache:
    """A cache that keeps nothing, for nodes without Redis."""

    def get(self, _: DatasetId) -> bytes | None:
        """Return None."""
        return None

    def put(self, dataset: DatasetId, state: bytes) -> None:
        """Do nothing."""

    def forget(self, dataset: DatasetId) -> None:
        """Do nothing."""


class ChainStates:
    """The states of all chains of this node, cached in this process and in `cache`; thread-safe."""

    def __init__(
        self,
        blobs: BlobStore,
        refs: RefStore,
        cache: StateCache,
        *,
        capacity: int = MAX_CACHED_STATES,
        capacity_bytes: int = MAX_CACHED_BYTES,
    ) -> None:
        """Compute states from the blocks in `blobs` if they are cached neither in this process nor in `cache`."""
        self._blobs = blobs
        self._refs = refs
        self._cache = cache
        self._states: OrderedDict[DatasetId, ChainState] = OrderedDict()
        self._sizes: dict[DatasetId, int] = {}  # of the same datasets
        self._bytes = 0
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._passed_over = 0
        self._lock = threading.Lock()

    def current(self, dataset: DatasetId) -> ChainState | None:
        """Return the state at the head of a dataset; None if the dataset has no blocks."""
        head = self._refs.head(dataset)
        return None if head is None else self.at(dataset, head)

    def at(self, dataset: DatasetId, head: Multihash) -> ChainState:
        """Return the state after the block `head`, and cache it.

        Raises `NotFound` if a block is missing, `VerificationFailed` if one does not match its hash, and
        `ChainRuleViolated` if the chain breaks a rule.
        """
        with self._lock:
            latest = self._states.get(dataset)
        if latest is not None and latest.head == head:
            return latest
        raw = self._cache.get(dataset)
        cached = None if raw is None else _decode_state(raw)
        starts = {state.head: state for state in (latest, cached) if state is not None}
        state = starts[head] if head in starts else self._fold(dataset, head, starts.values())
        if raw is not None and cached is not None and cached.head == head:
            self._keep(dataset, state, len(raw), is_new=False)
        else:
            self._store(dataset, state, is_new=False)
        return state

    def state_at(self, dataset: DatasetId, block: Multihash) -> ChainState:
        """Return the state after any block, without replacing the cached state of the head.

        It is cheap for blocks after the cached head; for others the chain is folded from its first block. Raises
        as `at` does.
        """
        with self._lock:
            latest = self._states.get(dataset)
        return self._fold(dataset, block, () if latest is None else (latest,))

    def remember(self, state: ChainState) -> None:
        """Cache the state of a new head."""
        self._store(state.dataset_id, state, is_new=True)

    def forget(self, dataset: DatasetId) -> None:
        """Remove the cached state of a deleted dataset."""
        with self._lock:
            self._drop(dataset)
        self._cache.forget(dataset)

    def _store(self, dataset: DatasetId, state: ChainState, *, is_new: bool) -> None:
        raw = state_to_bytes(state)
        self._keep(dataset, state, len(raw), is_new=is_new)
        self._cache.put(dataset, raw)

    def _drop(self, dataset: DatasetId) -> None:
        self._states.pop(dataset, None)
        self._bytes -= self._sizes.pop(dataset, 0)

    def _fold(self, dataset: DatasetId, head: Multihash, starts: Iterable[ChainState]) -> ChainState:
        """Return the state at `head`: folded from the newest usable state in `starts`, else from the first block."""
        read = block_reader(self._blobs, dataset)
        for past in sorted(starts, key=lambda state: state.sequence_number, reverse=True):
            with suppress(ChainBroken):
                return _log_reads(fold(read, head, past), past)
        try:
            return _log_reads(fold(read, head), None)
        except ChainBroken as error:
            if error.kind == "missing":
                raise NotFound(what=f"block {error.block} of {dataset}") from error
            raise

    def __len__(self) -> int:
        """Return the number of states that are cached in this process."""
        return len(self._states)

    def _keep(self, dataset: DatasetId, state: ChainState, size: int, *, is_new: bool) -> None:
        """Cache a state of `size` bytes in this process, unless it is too large.

        If the cache is full, only one of `READS_PER_ADMISSION` states that were merely read is cached. Otherwise a scan
        over more datasets than fit would evict each state just before the next scan needs it.
        """
        with self._lock:
            if not is_new and dataset not in self._states and len(self._states) >= self._capacity:
                self._passed_over += 1
                if self._passed_over < READS_PER_ADMISSION:
                    return
                self._passed_over = 0
            self._drop(dataset)
            if size > self._capacity_bytes // LARGEST_SHARE:
                return
            self._states[dataset] = state
            self._sizes[dataset] = size
            self._bytes += size
            while len(self._states) > self._capacity or self._bytes > self._capacity_bytes:
                self._drop(next(iter(self._states)))


def _decode_state(raw: bytes) -> ChainState | None:
    """Return a cached state; None if it is damaged or has the format of another version."""
    try:
        return state_from_bytes(raw)
    except InvalidInput:
        return None


def _log_reads(state: ChainState, past: ChainState | None) -> ChainState:
    """Log the number of blocks that were read; if it is high again and again, caches are too small or were lost."""
    blocks = state.sequence_number - (-1 if past is None else past.sequence_number)
    log.debug("chain folded", dataset_id=str(state.dataset_id), blocks=blocks, head=str(state.head))
    return state
