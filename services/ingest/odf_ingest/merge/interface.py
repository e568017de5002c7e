"""The history that merge strategies read, their result, and the orders of its records (wire-facts §5.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from odf_common.metadata.scalars import Strings
from odf_ingest.history.keys import Keys, comparable


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The records to append, in offset order; `ops` has the operation of each record, None if all are +A.

    `keys` has the sorted, distinct keys of all records by their key columns, if the strategy has computed them.
    """

    records: pa.Table
    ops: pa.Array | None = None
    keys: Mapping[Strings, Keys] = field(default_factory=dict)


class History(Protocol):
    """The dataset's content before the merge. Records with a null key column are left out."""

    def fresh(self, key: Strings, keys: Keys) -> tuple[npt.NDArray[np.int64], Keys]:
        """Return the keys that the dataset never had: the index of the first record of each, ascending; and the keys.

        The returned keys are sorted and distinct.
        """

    def current(self, key: Strings, keys: Keys | None = None) -> pa.Table:
        """Return the last record of each key, or of those among `keys` (sorted, distinct), unless it was retracted.

        The columns are event time and data; without records the table has no columns.
        """


def by_event_time(records: pa.Table, column: str) -> pa.Table:
    """Return the records in a stable order by event time, nulls first."""
    timestamps = records.column(column).combine_chunks()
    if timestamps.null_count == 0:
        width = pa.int32() if timestamps.type == pa.date32() else pa.int64()
        values = timestamps.view(width).to_numpy(zero_copy_only=True)
        if len(values) < 2 or bool(np.all(values[1:] >= values[:-1])):
            return records
        return records.take(pa.array(np.argsort(values, kind="stable")))
    order = pc.sort_indices(timestamps, sort_keys=[("", "ascending", "at_start")])
    return records.take(order)


def by_key(records: pa.Table, ops: pa.Array, key: Sequence[str]) -> tuple[pa.Table, pa.Array]:
    """Return records and operations in a stable order by key, then operation."""
    order = key_order(records, key, ops)
    return records.take(order), ops.take(order)


def key_order(records: pa.Table, key: Sequence[str], *last: pa.Array) -> pa.Array:
    """Return the indices that put records in a stable order by key, then by the columns `last`."""
    columns = [*(comparable(records.column(name).combine_chunks()) for name in key), *last]
    names = [str(number) for number in range(len(columns))]
    table = pa.Table.from_arrays(columns, names=names)
    return pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
