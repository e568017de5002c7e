"""Required fields of structs that are null themselves.

Such a field has no value, and nothing is stored; but Parquet's writer takes it for a null that is not allowed.
"""

import pyarrow as pa
import pyarrow.types as kind


def without_nulls_behind_nulls(table: pa.Table) -> pa.Table:
    """Return the same records, with required fields of null structs not null; nulls anywhere else stay."""
    columns = [
        pa.chunked_array([_cleared(chunk) for chunk in column.chunks], column.type)
        if _has_required_parts(column.type)
        else column
        for column in table.columns
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _has_required_parts(type_: pa.DataType) -> bool:
    if kind.is_list(type_):
        return _has_required_parts(type_.value_type)
    return kind.is_struct(type_) and any(
        not part.nullable or _has_required_parts(part.type) for part in type_.fields
    )


def _cleared(values: pa.Array) -> pa.Array:
    if not _has_required_parts(values.type):
        return values
    if kind.is_list(values.type):
        return _list_of(values, values.buffers()[0], _cleared(values.values))
    is_there = values.is_valid()
    parts = []
    for index, field in enumerate(values.type.fields):
        part = _cleared(values.field(index))
        if not field.nullable and not part.filter(is_there).null_count:
            part = _always_there(part)
        parts.append(part)
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(parts, fields=list(values.type.fields), mask=mask)


def _always_there(values: pa.Array) -> pa.Array:
    """Return the values with their nulls replaced by whatever the buffers have there."""
    if values.null_count == 0:
        return values
    if isinstance(values, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(values.type, _always_there(values.storage))
    if kind.is_struct(values.type):
        parts = [values.field(index) for index in range(values.type.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=list(values.type.fields))
    if kind.is_list(values.type):
        return _list_of(values, None, values.values)
    buffers = [None, *values.buffers()[1:]]
    return pa.Array.from_buffers(values.type, len(values), buffers, offset=values.offset)


def _list_of(values: pa.Array, validity: pa.Buffer | None, items: pa.Array) -> pa.Array:
    buffers = [validity, values.buffers()[1]]
    return pa.Array.from_buffers(values.type, len(values), buffers, offset=values.offset, children=[items])
