"""Chain states: folded once, then cached; appending is O(1) in the length of the chain, even after a restart.

A state names its head, so a stale entry is never wrong: it is only a starting point.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol

import structlog

from odf_common.chain.state import ChainState
from odf_common.chain.walk import ChainBroken, fold
from odf_common.dataset.state_codec import state_from_bytes, state_to_bytes
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobStore, RefStore, block_reader

log = structlog.stdlib.get_logger(__name__)

MAX_CACHED_STATES: Final = 20_000  # states cached in this process, a few kilobytes each
# Of all of them, encoded. Descriptions, attachments and sources are of any size, and others may push them.
MAX_CACHED_BYTES: Final = 256 * 1024**2
LARGEST_SHARE: Final = 16  # a state that takes more than one part in so many is not kept
# While the cache is full, only one of this number of states that are merely read replaces the oldest.
READS_PER_ADMISSION: Final = 16


class StateCache(Protocol):
    """Keeps the last known state of each chain, best effort."""

    def get(self, dataset: DatasetId) -> bytes | None:
        """Return the last bytes put; None if unknown."""

    def put(self, dataset: DatasetId, state: bytes) -> None:
        """Store the bytes, replacing earlier ones."""

    def forget(self, dataset: DatasetId) -> None:
        """Drop the state."""


class NoStateCache:
    """Keeps nothing: for nodes without Redis."""

    def get(self, _: DatasetId) -> bytes | None:
        """Return None."""
        return None

    def put(self, dataset: DatasetId, state: bytes) -> None:
        """Do nothing."""

    def forget(self, dataset: DatasetId) -> None:
        """Do nothing."""


class ChainStates:
    """States of all chains of this node; thread-safe."""

    def __init__(
        self,
        blobs: BlobStore,
        refs: RefStore,
        cache: StateCache,
        *,
        capacity: int = MAX_CACHED_STATES,
        capacity_bytes: int = MAX_CACHED_BYTES,
    ) -> None:
        """Blocks are read from `blobs` when neither this process nor `cache` has the state."""
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
        """Return the state at the dataset's head; None if it has no blocks."""
        head = self._refs.head(dataset)
        return None if head is None else self.at(dataset, head)

    def at(self, dataset: DatasetId, head: Multihash) -> ChainState:
        """Return the state after the block `head`.

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
        """Return the state after a block that is not the head: like `at`, but the head's state stays cached.

        Cheap for blocks that follow the head; others are folded from the first block.
        """
        with self._lock:
            latest = self._states.get(dataset)
        return self._fold(dataset, block, () if latest is None else (latest,))

    def remember(self, state: ChainState) -> None:
        """Cache the state of a new head."""
        self._store(state.dataset_id, state, is_new=True)

    def forget(self, dataset: DatasetId) -> None:
        """Drop the state of a deleted dataset."""
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
        """Fold from the highest known state on the chain, else from the seed."""
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
        """Return the number of cached states."""
        return len(self._states)

    def _keep(self, dataset: DatasetId, state: ChainState, size: int, *, is_new: bool) -> None:
        """Cache a state of `size` bytes, unless it is too large.

        If the cache is full, only one of `READS_PER_ADMISSION` states that are merely read is kept.

        A scan over more datasets than fit would otherwise evict each state just before the next scan needs it.
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
    """Return a cached state; None if another version of this code has written it, so that it is folded again."""
    try:
        return state_from_bytes(raw)
    except InvalidInput:
        return None


def _log_reads(state: ChainState, past: ChainState | None) -> ChainState:
    """Log how many blocks were read: many of them again and again mean that the caches are too small, or were lost."""
    blocks = state.sequence_number - (-1 if past is None else past.sequence_number)
    log.debug("chain folded", dataset_id=str(state.dataset_id), blocks=blocks, head=str(state.head))
    return state
