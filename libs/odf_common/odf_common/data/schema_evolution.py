"""Schemas of slices: conversion from and to events, permitted changes, and alignment of records.

In events, schemas are bare FlatBuffers: the IPC `Schema` table without the enclosing message (wire-facts §1.1,
§1.6, §5.5, 22).

Alignment adapts records to the schema of a dataset that any implementation may have begun. It changes only what leaves
every value as it is: whether a column is required, the integer types of offset and operation, and the unit of
timestamps. All other differences are left to `check_evolution`.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.columns import (
    PER_SECOND,
    as_stored,
    compared_schema,
    compared_type,
    in_unit,
    stored_schema,
    stored_type,
)
from odf_common.data.ddl import type_to_ddl
from odf_common.data.odf_schema import to_arrow
from odf_common.errors import InvalidInput
from odf_common.metadata.events import DatasetVocabulary, SetDataSchema
from odf_common.metadata.scalars import NANOS, Timestamp

OUTGROWN: Final = (
    "a column keeps its type, so put larger numbers into a new column (a source does by preprocess), or into a new "
    "dataset with the history (guide to ingest: Numbers that outgrow their column)"
)


def schema_to_event(schema: pa.Schema) -> SetDataSchema:
    """Return the event that declares this schema for slices, in Arrow's form, which all versions can read."""
    return SetDataSchema(raw_arrow_schema=write_schema(stored_schema(schema)))


def schema_of_event(event: SetDataSchema) -> pa.Schema:
    """Return the schema that an event declares in either form; raises `InvalidInput` if it is missing or malformed."""
    if event.schema is not None:
        return to_arrow(event.schema)
    if event.raw_arrow_schema is None:
        raise InvalidInput(
            text="the event has neither an Arrow schema nor an ODF schema", where="SetDataSchema"
        )
    return read_schema(event.raw_arrow_schema)


def check_evolution(old: pa.Schema, new: pa.Schema) -> bool:
    """Return whether `new` differs from `old`; raises `InvalidInput` with the column if the change is not permitted.

    Optional columns may be added, and columns may be reordered. Layouts with the same stored form do not differ.
    """
    _check_fields(tuple(old), tuple(new), "")
    return not _is_same(old, new)


def with_optionality_of(old: pa.Schema, new: pa.Schema) -> pa.Schema:
    """Return `old` with all columns, including nested ones, as optional or required as in `new`."""
    return pa.schema(_as_optional(tuple(old), tuple(new)))


def _as_optional(old: Sequence[pa.Field], new: Sequence[pa.Field]) -> list[pa.Field]:
    stated = {column.name: column for column in new}
    return [
        column if column.name not in stated else _as_optional_as(column, stated[column.name])
        for column in old
    ]


def _as_optional_as(old: pa.Field, new: pa.Field) -> pa.Field:
    before, after = compared_type(old.type), compared_type(new.type)
    if kind.is_struct(before) and kind.is_struct(after):
        before = pa.struct(_as_optional(before.fields, after.fields))
    elif kind.is_list(before) and kind.is_list(after):
        before = pa.list_(_as_optional_as(before.value_field, after.value_field))
    return pa.field(old.name, before, new.nullable)


def _is_same(old: pa.Schema, new: pa.Schema) -> bool:
    return bool(compared_schema(old).equals(compared_schema(new), check_metadata=False))


def _check_fields(old: Sequence[pa.Field], new: Sequence[pa.Field], parent: str) -> None:
    before = {column.name: column for column in old}
    after = {column.name: column for column in new}
    for column in new if len(after) < len(new) else ():
        if sum(other.name == column.name for other in new) > 1:
            raise InvalidInput(text="is duplicated", where=f"column {parent}{column.name}")
    for name, column in before.items():
        if name not in after:
            raise InvalidInput(text="cannot be removed from the schema", where=f"column {parent}{name}")
        _check_field(column, after[name], f"{parent}{name}")
    for name, column in after.items():
        if name not in before and not column.nullable:
            raise InvalidInput(
                text="is new and required; earlier records would have no value",
                where=f"column {parent}{name}",
            )


def _check_field(old: pa.Field, new: pa.Field, name: str) -> None:
    if old.nullable != new.nullable:
        was, now = ("optional", "required") if old.nullable else ("required", "optional")
        raise InvalidInput(text=f"was {was} and cannot become {now}", where=f"column {name}")
    before, after = compared_type(old.type), compared_type(new.type)
    if kind.is_struct(before) and kind.is_struct(after):
        _check_fields(before.fields, after.fields, f"{name}.")
    elif kind.is_list(before) and kind.is_list(after):
        _check_field(before.value_field, after.value_field, f"{name}[]")
    elif before != after:
        remedy = f"; {OUTGROWN}" if _is_number(before) and _is_number(after) else ""
        text = f"was {type_to_ddl(before)} and cannot become {type_to_ddl(after)}{remedy}"
        raise InvalidInput(text=text, where=f"column {name}")


def _is_number(type_: pa.DataType) -> bool:
    return bool(kind.is_integer(type_) or kind.is_floating(type_) or kind.is_decimal(type_))


_FRAME_BYTES: Final = 8  # continuation marker, length of the message
_HEADER_SLOT: Final = 2  # of Message: version, header_type, header, bodyLength
_ALIGNMENT: Final = 8
# A Message without a body, followed by its header: root offset 16; vtable of 10 bytes for a table of 12 (version +4,
# header_type +6, header +8); then the table, whose header offset is still to be set.
_MESSAGE: Final = struct.pack("<IH5HiHBBII", 16, 0, 10, 12, 4, 6, 8, 10, 4, 1, 0, 0, 0)
_HEADER_AT: Final = 24  # bytes into _MESSAGE


def write_schema(schema: pa.Schema) -> bytes:
    """Return the schema as a bare FlatBuffers table without metadata; equal schemas give equal bytes."""
    message: bytes = schema.remove_metadata().serialize().to_pybytes()[_FRAME_BYTES:]
    table = _uint32(message, 0)
    vtable = table - struct.unpack_from("<i", message, table)[0]
    slot = table + struct.unpack_from("<H", message, vtable + 4 + 2 * _HEADER_SLOT)[0]
    header = slot + _uint32(message, slot)
    first = min(header, header - struct.unpack_from("<i", message, header)[0])
    cut = first - first % _ALIGNMENT
    return struct.pack("<II", _ALIGNMENT + header - cut, 0) + message[cut:]


def read_schema(raw: bytes) -> pa.Schema:
    """Return the schema in a bare FlatBuffers table; raises `InvalidInput` if the bytes are not one."""
    if len(raw) < _ALIGNMENT or _uint32(raw, 0) >= len(raw):
        raise InvalidInput(text=f"{len(raw)} bytes are not an Arrow schema", where="SetDataSchema")
    message = bytearray(_MESSAGE)
    struct.pack_into("<I", message, _HEADER_AT, len(_MESSAGE) - _HEADER_AT + _uint32(raw, 0))
    message += raw
    message += bytes(-len(message) % _ALIGNMENT)
    framed = struct.pack("<iI", -1, len(message)) + message
    try:
        return pa.ipc.read_schema(pa.py_buffer(framed)).remove_metadata()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise InvalidInput(text=f"not an Arrow schema: {error}", where="SetDataSchema") from error


def _uint32(raw: bytes, position: int) -> int:
    return int(struct.unpack_from("<I", raw, position)[0])


def aligned_schema(
    record_schema: pa.Schema, dataset_schema: pa.Schema, vocab: DatasetVocabulary
) -> pa.Schema:
    """Return the stored form of `record_schema`, aligned to `dataset_schema`; new columns stay."""
    before = {column.name: column for column in stored_schema(dataset_schema)}
    numbers = {vocab.offset_column, vocab.operation_type_column}
    fields = []
    for column in stored_schema(record_schema):
        old = before.get(column.name, column)
        is_number = column.name in numbers and kind.is_integer(old.type) and kind.is_integer(column.type)
        fields.append(old if is_number else _continue_field(column, old))
    return pa.schema(fields)


Cut = Callable[[pa.Array, pa.DataType], pa.Array]  # timestamps in a unit that may be coarser


def align_to_schema(
    records: pa.Table, dataset_schema: pa.Schema, vocab: DatasetVocabulary, cut: Cut = in_unit
) -> pa.Table:
    """Return the records aligned to the schema of a dataset; `cut` converts timestamps to the dataset's unit.

    Raises `InvalidInput` with the column if it contains nulls but is required in the dataset.
    """
    target = aligned_schema(records.schema, dataset_schema, vocab)
    fields, columns = [], []
    for column, expected in zip(records.columns, target, strict=True):
        where = f"column {expected.name}"
        aligned = column
        if stored_type(column.type) != expected.type:
            aligned = _cast_nested(
                as_stored(pa.table([column], [expected.name])).column(0).combine_chunks(),
                expected.type,
                where,
                cut,
            )
        _check_nulls(aligned.null_count, expected, where)
        columns.append(aligned)
        fields.append(expected.with_type(aligned.type))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def with_new_columns(dataset_schema: pa.Schema, record_schema: pa.Schema) -> pa.Schema:
    """Return `dataset_schema` followed by the columns that only `record_schema` has, as optional columns."""
    names = set(dataset_schema.names)
    new = [field for field in stored_schema(record_schema) if field.name not in names]
    return pa.schema([*dataset_schema, *(pa.field(field.name, field.type, nullable=True) for field in new)])


def _continue_field(new: pa.Field, old: pa.Field) -> pa.Field:
    return pa.field(new.name, _continued_type(new.type, old.type), old.nullable)


def _continued_type(new: pa.DataType, old: pa.DataType) -> pa.DataType:
    if kind.is_timestamp(new) and kind.is_timestamp(old):
        return old
    if kind.is_struct(new) and kind.is_struct(old):
        before = {inner.name: inner for inner in old.fields}
        return pa.struct([_continue_field(inner, before.get(inner.name, inner)) for inner in new.fields])
    if kind.is_list(new) and kind.is_list(old):
        return pa.list_(_continue_field(new.value_field, old.value_field))
    return new


def _cast_nested(values: pa.Array, expected: pa.DataType, where: str, cut: Cut) -> pa.Array:
    """Return values as another type of the same structure; Arrow's cast cannot make nested fields required."""
    if values.type == expected:
        return values
    if kind.is_struct(expected):
        return _as_struct(values, expected, where, cut)
    if kind.is_list(expected):
        _check_nulls(values.flatten().null_count, expected.value_field, f"{where}[]")
        items = _cast_nested(values.values, expected.value_type, f"{where}[]", cut)
        return pa.Array.from_buffers(
            expected, len(values), values.buffers()[:2], offset=values.offset, children=[items]
        )
    if kind.is_timestamp(expected):
        _require_countable(values, expected, where)
        return cut(values, expected)
    try:
        return values.cast(expected)
    except pa.ArrowException as error:
        raise InvalidInput(text=str(error), where=where) from error


def _require_countable(values: pa.Array, expected: pa.DataType, where: str) -> None:
    """Raise `InvalidInput` with the first time that is out of the range of the unit, such as nanoseconds."""
    ratio = PER_SECOND[expected.unit] // PER_SECOND[values.type.unit]
    if ratio > 1:
        numbers, most = values.cast(pa.int64()), np.iinfo(np.int64).max // ratio
        others = numbers.filter(pc.or_(pc.less(numbers, -most), pc.greater(numbers, most)))
        if len(others):
            time = Timestamp(others[0].as_py() * (NANOS // PER_SECOND[values.type.unit]))
            text = f"{time} is outside of 1677 to 2262, the years of a column in {expected.unit}: leave it out by WHERE"
            raise InvalidInput(text=text, where=where)


def _as_struct(values: pa.Array, expected: pa.StructType, where: str, cut: Cut) -> pa.Array:
    is_there = values.is_valid()
    children = []
    for index, inner in enumerate(expected.fields):
        child, name = values.field(index), f"{where}.{inner.name}"
        _check_nulls(child.filter(is_there).null_count, inner, name)
        children.append(_cast_nested(child, inner.type, name, cut))
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(expected.fields), mask=mask)


def _check_nulls(count: int, expected: pa.Field, where: str) -> None:
    if count and not expected.nullable:
        raise InvalidInput(
            text=f"is required in this dataset, and {count} records have no value", where=where
        )
