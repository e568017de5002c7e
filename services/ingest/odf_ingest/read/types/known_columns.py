"""Continuation of a dataset's columns in a batch without a declared schema.

They keep their types, and new ones follow.
"""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.stored_types import stored_type
from odf_common.errors import InvalidInput

MAX_INFERRED_COLUMNS: Final = 5_000
"""As many as a query may have; fields at any depth count."""


def extend_columns(base: pa.Schema | None, inferred: pa.Schema) -> pa.Schema:
    """Return the columns of `base`, then those that only `inferred` has, in stored types.

    Structs of `base` get the additional fields of `inferred`. Types without any value, such as null, are left out.
    Raises `InvalidInput` if that makes more than `MAX_INFERRED_COLUMNS`.
    """
    before = {} if base is None else {column.name: column for column in base}
    columns = [_continue(column, inferred) for column in before.values()]
    new = ((column.name, _with_values(column.type)) for column in inferred if column.name not in before)
    columns += [pa.field(name, stored_type(type_)) for name, type_ in new if type_ is not None]
    count = _count(columns)
    if count > MAX_INFERRED_COLUMNS and count > _count(before.values()):
        raise InvalidInput(
            text=f"the records have {count} columns and fields, and at most {MAX_INFERRED_COLUMNS} are inferred, since "
            "keys that are values would never end; declare those to keep in `schema`: other keys are left out. "
            "Declare the column of an object of Json or NdJson as STRING to keep its text"
        )
    return pa.schema(columns)


def _count(columns: Iterable[pa.Field]) -> int:
    """Return the number of columns, and of fields at any depth."""
    return sum(1 + _count(map(column.type.field, range(column.type.num_fields))) for column in columns)


def _continue(column: pa.Field, inferred: pa.Schema) -> pa.Field:
    index = inferred.get_field_index(column.name)
    new = None if index < 0 else _with_values(inferred.field(index).type)
    return column if new is None else column.with_type(_union(column.type, stored_type(new)))


def _union(old: pa.DataType, new: pa.DataType) -> pa.DataType:
    """Return the old type, extended with the new type's additional fields."""
    if kind.is_struct(old) and kind.is_struct(new):
        after = {inner.name: inner for inner in new.fields}
        names = {inner.name for inner in old.fields}
        fields = [
            inner.with_type(_union(inner.type, after[inner.name].type)) if inner.name in after else inner
            for inner in old.fields
        ]
        return pa.struct([*fields, *(inner for inner in new.fields if inner.name not in names)])
    if kind.is_list(old) and kind.is_list(new):
        element = old.value_field
        return pa.list_(element.with_type(_union(element.type, new.value_type)))
    return old


def _with_values(type_: pa.DataType) -> pa.DataType | None:
    """Return the type without parts that have no value; None if nothing is left."""
    if kind.is_null(type_):
        return None
    if kind.is_struct(type_):
        parts = [(inner.name, _with_values(inner.type)) for inner in type_.fields]
        left = [(name, part) for name, part in parts if part is not None]
        return pa.struct(left) if left else None
    if kind.is_list(type_):
        element = _with_values(type_.value_type)
        return None if element is None else pa.list_(element)
    return type_
