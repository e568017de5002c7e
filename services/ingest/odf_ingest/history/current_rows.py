"""The last record of each key of a dataset, indexed so that a batch costs in proportion to itself, not to the dataset.

The newest run with a key has its current record; a retracted one is marked, until no older run is left that it hides.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odf_common.data.columns import Operation
from odf_common.metadata.steps import Strings
from odf_ingest.history.keys import Keys, key_array, last_of_each, with_keys
from odf_ingest.history.run_file import Run
from odf_ingest.history.run_store import IS_THERE, RunStore

_GONE: Final = (Operation.RETRACT, Operation.CORRECT_FROM)


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
        rows = rows.drop_columns([operation]).append_column(IS_THERE, pa.array(is_there))
        self.store.append(distinct, rows, head)

    def current(self, keys: Keys | None = None) -> pa.Table:
        """Return the last record of each key, or of `keys`, unless it was retracted; unordered.

        `keys` are distinct and ascending. Without records the table has no columns.
        """
        parts = self._all() if keys is None else self._some(keys)
        if not parts:
            return pa.table({})
        rows = pa.concat_tables(parts, promote_options="permissive")
        is_there = rows.column(IS_THERE)
        rows = rows.drop_columns([IS_THERE])
        if not all(chunk.true_count == len(chunk) for chunk in is_there.chunks):
            rows = rows.filter(is_there)
        return rows.combine_chunks()

    def _some(self, keys: Keys) -> list[pa.Table]:
        parts = []
        for run in reversed(self.store.runs):
            rows = run.find(keys)
            is_here = rows >= 0
            if is_here.any():
                parts.append(run.take(rows[is_here]))
                keys = keys[~is_here]
        return parts

    def _all(self) -> list[pa.Table]:
        runs = self.store.runs
        parts = []
        for number, run in enumerate(runs):
            rows = run.rows()
            hidden = _hidden(run, runs[number + 1 :])
            parts.append(rows if hidden is None else rows.filter(pa.array(~hidden)))
        return parts


def _hidden(run: Run, newer: Sequence[Run]) -> npt.NDArray[np.bool_] | None:
    """Return which rows of a run newer runs replace; None: none."""
    hidden = np.zeros(len(run), np.bool_)
    for other in newer:
        rows = run.find(other.keys())
        hidden[rows[rows >= 0]] = True
    return hidden if hidden.any() else None
