"""Checks that the records of a slice agree with its block and its chain; the hash is checked elsewhere.

Spec: Common Data Schema; wire-facts §5.1; RFC-015.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.columns import OPERATION, PER_SECOND, Operation, check_corrections, compared_schema
from odf_common.data.schema_evolution import with_optionality_of
from odf_common.data.time_format import first_unknown_year
from odf_common.errors import InvalidInput, VerificationFailed, count_of
from odf_common.metadata.events import OffsetInterval
from odf_common.metadata.scalars import NANOS, Timestamp

SYSTEM_TIME_POSITION: Final = 2
SYSTEM_COLUMNS: Final = 4  # offset, operation, system time, event time: all required
SCHEMA: Final = "schema-mismatch"
OFFSETS: Final = "offsets-mismatch"
OPERATIONS: Final = "operation-invalid"
CORRECTION: Final = "correction-incomplete"
NULL: Final = "system-column-null"
YEARS: Final = "time-out-of-range"
SYSTEM_TIME_MISMATCH: Final = "system-time-mismatch"


class RecordsDiffer(VerificationFailed):
    """The records of a slice differ from what the chain declares; `kind` is one of the constants above."""

    MESSAGE = "{text}"

    kind: str
    text: str


def check_records(
    table: pa.Table, interval: OffsetInterval, schema: pa.Schema | None, system_time: Timestamp | None
) -> None:
    """Raise `RecordsDiffer` unless the records have the declared schema and offsets, and valid system columns.

    Corrections must be complete, years within the range that every reader supports, and no record later than its block,
    whose time is `system_time` (None if there is no block yet). Whether columns are optional is not compared, because
    files of other implementations are stricter than their schemas.
    """
    if schema is not None:
        _check_schema(table.schema, schema)
    _check_offsets(table, interval)
    for column, name in zip(table.columns[:SYSTEM_COLUMNS], table.column_names, strict=False):
        if column.null_count:
            raise RecordsDiffer(kind=NULL, text=f"column {name} has {count_of(column.null_count, 'null')}")
    if table.num_columns > OPERATION:
        _check_operations(table.column(OPERATION))
    _check_years(table, interval.start)
    if system_time is not None and table.num_columns > SYSTEM_TIME_POSITION:
        _check_system_times(table.column(SYSTEM_TIME_POSITION), system_time, interval.start)


def _check_schema(actual: pa.Schema, declared: pa.Schema) -> None:
    actual_schema, expected = compared_schema(actual), compared_schema(declared)
    if with_optionality_of(expected, actual_schema).equals(actual_schema):
        return
    for have, want in zip(actual_schema, expected, strict=False):
        if have.name != want.name or have.type != want.type:
            raise RecordsDiffer(
                kind=SCHEMA, text=f"column {have.name} {have.type}, but {want.name} {want.type} is declared"
            )
    raise RecordsDiffer(
        kind=SCHEMA, text=f"has {len(actual_schema)} columns, but {len(expected)} are declared"
    )


def _check_offsets(table: pa.Table, interval: OffsetInterval) -> None:
    start, end = interval.start, interval.end
    declared = f"declared {start}–{end}"
    if table.num_columns == 0 or table.num_rows != interval.records:
        raise RecordsDiffer(kind=OFFSETS, text=f"{declared}, but has {table.num_rows} records")
    offsets = table.column(0)
    if not kind.is_integer(offsets.type) or offsets.null_count:
        raise RecordsDiffer(
            kind=OFFSETS, text=f"{declared}, but column {table.column_names[0]} has no integers"
        )
    values = offsets.to_numpy()
    if end > np.iinfo(values.dtype).max:
        raise RecordsDiffer(kind=OFFSETS, text=f"{declared}, but offsets are {offsets.type}")
    # Compared in their own type: as floats, large numbers would be equal to their neighbours.
    wrong = np.flatnonzero(values != np.arange(start, end + 1, dtype=values.dtype))
    if len(wrong):
        row = int(wrong[0])
        raise RecordsDiffer(kind=OFFSETS, text=f"{declared}, but record {row + 1} has {offsets[row]}")


def _check_operations(operations: pa.ChunkedArray) -> None:
    if not kind.is_integer(operations.type):
        raise RecordsDiffer(kind=OPERATIONS, text=f"operations are {operations.type}")
    values = operations.to_numpy()
    low, high = values.min(initial=0), values.max(initial=0)
    if low < min(Operation) or high > max(Operation):
        raise RecordsDiffer(kind=OPERATIONS, text=f"operations from {low} to {high}, not all of them known")
    try:
        check_corrections(operations)
    except InvalidInput as error:
        raise RecordsDiffer(kind=CORRECTION, text=str(error)) from error


def _check_years(table: pa.Table, start: int) -> None:
    found = first_unknown_year(table)
    if found is not None:
        row, error = found
        raise RecordsDiffer(kind=YEARS, text=f"offset {start + row}: {error}") from error


def _check_system_times(column: pa.ChunkedArray, block: Timestamp, start: int) -> None:
    """Raise `RecordsDiffer` if a record is later than its block, compared in milliseconds.

    Blocks may have nanoseconds where records have only milliseconds (wire-facts §5.4).
    """
    if not kind.is_timestamp(column.type):
        raise RecordsDiffer(kind=SYSTEM_TIME_MISMATCH, text=f"system times are {column.type}")
    latest = block.ns * PER_SECOND[column.type.unit] // NANOS
    is_later = pc.greater(column.cast(pa.int64()), latest)
    row = pc.index(is_later, True).as_py()
    if row >= 0:
        time = Timestamp(column[row].value * (NANOS // PER_SECOND[column.type.unit]))
        text = f"offset {start + row} has the system time {time}, but its block {block}"
        raise RecordsDiffer(kind=SYSTEM_TIME_MISMATCH, text=text)
