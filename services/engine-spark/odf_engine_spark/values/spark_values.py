"""Conversion of columns to the types for Spark, which `spark_types.spark_type` has chosen."""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.columns import in_unit
from odf_common.errors import InvalidInput

_BYTES: Final = 16  # of a UUID
_LENGTH: Final = 36  # of its string form
_DASHES: Final = (8, 13, 18, 23)
_DIGITS: Final = np.frombuffer(b"0123456789abcdef", np.uint8)


def in_spark(table: pa.Table, target: pa.Schema, where: str = "") -> pa.Table:
    """Return the columns of `target`, with nulls for a missing column; raises `InvalidInput` with the column's name.

    Timestamps that are finer than Spark's microseconds are rounded down.
    """
    columns = []
    for field in target:
        index = table.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.nulls(len(table), field.type))
            continue
        try:
            columns.append(_column(table.column(index), field.type))
        except pa.ArrowException as error:
            place = f"{where}: column {field.name}" if where else f"column {field.name}"
            raise InvalidInput(text=str(error), where=place) from error
    return pa.Table.from_arrays(columns, schema=target)


def _column(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    if column.type == target:
        return column
    return pa.chunked_array([_as(chunk, target) for chunk in column.chunks], target)


def _as(values: pa.Array, target: pa.DataType) -> pa.Array:
    if values.type == target:
        return values
    if kind.is_dictionary(values.type):
        return _as(values.dictionary_decode(), target)
    if kind.is_struct(target):
        parts = [_part(values, inner) for inner in target.fields]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(target.fields), mask=mask)
    if kind.is_list(target):
        values = values.cast(pa.list_(values.type.value_field))
        items, buffers = _as(values.values, target.value_type), values.buffers()[:2]
        return pa.Array.from_buffers(target, len(values), buffers, offset=values.offset, children=[items])
    if isinstance(values, pa.ExtensionArray):
        return _uuid_texts(values.storage)
    return in_unit(values, target) if kind.is_timestamp(target) else values.cast(target)


def _part(values: pa.StructArray, target: pa.Field) -> pa.Array:
    """Return a field of a struct by its name; nulls if the slice was written before the field was added."""
    index = values.type.get_field_index(target.name)
    return pa.nulls(len(values), target.type) if index < 0 else _as(values.field(index), target.type)


def _uuid_texts(values: pa.Array) -> pa.Array:
    """Return UUIDs as strings in canonical form, in lower case."""
    stored = pc.if_else(values.is_valid(), values, pa.scalar(bytes(_BYTES), values.type))
    packed = np.frombuffer(stored.buffers()[1], np.uint8, len(values) * _BYTES, stored.offset * _BYTES)
    packed = packed.reshape(len(values), _BYTES)
    texts = np.full((len(values), _LENGTH), ord("-"), np.uint8)
    places = [index for index in range(_LENGTH) if index not in _DASHES]
    texts[:, places[::2]] = _DIGITS[packed >> 4]
    texts[:, places[1::2]] = _DIGITS[packed & 15]
    ends = np.arange(len(values) + 1, dtype=np.int32) * _LENGTH
    texts_array = pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(texts))
    return pc.if_else(values.is_valid(), texts_array, pa.scalar(None, pa.string()))
