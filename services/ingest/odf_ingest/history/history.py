"""A dataset's content for merging: in-memory indexes, each updated from the slices after its block.

There is only one way to update: read the slices between an index's block and the head, whichever process wrote them.
The last written slice is kept in memory so that it need not be read. Indexes are updated not when a batch is committed
but when the next one needs them, so nothing here can fail after a head has moved. If everything is lost, as after a
restart, the next batch is only slower.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Generic, TypeVar

import pyarrow as pa
import structlog

from odf_common.chain.state import ChainState
from odf_common.chain.walk import iterate
from odf_common.data.slices import read_slice
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DataEvent
from odf_common.metadata.steps import Strings
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_ingest.history.align_columns import without_dictionaries
from odf_ingest.history.current_rows import CurrentRows
from odf_ingest.history.key_index import KeyIndex, Keys, key_array, with_keys

log = structlog.stdlib.get_logger(__name__)

LOG_FROM_SLICES: Final = 1000  # slices; reading that many takes seconds, which the log should explain
RUN: Final = 1 << 17  # records per update while many slices are read

ReadBlock = Callable[[Multihash], bytes]
SlicePath = Callable[[Multihash], Path]
Index = TypeVar("Index")


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRecords:
    """Records of one or more slices, in stored types; `keys` as in `Merged`."""

    records: pa.Table
    keys: Mapping[Strings, Keys] = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class _At(Generic[Index]):
    """An index, and the block up to which it is current."""

    value: Index
    head: Multihash


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind(Generic[Index]):
    """How an index is built: its initial value, its columns (None: all), and how records are added."""

    begin: Callable[[], Index]
    columns: Strings | None
    add: Callable[[Index, SliceRecords], None]


class DatasetHistory:
    """The content of one dataset; used by one thread at a time."""

    def __init__(self, read_block: ReadBlock, slice_path: SlicePath) -> None:
        """Start without indexes; blocks and slices are read on demand."""
        self._read_block = read_block
        self._slice_path = slice_path
        self._seen: dict[Strings, _At[KeyIndex]] = {}
        self._rows: dict[Strings, _At[CurrentRows]] = {}
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

    def seen(self, state: ChainState, key: Strings) -> KeyIndex:
        """Return all keys up to a state of the chain."""

        def add(index: KeyIndex, new: SliceRecords) -> None:
            records = with_keys(new.records, key)
            if len(records):
                keys = new.keys.get(key)
                index.add(index.fresh(key_array(records, key) if keys is None else keys)[1])

        return self._brought(self._seen, state, key, _Kind(begin=KeyIndex, columns=key, add=add))

    def rows(self, state: ChainState, key: Strings) -> CurrentRows:
        """Return the last record of each key up to a state of the chain."""
        vocab = state.vocabulary

        def add(index: CurrentRows, new: SliceRecords) -> None:
            index.add(_without_numbers(new.records, vocab), vocab.operation_type_column)

        kind = _Kind(begin=lambda: CurrentRows(key), columns=None, add=add)
        return self._brought(self._rows, state, key, kind)

    def _brought(
        self, known: dict[Strings, _At[Index]], state: ChainState, key: Strings, kind: _Kind[Index]
    ) -> Index:
        """Return an index at a state of the chain: updated, or rebuilt if its block is not in the chain."""
        # Removed while it is being updated: if reading fails, it is rebuilt next time.
        before = known.pop(key, None)
        is_passed, slices = self._slices(state.head, None if before is None else before.head)
        if len(slices) >= LOG_FROM_SLICES:
            log.info("reading slices before merging", dataset=str(state.dataset_id), slices=len(slices))
        index = before.value if before is not None and is_passed else kind.begin()
        for records in self._read(slices, kind.columns):
            kind.add(index, records)
        known[key] = _At(index, state.head)
        return index

    def _slices(self, head: Multihash, since: Multihash | None) -> tuple[bool, list[Multihash]]:
        """Return whether the block `since` is in the chain, and the slices after it, else all, oldest first."""
        found: list[Multihash] = []
        if head == since:
            return True, found
        for name, decoded, _ in iterate(self._read_block, head):
            if name == since:
                return True, found[::-1]
            event = decoded.block.event
            if isinstance(event, DataEvent) and event.new_data is not None:
                found.append(event.new_data.physical_hash)
        return False, found[::-1]

    def _read(self, slices: Sequence[Multihash], columns: Sequence[str] | None) -> Iterator[SliceRecords]:
        """Yield the records of all slices in order, small slices combined."""
        if self._kept is not None and self._kept.has(slices, columns):
            yield self._kept.slice
            return
        tables: list[pa.Table] = []
        rows = 0
        for name in slices:
            tables.append(read_slice(self._slice_path(name), None if columns is None else list(columns)))
            rows += len(tables[-1])
            if rows >= RUN:
                yield _joined(tables)
                tables, rows = [], 0
        if tables:
            yield _joined(tables)


class HistoryAt:
    """Port `History` for one state of the chain."""

    def __init__(self, history: DatasetHistory, state: ChainState) -> None:
        """Use `history` at `state`."""
        self._history = history
        self._state = state

    def seen(self, key: Strings) -> KeyIndex:
        """Return all keys that were ever appended."""
        return self._history.seen(self._state, key)

    def current(self, key: Strings, keys: Keys | None = None) -> pa.Table:
        """Return the last record of each key, or of those among `keys`, unless it was retracted."""
        return self._history.rows(self._state, key).current(keys)


def _without_numbers(records: pa.Table, vocab: DatasetVocabulary) -> pa.Table:
    """Return records without offset and system time."""
    dropped = {vocab.offset_column, vocab.system_time_column}
    return records.select([name for name in records.column_names if name not in dropped])


def _joined(tables: list[pa.Table]) -> SliceRecords:
    records = tables[0] if len(tables) == 1 else pa.concat_tables(tables, promote_options="permissive")
    return SliceRecords(records=records.combine_chunks())
