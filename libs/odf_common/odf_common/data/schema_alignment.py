"""Aligns new records with the dataset's existing schema, whichever implementation began it.

Only what leaves every value unchanged is taken from the dataset: whether a column is required, the integer types of
offset and operation, and the unit of timestamps. All other differences are left to `check_evolution`.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.stored_types import PER_SECOND, as_stored, in_unit, stored_schema, stored_type
from odf_common.errors import InvalidInput
from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.scalars import NANOS, Timestamp


def aligned_schema(
    record_schema: pa.Schema, dataset_schema: pa.Schema, vocab: DatasetVocabulary
) -> pa.Schema:
    """Return the stored form of `found`, aligned to the schema `known` of a dataset; new columns stay."""
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
    """Return the records aligned to the schema of a dataset; finer timestamps are cut to its unit by `cut`.

    Raises `InvalidInput` naming a column with nulls that is required in the dataset.
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
    """Return `known`, followed by the columns that only `found` has, each of them optional."""
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
    """Return stored values as another type of the same shape; Arrow's cast cannot make nested fields required."""
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
    """Raise `InvalidInput` with the first time that is outside of what the unit can count, as nanoseconds can."""
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
