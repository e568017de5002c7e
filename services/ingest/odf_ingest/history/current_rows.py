"""The last record of each key of a dataset, indexed so that a batch costs in proportion to itself, not to the dataset.

Like `KeyIndex`, it keeps runs sorted by key, each at least twice as long as the next; the newest run with a key has
its current record. Adding n records one batch at a time copies each about log2(n) times.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odf_common.data.columns import Operation
from odf_common.metadata.steps import Strings
from odf_ingest.history.key_index import Keys, key_array, with_keys

_MAX_RUN_BYTES: Final = 1 << 30  # of a merged run: Arrow's strings are limited to 2 GiB
_GONE: Final = (Operation.RETRACT, Operation.CORRECT_FROM)


@dataclass(frozen=True, slots=True)
class _Run:
    """Distinct keys, ascending, and the last record of each; `is_there` is False if it was retracted."""

    keys: Keys
    is_there: npt.NDArray[np.bool_]
    records: pa.Table


class CurrentRows:
    """The last record of each key; records with a null key column are left out."""

    def __init__(self, key: Strings) -> None:
        """Start empty."""
        self._key = key
        self._runs: list[_Run] = []

    def add(self, records: pa.Table, operation: str) -> None:
        """Add records in offset order; `operation` is the column with their operations."""
        records = with_keys(records, self._key)
        if len(records) == 0:
            return
        keys = key_array(records, self._key)
        distinct, from_end = np.unique(keys[::-1], return_index=True)
        last = records.take(pa.array(len(records) - 1 - from_end))
        is_there = ~np.isin(last.column(operation).to_numpy(), _GONE)
        self._runs.append(_Run(distinct, is_there, last.drop_columns([operation])))
        while len(self._runs) > 1 and self._is_short(self._runs[-2], self._runs[-1]):
            self._merge_last()

    def current(self, keys: Keys | None = None) -> pa.Table:
        """Return the last record of each key, or of `keys`, unless it was retracted; unordered.

        `keys` are distinct and ascending. Without records the table has no columns.
        """
        if keys is None:
            return self._all()
        found = []
        for run in reversed(self._runs):
            places = np.searchsorted(run.keys, keys)
            places[places == len(run.keys)] = 0
            is_here = run.keys[places] == keys
            rows = places[is_here]
            found.append(run.records.take(pa.array(rows[run.is_there[rows]])))
            keys = keys[~is_here]
        return _joined(found) if found else pa.table({})

    def _all(self) -> pa.Table:
        while len(self._runs) > 1:
            self._merge_last()
        if not self._runs:
            return pa.table({})
        (run,) = self._runs
        return run.records if run.is_there.all() else run.records.filter(pa.array(run.is_there))

    @staticmethod
    def _is_short(before: _Run, last: _Run) -> bool:
        size: int = before.records.nbytes + last.records.nbytes
        return len(before.keys) < 2 * len(last.keys) and size < _MAX_RUN_BYTES

    def _merge_last(self) -> None:
        last, before = self._runs.pop(), self._runs.pop()
        kept = np.flatnonzero(~_is_in(before.keys, last.keys))
        if not self._runs:
            # The oldest run: no older record is left that a retracted key would have to hide.
            kept = kept[before.is_there[kept]]
            last = _only(last, np.flatnonzero(last.is_there))
        old_keys = before.keys[kept]
        total = len(kept) + len(last.keys)
        if total == 0:
            return
        is_new = np.zeros(total, np.bool_)
        is_new[np.searchsorted(old_keys, last.keys) + np.arange(len(last.keys))] = True
        order = np.empty(total, np.int64)
        order[is_new] = len(before.keys) + np.arange(len(last.keys))
        order[~is_new] = kept
        keys = np.concatenate((before.keys, last.keys))[order]
        is_there = np.concatenate((before.is_there, last.is_there))[order]
        records = _joined([before.records, last.records]).take(pa.array(order))
        self._runs.append(_Run(keys, is_there, records))


def _only(run: _Run, rows: npt.NDArray[np.int64]) -> _Run:
    if len(rows) == len(run.keys):
        return run
    return _Run(run.keys[rows], run.is_there[rows], run.records.take(pa.array(rows)))


def _is_in(keys: Keys, others: Keys) -> npt.NDArray[np.bool_]:
    if len(others) == 0:
        return np.zeros(len(keys), np.bool_)
    places = np.searchsorted(others, keys)
    places[places == len(others)] = 0
    found: npt.NDArray[np.bool_] = others[places] == keys
    return found


def _joined(tables: list[pa.Table]) -> pa.Table:
    """Return the records of all tables; missing columns are null."""
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()
