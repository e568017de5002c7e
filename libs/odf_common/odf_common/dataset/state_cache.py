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
        self, blobs: BlobStore, refs: RefStore, cache: StateCache, *, capacity: int = MAX_CACHED_STATES
    ) -> None:
        """Blocks are read from `blobs` when neither this process nor `cache` has the state."""
        self._blobs = blobs
        self._refs = refs
        self._cache = cache
        self._states: OrderedDict[DatasetId, ChainState] = OrderedDict()
        self._capacity = capacity
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
        cached = self._cached(dataset)
        starts = {state.head: state for state in (latest, cached) if state is not None}
        state = starts[head] if head in starts else self._folded(dataset, head, starts.values())
        self._keep(dataset, state, is_new=False)
        if cached is None or cached.head != head:
            self._cache.put(dataset, state_to_bytes(state))
        return state

    def state_at(self, dataset: DatasetId, block: Multihash) -> ChainState:
        """Return the state after a block that is not the head: like `at`, but the head's state stays cached.

        Cheap for blocks that follow the head; others are folded from the first block.
        """
        with self._lock:
            latest = self._states.get(dataset)
        return self._folded(dataset, block, () if latest is None else (latest,))

    def remember(self, state: ChainState) -> None:
        """Cache the state of a new head."""
        self._keep(state.dataset_id, state, is_new=True)
        self._cache.put(state.dataset_id, state_to_bytes(state))

    def forget(self, dataset: DatasetId) -> None:
        """Drop the state of a deleted dataset."""
        with self._lock:
            self._states.pop(dataset, None)
        self._cache.forget(dataset)

    def _cached(self, dataset: DatasetId) -> ChainState | None:
        raw = self._cache.get(dataset)
        if raw is None:
            return None
        try:
            return state_from_bytes(raw)
        except InvalidInput:
            # Written by another version of this code: fold again.
            return None

    def _folded(self, dataset: DatasetId, head: Multihash, starts: Iterable[ChainState]) -> ChainState:
        """Fold from the highest known state on the chain, else from the seed."""
        read = block_reader(self._blobs, dataset)
        for past in sorted(starts, key=lambda state: state.sequence_number, reverse=True):
            with suppress(ChainBroken):
                return _noted(fold(read, head, past), past)
        try:
            return _noted(fold(read, head), None)
        except ChainBroken as error:
            if error.kind == "missing":
                raise NotFound(what=f"block {error.block} of {dataset}") from error
            raise

    def __len__(self) -> int:
        """Return the number of cached states."""
        return len(self._states)

    def _keep(self, dataset: DatasetId, state: ChainState, *, is_new: bool) -> None:
        """Cache a state; if the cache is full, only one of `READS_PER_ADMISSION` states that are merely read.

        A scan over more datasets than fit would otherwise evict each state just before the next scan needs it.
        """
        with self._lock:
            if not is_new and dataset not in self._states and len(self._states) >= self._capacity:
                self._passed_over += 1
                if self._passed_over < READS_PER_ADMISSION:
                    return
                self._passed_over = 0
            self._states[dataset] = state
            self._states.move_to_end(dataset)
            while len(self._states) > self._capacity:
                self._states.popitem(last=False)


def _noted(state: ChainState, past: ChainState | None) -> ChainState:
    """Log how many blocks were read: many of them again and again mean that the caches are too small, or were lost."""
    blocks = state.sequence_number - (-1 if past is None else past.sequence_number)
    log.debug("chain folded", dataset_id=str(state.dataset_id), blocks=blocks, head=str(state.head))
    return state
