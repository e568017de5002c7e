"""The four system columns of every record (spec: Common Data Schema), and the types of columns as they are stored.

The columns are `offset`, `op` (the operation type, +A, -R, -C or +C, encoded as `Operation`), `system_time` and
`event_time`; they come before the record's own columns. The stored type is the type that a reader finds in a file
without Arrow-specific metadata. Hashes and schemas use stored types only, so that they are the same for every reader
(wire-facts §4.6, §5.1).
"""

from enum import IntEnum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.errors import InvalidInput
from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.scalars import NANOS, Timestamp

TIMESTAMP: Final = pa.timestamp("ms", "UTC")  # of system time and event time
PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": NANOS}
TIME_UNITS: Final = tuple(PER_SECOND)  # by number of `TimeUnit`, ever finer
_MAX_DECIMAL128: Final = 38  # digits; more need 256 bits


def stored_type(type_: pa.DataType) -> pa.DataType:
    """Return the type that a column has after it was stored: timestamps are in UTC, and seconds become milliseconds."""
    if kind.is_dictionary(type_):
        return stored_type(type_.value_type)
    if kind.is_struct(type_):
        return pa.struct([_stored_field(inner) for inner in type_.fields])
    if kind.is_list(type_) or kind.is_large_list(type_) or kind.is_fixed_size_list(type_):
        return pa.list_(_stored_field(type_.value_field).with_name("element"))
    return _stored_leaf(type_)


def in_unit(values: pa.Array | pa.ChunkedArray, target: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return timestamps or times of day in another unit, rounded down if the unit is coarser, even before 1970.

    Rounding down moves no time into a later second or day, and preserves the order. Raises `pa.ArrowInvalid` if a time
    is out of the range of the unit.
    """
    if TIME_UNITS.index(target.unit) >= TIME_UNITS.index(values.type.unit):
        return values.cast(target)
    result = values.cast(target, safe=False)  # Arrow cuts towards 1970
    if kind.is_timestamp(target) and _has_before_1970(values):
        is_later = pc.greater(result.cast(values.type), values)
        result = pc.subtract(result.cast(pa.int64()), is_later.cast(pa.int64())).cast(target)
    return result


def _has_before_1970(values: pa.Array | pa.ChunkedArray) -> bool:
    first = pc.min(values.cast(pa.int64())).as_py()
    return first is not None and first < 0


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that records have after they were stored, without metadata."""
    return pa.schema([_stored_field(column) for column in schema])


def compared_type(type_: pa.DataType) -> pa.DataType:
    """Return the type by which schemas are compared: the stored type, or that of an extension's (UUID) storage."""
    type_ = stored_type(type_)
    if isinstance(type_, pa.BaseExtensionType):
        return compared_type(type_.storage_type)
    if kind.is_struct(type_):
        return pa.struct([inner.with_type(compared_type(inner.type)) for inner in type_.fields])
    if kind.is_list(type_):
        return pa.list_(type_.value_field.with_type(compared_type(type_.value_type)))
    return type_


def compared_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the types of `compared_type`, without metadata."""
    return pa.schema(
        [pa.field(column.name, compared_type(column.type), column.nullable) for column in schema]
    )


def as_stored(table: pa.Table) -> pa.Table:
    """Cast the columns whose values would change when they are stored; columns with another layout only stay."""
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        target = stored_type(column.type)
        columns.append(column if _same_values(column.type, target) else _cast(column, target, name))
    fields = [pa.field(old.name, c.type, old.nullable) for old, c in zip(table.schema, columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _cast(column: pa.ChunkedArray, target: pa.DataType, name: str) -> pa.ChunkedArray:
    try:
        return column.cast(target)
    except pa.ArrowException as error:
        raise InvalidInput(text=f"cannot be stored as {target}: {error}", where=f"column {name}") from error


def _same_values(type_: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a column of `type_` is stored and hashed exactly like a column of `target`."""
    if type_ == target or kind.is_dictionary(type_):
        return type_ == target or _same_values(type_.value_type, target)
    if kind.is_nested(type_):
        return False
    text = kind.is_string(target) and (kind.is_large_string(type_) or kind.is_string_view(type_))
    raw = kind.is_binary(target) and (kind.is_large_binary(type_) or kind.is_binary_view(type_))
    return bool(text or raw)


def decimal_type(precision: int, scale: int) -> pa.DataType:
    """Return the narrowest type that can store decimals with this number of digits: 128 or 256 bits."""
    return (pa.decimal128 if precision <= _MAX_DECIMAL128 else pa.decimal256)(precision, scale)


def _stored_field(column: pa.Field) -> pa.Field:
    return pa.field(column.name, stored_type(column.type), column.nullable)


def _stored_leaf(type_: pa.DataType) -> pa.DataType:
    if kind.is_timestamp(type_):
        return pa.timestamp("ms" if type_.unit == "s" else type_.unit, "UTC")
    if kind.is_date64(type_):
        return pa.date32()
    if kind.is_large_string(type_) or kind.is_string_view(type_):
        return pa.string()
    if kind.is_large_binary(type_) or kind.is_binary_view(type_):
        return pa.binary()
    if kind.is_decimal(type_):
        return decimal_type(type_.precision, type_.scale)
    if kind.is_time32(type_):
        return pa.time32("ms")
    return type_


OPERATION: Final = 1  # position of the operation among the columns


class Operation(IntEnum):
    """Values of the column `op`: the effect of a record on earlier records (RFC-015)."""

    APPEND = 0
    RETRACT = 1
    CORRECT_FROM = 2
    CORRECT_TO = 3


def check_corrections(operations: pa.Array | pa.ChunkedArray) -> None:
    """Raise `InvalidInput` unless -C and +C only occur as pairs of consecutive records (RFC-015; wire-facts §5.1).

    `operations` has one integer per record, ordered by offset. The error contains the number, from 1, of the first
    record whose counterpart is missing.
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
    """Add the system columns in front of the data: offset (from `first_offset`), op, system_time, event_time.

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
    """Convert all timestamps to UTC and a unit that can be stored unchanged; those without a time zone are UTC."""
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
