"""One index of a dataset: caught up in the background, looked up in a commit.

Catching up may take minutes, after an upgrade or when the folder is lost, so it is done without the dataset's
lock. In a commit, an index is only extended by what others have committed since; anything else raises `IndexBehind`,
upon which it is caught up again before the next attempt.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import structlog

from odf_common.chain.state import ChainState
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.steps import Strings
from odf_ingest.history.current_rows import CurrentRows
from odf_ingest.history.key_index import KeyIndex
from odf_ingest.history.keys import Keys
from odf_ingest.history.run_file import RunDamaged
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


class Since(NamedTuple):
    """The way from a block to a head: the block, None if there is none; the slices after it, and how many blocks."""

    block: str | None
    slices: Sequence[Slice]
    blocks: int


class Chain(Protocol):
    """The slices of a dataset's chain."""

    def since(self, head: Multihash, blocks: Collection[str], most: int | None) -> Since | None:
        """Return the way from the latest of `blocks`; None if it is longer than `most` blocks."""

    def read(
        self, slices: Sequence[Slice], columns: Strings | None
    ) -> Iterator[tuple[int, str, SliceRecords]]:
        """Yield how many slices were read, the block of the last of them, and their records, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """How far an index is built: slices read, of how many (0: not known yet), and since when (s since the epoch)."""

    since: float
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind(Generic[Index]):
    """How an index is built: its name, its columns (None: all), and how records up to a block are added."""

    name: str
    columns: Strings | None
    begin: Callable[[RunStore], Index]
    add: Callable[[Index, SliceRecords, str, DatasetVocabulary], None]


class KeptIndex(Generic[Index]):
    """An index; thread-safe."""

    def __init__(self, kind: Kind[Index], store: RunStore, chain: Chain) -> None:
        """Continue with the runs of `store`, which are caught up from the slices of `chain`."""
        self._kind = kind
        self._index = kind.begin(store)
        self._chain = chain
        self._lock = threading.Lock()
        self._is_ready = False  # caught up by this process, and not found damaged since
        self.building: BuildProgress | None = None

    def catch_up(self, current: Callable[[], ChainState], is_wanted: IsWanted) -> None:
        """Extend the index to the current state of the chain, or stop early once that is not wanted any more."""
        self.building = self.building or BuildProgress(since=time.time())
        try:
            with self._lock:
                self._index.store.load()
                # The state is read under the lock, so the index is never cut back to an earlier one.
                state = current()
                while not self._is_extended(state, is_wanted):
                    pass
        finally:
            self.building = None

    def look_up(self, state: ChainState, use: Callable[[Index], Result]) -> Result:
        """Return what `use` returns for the index at a state of the chain. Raises `IndexBehind`."""
        if not self._lock.acquire(timeout=BUSY_SECONDS):
            raise IndexBehind
        try:
            self._extend(state, self._short_way(state), lambda: True)
            return use(self._index)
        except RunDamaged as error:
            self._drop(state, error)
            raise IndexBehind from error
        finally:
            self._lock.release()

    def _short_way(self, state: ChainState) -> Since:
        """Return the way from the index to the state; raises `IndexBehind` unless it is only a few blocks ahead."""
        store = self._index.store
        store.load()
        way = self._chain.since(state.head, store.heads, MAX_BLOCKS_IN_COMMIT) if self._is_ready else None
        if way is None or way.block not in store.heads[:1]:
            log.debug(
                "index is behind",
                dataset_id=str(state.dataset_id),
                index=self._kind.name,
                is_ready=self._is_ready,
            )
            raise IndexBehind
        return way

    def _is_extended(self, state: ChainState, is_wanted: IsWanted) -> bool:
        """Return whether there is nothing more to do; damaged runs are dropped, and come from the slices again."""
        way = self._chain.since(state.head, self._index.store.heads, None)
        assert way is not None
        try:
            with self._turn(way):
                self._is_ready = self._extend(state, way, is_wanted)
        except RunDamaged as error:
            self._drop(state, error)
            return False
        return True

    @staticmethod
    def _turn(way: Since) -> AbstractContextManager[object]:
        return _building if len(way.slices) > FEW_SLICES else nullcontext()

    def _extend(self, state: ChainState, way: Since, is_wanted: IsWanted) -> bool:
        """Add the slices of `way`; return whether all were added."""
        store, total = self._index.store, len(way.slices)
        if total > FEW_SLICES:
            log.info("building an index for merging", dataset_id=str(state.dataset_id), slices=total)
        store.cut(way.block)
        self._note(0, total)
        for done, end, records in self._chain.read(way.slices, self._kind.columns):
            self._kind.add(self._index, records, end, state.vocabulary)
            self._note(done, total)
            if done < total and not is_wanted():
                return False
        store.reach(str(state.head), way.blocks)
        if total:
            log.debug("index extended", dataset_id=str(state.dataset_id), index=self._kind.name, slices=total)
        return True

    def _note(self, done: int, total: int) -> None:
        if self.building is not None:
            self.building = BuildProgress(since=self.building.since, done=done, total=total)

    def _drop(self, state: ChainState, error: RunDamaged) -> None:
        log.warning(
            "a kept index is damaged, and comes from the slices again",
            dataset_id=str(state.dataset_id),
            why=str(error),
        )
        self._is_ready = False
        self._index.store.drop(error.run)
