"""The four system columns of every record, before its own columns (spec: Common Data Schema; wire-facts §5.1).

They are `offset`, `op` (the operation type, +A, -R, -C or +C, encoded as `Operation`), `system_time` and `event_time`.
"""

from enum import IntEnum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.stored_types import TIMESTAMP, in_unit, stored_type
from odf_common.errors import InvalidInput
from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.scalars import Timestamp

OPERATION: Final = 1  # position of the operation among the columns


class Operation(IntEnum):
    """Values of the column `op`: what a record does to earlier ones (RFC-015)."""

    APPEND = 0
    RETRACT = 1
    CORRECT_FROM = 2
    CORRECT_TO = 3


def check_corrections(operations: pa.Array | pa.ChunkedArray) -> None:
    """Raise `InvalidInput` unless every -C is directly before its +C, and no +C is alone (RFC-015; wire-facts §5.1).

    `operations` has one integer per record, ordered by offset. The error names the first record, counted from 1, that
    is half a correction.
    """
    ops = operations.to_numpy(zero_copy_only=False)
    is_from, is_to = ops == Operation.CORRECT_FROM, ops == Operation.CORRECT_TO
    lacks_to = is_from & ~np.append(is_to[1:], False)
    lacks_from = is_to & ~np.append(False, is_from[:-1])
    halves = np.flatnonzero(lacks_to | lacks_from)
    if len(halves):
        row = int(halves[0])
        text = "a -C without a +C after it" if is_from[row] else "a +C without a -C before it"
        raise InvalidInput(where=f"record {row + 1}", text=text)


def offset_type(*, signed: bool) -> pa.DataType:
    """Return the type of the offset column: the spec's, or the signed one of the reference implementation."""
    return pa.int64() if signed else pa.uint64()


def operation_type(*, signed: bool) -> pa.DataType:
    """Return the type of the operation column: the spec's, or the signed one of the reference implementation."""
    return pa.int32() if signed else pa.uint8()


def with_system_columns(
    records: pa.Table,
    *,
    ops: pa.Array | None,
    first_offset: int,
    system_time: Timestamp,
    vocab: DatasetVocabulary,
    signed: bool,
) -> pa.Table:
    """Number the records and add the system columns: offset, op, system_time, event_time, then the data.

    `ops` has one `Operation` per record; None means that all are appends. Raises `InvalidInput` if the event time is
    missing, null or not a time, or if the records have a column with the name of another system column.
    """
    conflicts = {vocab.offset_column, vocab.operation_type_column, vocab.system_time_column} & set(
        records.column_names
    )
    if conflicts:
        raise InvalidInput(text="the name is reserved for a system column", where=f"column {min(conflicts)}")
    rows = len(records)
    event_time = _event_time(records, vocab.event_time_column)
    numbers = np.arange(first_offset, first_offset + rows, dtype=np.int64)
    operations = pa.repeat(pa.scalar(0, pa.uint8()), rows) if ops is None else ops
    system = {
        vocab.offset_column: pa.array(numbers).cast(offset_type(signed=signed)),
        vocab.operation_type_column: operations.cast(operation_type(signed=signed)),
        vocab.system_time_column: pa.repeat(pa.scalar(system_time.ms, pa.int64()), rows).cast(TIMESTAMP),
        vocab.event_time_column: event_time,
    }
    fields = [pa.field(name, column.type, nullable=False) for name, column in system.items()]
    data = [name for name in records.column_names if name != vocab.event_time_column]
    columns = [*system.values(), *(records.column(name) for name in data)]
    return pa.Table.from_arrays(
        columns, schema=pa.schema([*fields, *(records.schema.field(n) for n in data)])
    )


def normalize_timestamps(table: pa.Table) -> pa.Table:
    """Convert all timestamps to UTC and a unit that is stored unchanged; those without a zone are taken as UTC."""
    fields = [column.with_type(_normalize(column.type)) for column in table.schema]
    if all(new.type == old.type for new, old in zip(fields, table.schema, strict=True)):
        return table
    return table.cast(pa.schema(fields))


def _normalize(type_: pa.DataType) -> pa.DataType:
    if kind.is_timestamp(type_):
        return stored_type(type_)
    if kind.is_struct(type_):
        return pa.struct([inner.with_type(_normalize(inner.type)) for inner in type_.fields])
    if kind.is_list(type_):
        return pa.list_(type_.value_field.with_type(_normalize(type_.value_type)))
    return type_


def _event_time(records: pa.Table, name: str) -> pa.ChunkedArray:
    where = f"column {name}"
    if name not in records.column_names:
        raise InvalidInput(text="the event time is missing", where=where)
    column = records.column(name)
    if kind.is_timestamp(column.type):
        column = in_unit(column, TIMESTAMP)
    elif kind.is_date64(column.type):
        column = column.cast(pa.date32())
    elif not kind.is_date32(column.type):
        raise InvalidInput(text=f"the event time must be a TIMESTAMP or DATE, not {column.type}", where=where)
    if column.null_count:
        raise InvalidInput(text=f"{column.null_count} records have no event time", where=where)
    return column
