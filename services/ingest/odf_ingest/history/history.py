"""A dataset's content for merging: indexes by key, each updated from the slices after its block.

There is only one way to update: read the slices between an index's block and the head, whichever process wrote them.
The last written slice is kept in memory so that it need not be read. Indexes are updated not when a batch is committed
but when the next one needs them, so nothing here can fail after a head has moved. They are kept in a folder next to the
dataset (`run_store.py`); if that is lost, or damaged, the next batch is only slower.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import structlog

from odf_common.chain.state import ChainState
from odf_common.chain.walk import iterate
from odf_common.data.slices import read_slice
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DataEvent
from odf_common.metadata.steps import (
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    Strings,
)
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_ingest.history.align_columns import without_dictionaries
from odf_ingest.history.current_rows import CurrentRows
from odf_ingest.history.key_index import KeyIndex
from odf_ingest.history.keys import Keys, key_array, with_keys
from odf_ingest.history.run_file import RunDamaged
from odf_ingest.history.run_store import RunStore

log = structlog.stdlib.get_logger(__name__)

LOG_FROM_SLICES: Final = 1000  # slices; reading that many takes seconds, which the log should explain
RUN: Final = 1 << 17  # records per update while many slices are read

ReadBlock = Callable[[Multihash], bytes]
SlicePath = Callable[[Multihash], Path]
Index = TypeVar("Index", KeyIndex, CurrentRows)
Result = TypeVar("Result")
Fresh = tuple[npt.NDArray[np.int64], Keys]
KeyedStrategy = (
    MergeStrategyLedger | MergeStrategySnapshot | MergeStrategyUpsertStream | MergeStrategyChangelogStream
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRecords:
    """Records of one or more slices, in stored types; `keys` as in `Merged`."""

    records: pa.Table
    keys: Mapping[Strings, Keys] = field(default_factory=dict)


class _Slice(NamedTuple):
    """A slice, and the block that has it."""

    block: str
    name: Multihash


@dataclass(frozen=True, slots=True)
class _Kept:
    """The cached records of a slice, with `columns` only (None: all)."""

    name: Multihash
    slice: SliceRecords
    columns: frozenset[str] | None

    def has(self, slices: Sequence[Multihash], columns: Sequence[str] | None) -> bool:
        """Return whether this covers all that has to be read."""
        is_enough = self.columns is None or (columns is not None and self.columns.issuperset(columns))
        return is_enough and slices == [self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind(Generic[Index]):
    """How an index is built: its name, its columns (None: all), and how records up to a block are added."""

    name: str
    columns: Strings | None
    begin: Callable[[RunStore], Index]
    add: Callable[[Index, SliceRecords, str], None]


class DatasetHistory:
    """The content of one dataset; used by one thread at a time."""

    def __init__(self, read_block: ReadBlock, slice_path: SlicePath, folder: Path | None = None) -> None:
        """Keep indexes in `folder`; None: in memory. Blocks and slices are read on demand."""
        self._read_block = read_block
        self._slice_path = slice_path
        self._folder = folder
        self._seen: dict[Strings, KeyIndex] = {}
        self._rows: dict[Strings, CurrentRows] = {}
        self._kept: _Kept | None = None

    def at(self, state: ChainState) -> "HistoryAt":
        """Return the dataset's content at a state of its chain."""
        return HistoryAt(self, state)

    def written(self, name: Multihash, written: SliceRecords) -> None:
        """Cache the part of a just written slice that the next batch needs."""
        if self._rows:
            records = without_dictionaries(written.records)
            self._kept = _Kept(name, replace(written, records=records), None)
        elif self._seen:
            wanted = frozenset(column for key in self._seen for column in key)
            records = written.records
            records = records.select([column for column in records.column_names if column in wanted])
            self._kept = _Kept(name, replace(written, records=without_dictionaries(records)), wanted)

    def fresh(self, state: ChainState, key: Strings, keys: Keys) -> Fresh:
        """Return the index of the first record of each key that is new, ascending; and those keys, sorted."""

        def add(index: KeyIndex, new: SliceRecords, head: str) -> None:
            records = with_keys(new.records, key)
            if len(records):
                known = new.keys.get(key)
                index.add(index.fresh(key_array(records, key))[1] if known is None else known, head)

        kind = _Kind(name="keys", columns=key, begin=KeyIndex, add=add)
        return self._with_index(self._seen, key, kind, state, lambda index: index.fresh(keys))

    def current(self, state: ChainState, key: Strings, keys: Keys | None) -> pa.Table:
        """Return the last record of each key, or of `keys`, unless it was retracted."""
        vocab = state.vocabulary

        def begin(store: RunStore) -> CurrentRows:
            return CurrentRows(key, store)

        def add(index: CurrentRows, new: SliceRecords, head: str) -> None:
            index.add(_without_numbers(new.records, vocab), vocab.operation_type_column, head)

        kind = _Kind(name="rows", columns=None, begin=begin, add=add)
        return self._with_index(self._rows, key, kind, state, lambda index: index.current(keys))

    def _with_index(
        self,
        known: dict[Strings, Index],
        key: Strings,
        kind: _Kind[Index],
        state: ChainState,
        use: Callable[[Index], Result],
    ) -> Result:
        """Return what `use` makes of an index at a state of the chain; damaged runs are replaced from the slices."""
        if key not in known:
            known[key] = kind.begin(self._store(kind.name, key, state))
        index = known[key]
        index.store.load()
        while True:
            try:
                self._update(index, kind, state)
                return use(index)
            except RunDamaged as error:
                log.warning(
                    "a kept index is damaged, and comes from the slices again",
                    dataset=str(state.dataset_id),
                    why=str(error),
                )
                index.store.drop(error.run)

    def _store(self, name: str, key: Strings, state: ChainState) -> RunStore:
        if self._folder is None:
            return RunStore()
        self._remove_unused(self._folder, state)
        return RunStore(self._folder / f"{name}-{_digest(key)}", name, key)

    @staticmethod
    def _remove_unused(folder: Path, state: ChainState) -> None:
        """Remove indexes by keys that no source has any more."""
        if state.definitions.has_opaque_source or not folder.is_dir():
            return
        steps = [source.merge for source in (*state.push_sources.values(), state.polling_source) if source]
        used = {_digest(step.primary_key) for step in steps if isinstance(step, KeyedStrategy)}
        for found in folder.iterdir():
            if found.name.rpartition("-")[2] not in used:
                shutil.rmtree(found, ignore_errors=True)

    def _update(self, index: Index, kind: _Kind[Index], state: ChainState) -> None:
        """Bring an index forward to a state of the chain, from the latest of its blocks that is in the chain."""
        head, slices, blocks = self._since(state.head, frozenset(index.store.heads))
        if len(slices) >= LOG_FROM_SLICES:
            log.info("reading slices before merging", dataset=str(state.dataset_id), slices=len(slices))
        index.store.cut(head)
        for end, records in self._read(slices, kind.columns):
            kind.add(index, records, end)
        index.store.reach(str(state.head), blocks)

    def _since(self, head: Multihash, heads: Collection[str]) -> tuple[str | None, list[_Slice], int]:
        """Return the latest of `heads` in the chain, the slices after it, oldest first, and the number of blocks."""
        found: list[_Slice] = []
        blocks = 0
        if str(head) in heads:
            return str(head), found, blocks
        for name, decoded, _ in iterate(self._read_block, head):
            if str(name) in heads:
                return str(name), found[::-1], blocks
            blocks += 1
            event = decoded.block.event
            if isinstance(event, DataEvent) and event.new_data is not None:
                found.append(_Slice(str(name), event.new_data.physical_hash))
        return None, found[::-1], blocks

    def _read(
        self, slices: Sequence[_Slice], columns: Sequence[str] | None
    ) -> Iterator[tuple[str, SliceRecords]]:
        """Yield the records of all slices in order, and the block of the last; small slices combined."""
        if self._kept is not None and self._kept.has([one.name for one in slices], columns):
            yield slices[-1].block, self._kept.slice
            return
        tables: list[pa.Table] = []
        rows = 0
        for one in slices:
            tables.append(read_slice(self._slice_path(one.name), None if columns is None else list(columns)))
            rows += len(tables[-1])
            if rows >= RUN:
                yield one.block, _joined(tables)
                tables, rows = [], 0
        if tables:
            yield slices[-1].block, _joined(tables)


class HistoryAt:
    """Port `History` for one state of the chain."""

    def __init__(self, history: DatasetHistory, state: ChainState) -> None:
        """Use `history` at `state`."""
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


def _joined(tables: list[pa.Table]) -> SliceRecords:
    records = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    return SliceRecords(records=records.combine_chunks())
