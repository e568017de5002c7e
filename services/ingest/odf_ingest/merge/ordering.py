"""The orders in which merged records are numbered (wire-facts §5.3)."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odf_ingest.history.equality import comparable


def by_event_time(records: pa.Table, column: str) -> pa.Table:
    """Return the records ordered by event time, nulls first, stably; unchanged if already ordered."""
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
    """Return records and operations ordered by key, then operation, stably."""
    order = key_order(records, key, ops)
    return records.take(order), ops.take(order)


def key_order(records: pa.Table, key: Sequence[str], *last: pa.Array) -> pa.Array:
    """Return the indices of records ordered by key, then by the columns `last`, stably."""
    columns = [*(comparable(records.column(name).combine_chunks()) for name in key), *last]
    names = [str(number) for number in range(len(columns))]
    table = pa.Table.from_arrays(columns, names=names)
    return pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
