"""One index of a dataset: caught up in the background, looked up in a commit.

Catching up may take minutes, after an upgrade or when the folder is lost, so it is done without the dataset's
lock. In a commit, an index is only extended by what others have committed since; anything else raises `IndexBehind`,
upon which it is caught up again before the next attempt.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import structlog

from odf_common.chain.state import ChainState
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.steps import Strings
from odf_ingest.history.indexes import CurrentRows, KeyIndex
from odf_ingest.history.keys import Keys
from odf_ingest.history.run_store import RunStore

log = structlog.stdlib.get_logger(__name__)

BUSY_SECONDS: Final = 1.0  # that a commit waits for another thread to catch up the index
MAX_BLOCKS_IN_COMMIT: Final = 1000  # by which a commit extends an index
FEW_SLICES: Final = 64  # that are read at once, however many indexes are being built
MAX_CONCURRENT_BUILDS: Final = 2  # in this process; each holds some 100,000 records in memory
_building: Final = threading.BoundedSemaphore(MAX_CONCURRENT_BUILDS)

Index = TypeVar("Index", bound=KeyIndex | CurrentRows)
Result = TypeVar("Result")
IsWanted = Callable[[], bool]


class IndexBehind(Exception):
    """An index has to be caught up before the batch can be merged; nothing was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRecords:
    """Records of one or more slices, in stored types; `keys` as in `MergeResult`."""

    records: pa.Table
    keys: Mapping[Strings, Keys] = field(default_factory=dict)


class Slice(NamedTuple):
    """A slice, and the block that has it."""

    block: str
    name: Multihash


class MissingSlices(NamedTuple):
    """The missing part of an index.

    The block it has reached (None: empty), the slices after it, the number of blocks.
    """

    block: str | None
    slices: Sequence[Slice]
    blocks: int


class SliceSource(Protocol):
    """The slices of a dataset's chain."""

    def since(self, head: Multihash, blocks: Collection[str], most: int | None) -> MissingSlices | None:
        """Return the slices after the latest of `blocks`; None if it is more than `most` blocks ago."""

    def read(
        self, slices: Sequence[Slice], columns: Strings | None
    ) -> Iterator[tuple[int, str, SliceRecords]]:
        """Yield how many slices were read, the block of the last of them, and their records, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """Progress of an index: slices read, their total (0: not known yet), and its begin (s since the epoch)."""

    since: float
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDefinition(Generic[Index]):
    """Definition of an index: its name, its columns (None: all), and how records up to a block are added."""

    name: str
    columns: Strings | None
    begin: Callable[[RunStore], Index]
    add: Callable[[Index, SliceRecords, str, DatasetVocabulary], None]


class KeptIndex(Generic[Index]):
    """An index; thread-safe."""

    def __init__(self, definition: IndexDefinition[Index], store: RunStore, chain: SliceSource) -> None:
        """Continue with the runs of `store`, which are caught up from the slices of `chain`."""
        self._definition = definition
        self._index = definition.begin(store)
        self._chain = chain
        self._lock = threading.Lock()
        self._is_ready = False  # caught up by this process
        self.building: BuildProgress | None = None

    def catch_up(self, current: Callable[[], ChainState], is_wanted: IsWanted) -> None:
        """Extend the index to the current state of the chain, or stop early once that is not wanted any more."""
        self.building = self.building or BuildProgress(since=time.time())
        try:
            with self._lock:
                self._index.store.load()
                # The state is read under the lock, so the index is never cut back to an earlier one.
                state = current()
                missing = self._chain.since(state.head, self._index.store.heads, None)
                assert missing is not None
                with _building if len(missing.slices) > FEW_SLICES else nullcontext():
                    self._is_ready = self._extend(state, missing, is_wanted)
        finally:
            self.building = None

    def look_up(self, state: ChainState, use: Callable[[Index], Result]) -> Result:
        """Return the result of `use` for the index at a state of the chain. Raises `IndexBehind`."""
        if not self._lock.acquire(timeout=BUSY_SECONDS):
            raise IndexBehind
        try:
            self._extend(state, self._few_missing(state), lambda: True)
            return use(self._index)
        finally:
            self._lock.release()

    def _few_missing(self, state: ChainState) -> MissingSlices:
        """Return the index's missing part at the state; raises `IndexBehind` unless these are only a few blocks."""
        store = self._index.store
        store.load()
        missing = self._chain.since(state.head, store.heads, MAX_BLOCKS_IN_COMMIT) if self._is_ready else None
        if missing is None or missing.block not in store.heads[:1]:
            log.debug(
                "index is behind",
                dataset_id=str(state.dataset_id),
                index=self._definition.name,
                is_ready=self._is_ready,
            )
            raise IndexBehind
        return missing

    def _extend(self, state: ChainState, missing: MissingSlices, is_wanted: IsWanted) -> bool:
        """Add the slices of `missing`; return whether all were added."""
        store, total = self._index.store, len(missing.slices)
        if total > FEW_SLICES:
            log.info("building an index for merging", dataset_id=str(state.dataset_id), slices=total)
        store.cut(missing.block)
        self._report(0, total)
        for done, end, records in self._chain.read(missing.slices, self._definition.columns):
            self._definition.add(self._index, records, end, state.vocabulary)
            self._report(done, total)
            if done < total and not is_wanted():
                return False
        store.reach(str(state.head), missing.blocks)
        if total:
            log.debug(
                "index extended", dataset_id=str(state.dataset_id), index=self._definition.name, slices=total
            )
        return True

    def _report(self, done: int, total: int) -> None:
        if self.building is not None:
            self.building = BuildProgress(since=self.building.since, done=done, total=total)
