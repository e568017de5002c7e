"""A dataset's content for merging: indexes by key, each complete up to some block of the chain.

There is only one way to update an index: read the slices between its block and the head, whichever process wrote them.
The last written slice is cached in memory, so it need not be read. Indexes are updated when the next batch needs them,
not when a batch is committed, so no update can fail after the head has moved. Indexes are stored in a folder next to
the dataset (`run_store.py`); if the folder is lost or damaged, the next batch is only slower.
"""

import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odf_common.chain.state import ChainState
from odf_common.chain.walk import ReadBlock, iterate
from odf_common.data.slices import read_slice
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import (
    DataEvent,
    DatasetVocabulary,
    MergeStrategy,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
)
from odf_common.metadata.scalars import Strings
from odf_ingest.history.align_columns import without_dictionaries
from odf_ingest.history.indexes import (
    BuildProgress,
    CurrentRows,
    IndexBehind,
    IndexDefinition,
    IsWanted,
    KeptIndex,
    KeyIndex,
    MissingSlices,
    Slice,
    SliceRecords,
)
from odf_ingest.history.keys import Keys, key_array, with_keys
from odf_ingest.history.run_file import RunLimits
from odf_ingest.history.run_store import DEFAULT_LIMITS, RunStore

RECORDS_PER_UPDATE: Final = 1 << 17  # records per update while many slices are read

SlicePath = Callable[[Multihash], Path]
Fresh = tuple[npt.NDArray[np.int64], Keys]
KeyedStrategy = (
    MergeStrategyLedger | MergeStrategySnapshot | MergeStrategyUpsertStream | MergeStrategyChangelogStream
)


@dataclass(frozen=True, slots=True)
class _CachedSlice:
    """The cached records of a slice. Only the columns in `columns` are cached; None: all."""

    name: Multihash
    slice: SliceRecords
    columns: frozenset[str] | None

    def has(self, slices: Sequence[Multihash], columns: Sequence[str] | None) -> bool:
        """Return whether the cache has all of these slices and columns, so that no file has to be read."""
        is_enough = self.columns is None or (columns is not None and self.columns.issuperset(columns))
        return is_enough and slices == [self.name]


class DatasetHistory:
    """The content of one dataset; thread-safe. It is the `SliceSource` of its indexes."""

    def __init__(
        self,
        read_block: ReadBlock,
        slice_path: SlicePath,
        folder: Path | None = None,
        limits: RunLimits = DEFAULT_LIMITS,
    ) -> None:
        """Store indexes in `folder`; None: in memory. Blocks and slices are read on demand."""
        self._limits = limits
        self._read_block = read_block
        self._slice_path = slice_path
        self._folder = folder
        self._mutex = threading.Lock()  # of the next two
        self._keys: dict[Strings, KeptIndex[KeyIndex]] = {}
        self._rows: dict[Strings, KeptIndex[CurrentRows]] = {}
        self._cached_slice: _CachedSlice | None = None

    def at(self, state: ChainState) -> "HistoryAt":
        """Return the dataset's content at a state of its chain."""
        return HistoryAt(self, state)

    def cache_slice(self, name: Multihash, written: SliceRecords) -> None:
        """Cache the slice that was just written: all of it if current rows are indexed, else the key columns."""
        with self._mutex:
            has_rows, keys = bool(self._rows), list(self._keys)
        if has_rows:
            records = without_dictionaries(written.records)
            self._cached_slice = _CachedSlice(name, replace(written, records=records), None)
        else:
            columns = frozenset(column for key in keys for column in key)
            records = written.records
            records = records.select([column for column in records.column_names if column in columns])
            self._cached_slice = _CachedSlice(
                name, replace(written, records=without_dictionaries(records)), columns
            )

    def catch_up(
        self,
        merge: MergeStrategy | None,
        current: Callable[[], ChainState],
        is_wanted: IsWanted = lambda: True,
    ) -> None:
        """Bring the index that a merge strategy needs, if any, up to date with the current state. Can take minutes."""
        match merge:
            case MergeStrategyLedger(primary_key=key):
                self._key_index(key, current()).catch_up(current, is_wanted)
            case (
                MergeStrategySnapshot(primary_key=key)
                | MergeStrategyUpsertStream(primary_key=key)
                | MergeStrategyChangelogStream(primary_key=key)
            ):
                self._row_index(key, current()).catch_up(current, is_wanted)
            case _:
                pass  # it looks nothing up

    def index_progress(self, merge: MergeStrategy) -> BuildProgress | None:
        """Return the progress of updating the index of a merge strategy; None unless it is being updated."""
        index: KeptIndex[KeyIndex] | KeptIndex[CurrentRows] | None
        match merge:
            case MergeStrategyLedger(primary_key=key):
                index = self._keys.get(key)
            case (
                MergeStrategySnapshot(primary_key=key)
                | MergeStrategyUpsertStream(primary_key=key)
                | MergeStrategyChangelogStream(primary_key=key)
            ):
                index = self._rows.get(key)
            case _:
                index = None
        return None if index is None else index.building

    def fresh(self, state: ChainState, key: Strings, keys: Keys) -> Fresh:
        """Return the index of the first record of each key that is new, ascending; and those keys, sorted."""
        index = self._keys.get(key)
        if index is None:
            raise IndexBehind
        return index.look_up(state, lambda key_index: key_index.fresh(keys))

    def current(self, state: ChainState, key: Strings, keys: Keys | None) -> pa.Table:
        """Return the last record of each key, or of `keys`, unless it was retracted."""
        index = self._rows.get(key)
        if index is None:
            raise IndexBehind
        return index.look_up(state, lambda rows: rows.current(keys))

    def _key_index(self, key: Strings, state: ChainState) -> KeptIndex[KeyIndex]:
        def add(index: KeyIndex, new: SliceRecords, head: str, _: DatasetVocabulary) -> None:
            records = with_keys(new.records, key)
            if len(records):
                fresh = new.keys.get(key)
                index.add(index.fresh(key_array(records, key))[1] if fresh is None else fresh, head)

        with self._mutex:
            if key not in self._keys:
                definition = IndexDefinition(name="keys", columns=key, begin=KeyIndex, add=add)
                self._keys[key] = KeptIndex(definition, self._store(definition.name, key, state), self)
            return self._keys[key]

    def _row_index(self, key: Strings, state: ChainState) -> KeptIndex[CurrentRows]:
        def begin(store: RunStore) -> CurrentRows:
            return CurrentRows(key, store)

        def add(index: CurrentRows, new: SliceRecords, head: str, vocab: DatasetVocabulary) -> None:
            index.add(_without_numbers(new.records, vocab), vocab.operation_type_column, head)

        with self._mutex:
            if key not in self._rows:
                definition = IndexDefinition(name="rows", columns=None, begin=begin, add=add)
                self._rows[key] = KeptIndex(definition, self._store(definition.name, key, state), self)
            return self._rows[key]

    def _store(self, name: str, key: Strings, state: ChainState) -> RunStore:
        if self._folder is None:
            return RunStore()
        self._remove_unused(self._folder, state)
        return RunStore(self._folder / f"{name}-{_digest(key)}", name, key, self._limits)

    def _remove_unused(self, folder: Path, state: ChainState) -> None:
        """Remove indexes by keys that no source has any more."""
        if state.definitions.has_opaque_source or not folder.is_dir():
            return
        steps = [source.merge for source in (*state.push_sources.values(), state.polling_source) if source]
        used = {_digest(step.primary_key) for step in steps if isinstance(step, KeyedStrategy)}
        used |= {_digest(key) for key in (*self._keys, *self._rows)}  # also of sources that no chain defines
        for file in folder.iterdir():
            if file.name.rpartition("-")[2] not in used:
                shutil.rmtree(file, ignore_errors=True)

    def since(self, head: Multihash, blocks: Collection[str], most: int | None) -> MissingSlices | None:
        """Return the slices after the latest of `blocks`, up to `head`; None if these are more than `most` blocks."""
        slices: list[Slice] = []
        count = 0
        if str(head) in blocks:
            return MissingSlices(str(head), slices, count)
        for name, decoded, _ in iterate(self._read_block, head):
            if str(name) in blocks:
                return MissingSlices(str(name), slices[::-1], count)
            count += 1
            if most is not None and count > most:
                return None
            event = decoded.block.event
            if isinstance(event, DataEvent) and event.new_data is not None:
                slices.append(Slice(str(name), event.new_data.physical_hash))
        return MissingSlices(None, slices[::-1], count)

    def read(
        self, slices: Sequence[Slice], columns: Strings | None
    ) -> Iterator[tuple[int, str, SliceRecords]]:
        """Yield the number of slices read so far, the block of the last one, and the next records, in order.

        Small slices are combined.
        """
        cached = self._cached_slice
        if cached is not None and cached.has([slice_.name for slice_ in slices], columns):
            yield 1, slices[-1].block, cached.slice
            return
        tables: list[pa.Table] = []
        rows = 0
        for done, slice_ in enumerate(slices, 1):
            tables.append(
                read_slice(self._slice_path(slice_.name), None if columns is None else list(columns))
            )
            rows += len(tables[-1])
            if rows >= RECORDS_PER_UPDATE or done == len(slices):
                yield done, slice_.block, _join_tables(tables)
                tables, rows = [], 0


class HistoryAt:
    """Port `History` for one state of the chain."""

    def __init__(self, history: DatasetHistory, state: ChainState) -> None:
        self._history = history
        self._state = state

    def fresh(self, key: Strings, keys: Keys) -> Fresh:
        """Return the index of the first record of each key that is new, ascending; and those keys, sorted."""
        return self._history.fresh(self._state, key, keys)

    def current(self, key: Strings, keys: Keys | None = None) -> pa.Table:
        """Return the last record of each key, or of those among `keys`, unless it was retracted."""
        return self._history.current(self._state, key, keys)


def _digest(key: Strings) -> str:
    return hashlib.sha256(json.dumps(list(key)).encode()).hexdigest()[:16]


def _without_numbers(records: pa.Table, vocab: DatasetVocabulary) -> pa.Table:
    """Return records without offset and system time."""
    dropped = {vocab.offset_column, vocab.system_time_column}
    return records.select([name for name in records.column_names if name not in dropped])


def _join_tables(tables: list[pa.Table]) -> SliceRecords:
    records = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    return SliceRecords(records=records.combine_chunks())
