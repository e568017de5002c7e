"""The event time of records: from the data, or the arrival time (spec: Event time; wire-facts §5.1)."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.columns import TIMESTAMP, Operation
from odf_common.errors import InvalidInput
from odf_common.metadata.events import MergeStrategyChangelogStream, MergeStrategyUpsertStream
from odf_common.metadata.scalars import Timestamp
from odf_ingest.prepare.plan import Plan
from odf_ingest.read.types.conversions import convert_column
from odf_ingest.read.types.kinds import TimeFormats

_TAKES_BACK: Final = (int(Operation.RETRACT), int(Operation.CORRECT_FROM))


def with_event_time(
    records: pa.Table, name: str, timestamps: npt.NDArray[np.int64] | pa.Array | None
) -> pa.Table:
    """Return the records with event times in ms. Missing ones are replaced by `timestamps`, one per record, if given.

    Raises `InvalidInput` for a column that is neither a timestamp nor a date.
    """
    if name in records.column_names:
        column = records.column(name)
        if kind.is_null(column.type):
            records = records.drop_columns([name])
        elif kind.is_timestamp(column.type):
            return _fill(_in_milliseconds(records, name), name, timestamps)
        elif kind.is_date(column.type):
            return _fill(records, name, timestamps)
        else:
            text = f"the event time must be a TIMESTAMP or DATE, not {column.type}"
            raise InvalidInput(where=f"column {name}", text=text)
    times = pa.nulls(len(records), TIMESTAMP) if timestamps is None else _as_column(timestamps)
    return records.append_column(name, times)


def _as_column(timestamps: npt.NDArray[np.int64] | pa.Array) -> pa.Array:
    return pa.array(timestamps, pa.int64()).cast(TIMESTAMP)


def _fill(records: pa.Table, name: str, timestamps: npt.NDArray[np.int64] | pa.Array | None) -> pa.Table:
    """Fill null event times from `timestamps`, if given."""
    column = records.column(name)
    if timestamps is None or column.null_count == 0:
        return records
    others = _as_column(timestamps).cast(column.type, safe=False)
    return records.set_column(records.column_names.index(name), name, pc.coalesce(column, others))


def _in_milliseconds(records: pa.Table, name: str) -> pa.Table:
    """Truncate event times to ms, the stored precision, so that they compare equal to stored ones."""
    column = records.column(name)
    if column.type == TIMESTAMP:
        return records
    times = convert_column(column, pa.field(name, TIMESTAMP), TimeFormats())
    return records.set_column(records.column_names.index(name), name, times)


def retractions(plan: Plan, records: pa.Table) -> npt.NDArray[np.int64]:
    """Return the indices of the rows that are a -R or -C; empty unless the merge strategy uses operations."""
    name = plan.vocab.operation_type_column
    has_them = isinstance(plan.source.merge, MergeStrategyChangelogStream | MergeStrategyUpsertStream)
    if not has_them or name not in records.column_names:
        return np.empty(0, np.int64)
    ops = records.column(name)
    if not kind.is_integer(ops.type):
        return np.empty(0, np.int64)
    return np.flatnonzero(pc.is_in(ops, value_set=pa.array(_TAKES_BACK, ops.type)).to_numpy())


def arrival_times(plan: Plan, records: pa.Table, timestamps: npt.NDArray[np.int64]) -> pa.Array:
    """Return the arrival times in ms, which replace missing event times.

    They are null for a -R or -C that gets the event time of the record it retracts.
    """
    mask = np.zeros(len(records), np.bool_)
    if plan.has_envelope or isinstance(plan.source.merge, MergeStrategyChangelogStream):
        mask[retractions(plan, records)] = True
    return pa.array(timestamps, pa.int64(), mask=mask)


def without_times_of_retractions(plan: Plan, records: pa.Table) -> pa.Table:
    """Return the records; a -R or -C has no event time if it gets that of the record it retracts."""
    name = plan.vocab.event_time_column
    rows = retractions(plan, records) if plan.completes_retractions else ()
    if len(rows) == 0:
        return records
    mask = np.zeros(len(records), np.bool_)
    mask[rows] = True
    times = pc.if_else(pa.array(mask), pa.scalar(None, records.column(name).type), records.column(name))
    return records.set_column(records.column_names.index(name), records.schema.field(name), times)


def fill_event_time(records: pa.Table, name: str, timestamp: Timestamp) -> pa.Table:
    """Return the records with `timestamp` in place of null event times."""
    column = records.column(name)
    if column.null_count == 0:
        return records
    value = pa.scalar(timestamp.ms, pa.int64()).cast(TIMESTAMP).cast(column.type, safe=False)
    index = records.column_names.index(name)
    return records.set_column(index, name, pc.fill_null(column, value))


def event_times(records: pa.Table, name: str) -> pa.ChunkedArray:
    """Return the event times in ms since the epoch; dates are midnight UTC."""
    return records.column(name).cast(TIMESTAMP, safe=False).cast(pa.int64())


def max_event_time(records: pa.Table, name: str, latest: int | None = None) -> int | None:
    """Return the greatest event time in ms since the epoch that is at most `latest`; None if there is none."""
    if latest is None:
        # The maximum first: columns are long.
        highest = pc.max(records.column(name))
        times = event_times(
            pa.table({name: pa.chunked_array([pa.array([highest.as_py()], highest.type)])}), name
        )
    else:
        times = event_times(records, name)
        times = times.filter(pc.less_equal(times, latest))
    greatest: int | None = pc.max(times).as_py()
    return greatest
