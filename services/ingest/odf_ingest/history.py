"""What a dataset holds, as merging asks for it: kept for one head, brought forward by the slices since.

After a restart it is built from the slices' own columns; with it lost, everything is slower and nothing is wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odf_common.chain.chain import iterate
from odf_common.data.columns import Operation
from odf_common.data.slices import read_slice
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import AddData, ExecuteTransform
from odf_common.metadata.steps import Strings
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_ingest.merge import Merged
from odf_ingest.merge_keys import KeyIndex, key_array

ReadBlock = Callable[[Multihash], bytes]
SlicePath = Callable[[Multihash], Path]


@dataclass(slots=True, kw_only=True)
class _Keys:
    """All keys as of a head."""

    head: Multihash
    index: KeyIndex


@dataclass(slots=True, kw_only=True)
class _Rows:
    """The last record of each key as of a head."""

    head: Multihash
    table: pa.Table


class DatasetHistory:
    """What one dataset holds; used by one thread at a time."""

    def __init__(self, read_block: ReadBlock, slice_path: SlicePath) -> None:
        """Begin with nothing known; blocks and slices are read as they are needed."""
        self._read_block = read_block
        self._slice_path = slice_path
        self._keys: dict[Strings, _Keys] = {}
        self._rows: dict[Strings, _Rows] = {}

    def at(self, head: Multihash, vocab: DatasetVocabulary) -> "HistoryAt":
        """Return what the dataset holds as of a head."""
        return HistoryAt(self, head, vocab)

    def advance(self, before: Multihash, after: Multihash, merged: Merged) -> None:
        """Take in what was appended to `before`; only that lies between it and `after`."""
        for key, keys in self._keys.items():
            if keys.head == before:
                if len(merged.records):
                    fresh = merged.keys
                    if fresh is None:
                        _, fresh = keys.index.fresh(key_array(merged.records, key))
                    keys.index.add(fresh)
                keys.head = after
        for key, rows in self._rows.items():
            if rows.head == before:
                ops = merged.ops
                if ops is None:
                    ops = pa.repeat(pa.scalar(0, pa.uint8()), len(merged.records))
                rows.table = _last_of_each(rows.table, merged.records, ops, key)
                rows.head = after

    def keys(self, head: Multihash, key: Strings) -> KeyIndex:
        """Return all keys up to a head."""
        known = self._keys.get(key)
        if known is None or known.head != head:
            slices = self._slices(head, None if known is None else known.head)
            if known is None or slices is None:
                known = _Keys(head=head, index=KeyIndex())
                slices = self._slices(head, None)
            for name in slices or ():
                table = read_slice(self._slice_path(name), list(key))
                _, fresh = known.index.fresh(key_array(table, key))
                known.index.add(fresh)
            known.head = head
            self._keys[key] = known
        return known.index

    def rows(self, head: Multihash, key: Strings, vocab: DatasetVocabulary) -> pa.Table:
        """Return the last record of each key up to a head, without those that were retracted."""
        known = self._rows.get(key)
        if known is None or known.head != head:
            slices = self._slices(head, None if known is None else known.head)
            if known is None or slices is None:
                known = _Rows(head=head, table=pa.table({}))
                slices = self._slices(head, None)
            for name in slices or ():
                table = read_slice(self._slice_path(name))
                ops = table.column(vocab.operation_type_column).combine_chunks().cast(pa.uint8())
                system = (vocab.offset_column, vocab.operation_type_column, vocab.system_time_column)
                records = table.drop_columns(list(system))
                known.table = _last_of_each(known.table, records, ops, key)
            known.head = head
            self._rows[key] = known
        return known.table

    def _slices(self, head: Multihash, since: Multihash | None) -> list[Multihash] | None:
        """Return slices after the block `since`, oldest first; None when that is not in the chain."""
        found: list[Multihash] = []
        for name, decoded, _ in iterate(self._read_block, head):
            if name == since:
                return found[::-1]
            event = decoded.block.event
            if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None:
                found.append(event.new_data.physical_hash)
        return found[::-1] if since is None else None


class HistoryAt:
    """Port `History` for one head."""

    def __init__(self, history: DatasetHistory, head: Multihash, vocab: DatasetVocabulary) -> None:
        """Look into `history` as of `head`."""
        self._history = history
        self._head = head
        self._vocab = vocab

    def seen(self, key: Strings) -> KeyIndex:
        """Return all keys that were ever appended."""
        return self._history.keys(self._head, key)

    def current(self, key: Strings) -> pa.Table:
        """Return for each key its last record, unless that was retracted."""
        return self._history.rows(self._head, key, self._vocab)


def _last_of_each(known: pa.Table, records: pa.Table, ops: pa.Array, key: Strings) -> pa.Table:
    """Return the last record of each key in `known`, then `records`; keys that were taken away are left out."""
    if len(records) == 0:
        return known
    marked = records.append_column("", ops)
    if known.num_columns:
        nothing = pa.repeat(pa.scalar(int(Operation.APPEND), pa.uint8()), len(known))
        before = known.append_column("", nothing)
        marked = pa.concat_tables([before, marked], promote_options="permissive")
    marked = marked.combine_chunks()
    _, from_end = np.unique(key_array(marked, key)[::-1], return_index=True)
    last = marked.take(pa.array(np.sort(len(marked) - 1 - from_end)))
    gone = pa.array([int(Operation.RETRACT), int(Operation.CORRECT_FROM)], pa.uint8())
    is_there = pc.invert(pc.is_in(last.column(""), value_set=gone))
    return last.filter(is_there).drop_columns([""])
