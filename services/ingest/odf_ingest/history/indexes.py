"""Indexes of a dataset, with which a batch costs in proportion to itself: all keys, or the last record of each key.

Both are sorted runs. The newest run with a key has its current record; a retracted one is marked, until no older run is
left that it hides.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odf_common.data.columns import Operation
from odf_common.metadata.steps import Strings
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
        """Add ascending, distinct keys, none of which is in the set; they reach the block `head`."""
        self.store.append(keys, None, head)

    def fresh(self, keys: Keys) -> tuple[npt.NDArray[np.int64], Keys]:
        """Return the index of the first record of each key not in the set, ascending; and those keys, sorted."""
        distinct, first = first_of_each(keys)
        is_new = ~self.holds(distinct)
        return np.sort(first[is_new]), distinct[is_new]


class CurrentRows:
    """The last record of each key; records with a null key column are left out."""

    def __init__(self, key: Strings, store: RunStore | None = None) -> None:
        """Use the runs of `store`; None: start empty, in memory."""
        self._key = key
        self.store = store or RunStore()

    def add(self, records: pa.Table, operation: str, head: str = "") -> None:
        """Add records in offset order; `operation` is the column with their operations; they reach the block `head`."""
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
    """Return for each key of all runs, the oldest first, whether no newer run has it."""
    keys = np.concatenate(runs)
    # A stable sort detects the sorted runs and merges them; the newest of equal keys is the last.
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    is_newest = np.zeros(len(keys), np.bool_)
    is_newest[order[np.append(keys[1:] != keys[:-1], np.ones(min(len(keys), 1), np.bool_))]] = True
    return is_newest
