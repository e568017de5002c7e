"""Indexes of a dataset: the set of all keys, or the current row of each key.

With them the cost of merging a batch depends on the size of the batch, not of the dataset. An index consists of sorted
runs, as in a log-structured merge tree. The newest run that has a key has the key's current row. A retracted row is
marked as such until no older run is left in which the key may have a row.

An index is updated in the background and used during a commit. An update can take minutes, after an upgrade or if the
folder is lost, so it does not hold the dataset's lock. During a commit an index is only extended by blocks that others
have committed in the meantime. If it is not ready, `IndexBehind` is raised, and it is updated before the next attempt.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog

from odf_common.chain.state import ChainState
from odf_common.data.columns import Operation
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.scalars import Strings
from odf_ingest.history.keys import Keys, first_of_each, key_array, last_of_each, with_keys
from odf_ingest.history.run_file import take_rows
from odf_ingest.history.run_store import PRESENCE_COLUMN, RunStore

_GONE: Final = (Operation.RETRACT, Operation.CORRECT_FROM)


class KeyIndex:
    """A set of keys."""

    def __init__(self, store: RunStore | None = None) -> None:
        """Use the runs of `store`; None: start empty, in memory."""
        self.store = store or RunStore()

    def __len__(self) -> int:
        """Return the number of keys."""
        return sum(map(len, self.store.runs))

    def holds(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Return for each of the ascending keys whether it is in the set."""
        is_held = np.zeros(len(keys), dtype=np.bool_)
        for run in self.store.runs:
            is_held |= run.find(keys) >= 0
        return is_held

    def add(self, keys: Keys, head: str = "") -> None:
        """Add ascending, distinct keys that are not in the set yet. Then the set is complete up to the block `head`."""
        self.store.append(keys, None, head)

    def fresh(self, keys: Keys) -> tuple[npt.NDArray[np.int64], Keys]:
        """Return the index of the first record of each key not in the set, ascending; and those keys, sorted."""
        distinct, first = first_of_each(keys)
        is_new = ~self.holds(distinct)
        return np.sort(first[is_new]), distinct[is_new]


class CurrentRows:
    """The current row of each key: its last record. Records with a null in a key column are left out."""

    def __init__(self, key: Strings, store: RunStore | None = None) -> None:
        """Use the runs of `store`; None: start empty, in memory."""
        self._key = key
        self.store = store or RunStore()

    def add(self, records: pa.Table, operation: str, head: str = "") -> None:
        """Add records, which are in offset order. Then the index is complete up to the block `head`.

        `operation` is the name of the column of operations.
        """
        records = with_keys(records, self._key)
        if len(records) == 0:
            return
        distinct, last = last_of_each(key_array(records, self._key))
        rows = records.take(pa.array(last))
        is_there = ~np.isin(rows.column(operation).to_numpy(), _GONE)
        rows = rows.drop_columns([operation]).append_column(PRESENCE_COLUMN, pa.array(is_there))
        self.store.append(distinct, rows, head)

    def current(self, keys: Keys | None = None) -> pa.Table:
        """Return the last record of each key, or of `keys`, unless it was retracted; unordered.

        `keys` are distinct and ascending. Without records the table has no columns.
        """
        runs = self.store.runs
        parts = [run.rows() for run in runs] if keys is None else self._some(keys)
        if not parts:
            return pa.table({})
        # Filtering the many small chunks of runs would take several times as long as combining them first.
        rows = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
        is_current = rows.column(PRESENCE_COLUMN).to_numpy()
        if keys is None and len(runs) > 1:
            is_current = is_current & _is_newest([run.keys for run in runs])
        rows = rows.drop_columns([PRESENCE_COLUMN])
        if not is_current.all():
            rows = rows.filter(pa.array(is_current)).combine_chunks()
        return rows

    def _some(self, keys: Keys) -> list[pa.Table]:
        matches = []
        for run in reversed(self.store.runs):
            rows = run.find(keys)
            is_here = rows >= 0
            if is_here.any():
                matches.append((run, rows[is_here]))
                keys = keys[~is_here]
        return take_rows(matches)


def _is_newest(runs: Sequence[Keys]) -> npt.NDArray[np.bool_]:
    """Return a mask of the keys of all runs, oldest run first: True if no newer run has the key."""
    keys = np.concatenate(runs)
    # A stable sort detects the sorted runs and merges them; the newest of equal keys is the last.
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    is_newest = np.zeros(len(keys), np.bool_)
    is_newest[order[np.append(keys[1:] != keys[:-1], np.ones(min(len(keys), 1), np.bool_))]] = True
    return is_newest


log = structlog.stdlib.get_logger(__name__)

BUSY_SECONDS: Final = 1.0  # a commit waits this long for another thread that updates the index
MAX_BLOCKS_IN_COMMIT: Final = 1000  # a commit extends an index by at most this many blocks
FEW_SLICES: Final = 64  # an update with at most this many slices does not count as a build
MAX_CONCURRENT_BUILDS: Final = 2  # in this process; each has some 100,000 records in memory
_building: Final = threading.BoundedSemaphore(MAX_CONCURRENT_BUILDS)

Index = TypeVar("Index", bound=KeyIndex | CurrentRows)
Result = TypeVar("Result")
IsWanted = Callable[[], bool]


class IndexBehind(Exception):
    """The index has to be updated before the batch can be merged; nothing was committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRecords:
    """Records of one or more slices, in stored types; `keys` has the same meaning as in `MergeResult`."""

    records: pa.Table
    keys: Mapping[Strings, Keys] = field(default_factory=dict)


class Slice(NamedTuple):
    """A slice, and the block that refers to it."""

    block: str
    name: Multihash


class MissingSlices(NamedTuple):
    """The part of the chain that an index does not have yet.

    `block` is the last block of the index, None if the index is empty. `slices` are those after that block, and
    `blocks` is the number of blocks after it.
    """

    block: str | None
    slices: Sequence[Slice]
    blocks: int


class SliceSource(Protocol):
    """The slices of a dataset's chain."""

    def since(self, head: Multihash, blocks: Collection[str], most: int | None) -> MissingSlices | None:
        """Return the slices after the latest of `blocks`, up to `head`; None if these are more than `most` blocks."""

    def read(
        self, slices: Sequence[Slice], columns: Strings | None
    ) -> Iterator[tuple[int, str, SliceRecords]]:
        """Yield the number of slices read so far, the block of the last one, and the next records, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildProgress:
    """The progress of updating an index.

    `done` of `total` slices have been read; `total` is 0 until it is known. `since` is the start of the update in
    seconds since the epoch.
    """

    since: float
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexDefinition(Generic[Index]):
    """The definition of an index: its name, the columns it needs (None: all), and its functions.

    `begin` opens the index on a run store; `add` adds records up to a block.
    """

    name: str
    columns: Strings | None
    begin: Callable[[RunStore], Index]
    add: Callable[[Index, SliceRecords, str, DatasetVocabulary], None]


class KeptIndex(Generic[Index]):
    """An index that is updated from the chain; thread-safe."""

    def __init__(self, definition: IndexDefinition[Index], store: RunStore, chain: SliceSource) -> None:
        """Use the runs of `store`; later records are read from the slices of `chain`."""
        self._definition = definition
        self._index = definition.begin(store)
        self._chain = chain
        self._lock = threading.Lock()
        self._is_ready = False  # caught up by this process
        self.building: BuildProgress | None = None

    def catch_up(self, current: Callable[[], ChainState], is_wanted: IsWanted) -> None:
        """Update the index to the current state of the chain; stop early once `is_wanted` returns False."""
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
        """Call `use` with the index at a state of the chain, and return its result.

        Raises `IndexBehind` if the index is being updated, or lacks more than a few blocks.
        """
        if not self._lock.acquire(timeout=BUSY_SECONDS):
            raise IndexBehind
        try:
            self._extend(state, self._few_missing(state), lambda: True)
            return use(self._index)
        finally:
            self._lock.release()

    def _few_missing(self, state: ChainState) -> MissingSlices:
        """Return the part of the chain that the index lacks; raises `IndexBehind` unless it is only a few blocks."""
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
        """Add the missing slices, and return whether all were added."""
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
