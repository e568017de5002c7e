"""Converts tables to their declared types, from the types that text formats are parsed to.

Also adds the columns of a batch without a declared schema to those of its dataset, which keep their types.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.columns import stored_type
from odf_common.data.time_format import epoch_digits
from odf_common.errors import InvalidInput
from odf_ingest.read.types.conversions import convert_column, is_convertible
from odf_ingest.read.types.kinds import UUID, TimeFormats
from odf_ingest.read.types.times import epoch_decimal, read_as

MAX_INFERRED_COLUMNS: Final = 5_000
"""Maximum number of columns, the same as in queries. Nested fields are counted too."""


def extend_columns(base: pa.Schema | None, inferred: pa.Schema) -> pa.Schema:
    """Return the columns of `base`, followed by those that only `inferred` has, in stored types.

    Structs of `base` get the additional fields of `inferred`. Types without any value, such as null, are left out.
    Raises `InvalidInput` if there are more than `MAX_INFERRED_COLUMNS`.
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
    """Return the number of columns and nested fields."""
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


_ROWS_PER_PIECE: Final = 4
_REPEATED_VALUES: Final = 8  # number of different bad values for which all equal ones are searched together


def parsed_schema(schema: pa.Schema, formats: TimeFormats, *, is_lenient: bool = False) -> pa.Schema:
    """Return the types to parse text to: the declared ones, or string if `convert_table` converts the values.

    All columns are optional: otherwise Arrow's parser would refuse null structs for their missing fields. With
    `is_lenient`, `convert_table` converts RFC 3339 timestamps too, and accepts finer fractions and mixed zones.
    Decimals are parsed to a wider type and checked by `convert_table`, because Arrow's parsers do not check their
    number of digits, and a number that is too large would overflow.
    """
    return pa.schema(
        [(column.name, _parsed_type(column.type, formats, is_lenient=is_lenient)) for column in schema]
    )


def _parsed_type(target: pa.DataType, formats: TimeFormats, *, is_lenient: bool) -> pa.DataType:
    if kind.is_timestamp(target):
        epoch = epoch_digits(formats.timestamp)
        if epoch is not None and not is_lenient:
            return epoch_decimal(epoch)
        return pa.string() if is_lenient or formats.timestamp is not None else read_as(target)
    if kind.is_date(target) or kind.is_time(target) or kind.is_duration(target) or target == UUID:
        return pa.string()
    if formats.has_base64 and _is_bytes(target):
        return pa.string()
    if kind.is_fixed_size_binary(target):
        return pa.binary()
    if kind.is_decimal128(target):
        return pa.decimal256(target.precision, target.scale)
    if kind.is_struct(target):
        parts = [(f, _parsed_type(f.type, formats, is_lenient=is_lenient)) for f in target.fields]
        return pa.struct([(inner.name, parsed) for inner, parsed in parts])
    if kind.is_list(target):
        return pa.list_(pa.field("element", _parsed_type(target.value_type, formats, is_lenient=is_lenient)))
    return target


def convert_table(table: pa.Table, schema: pa.Schema, formats: TimeFormats) -> pa.Table:
    """Convert the table to the types of `schema`, which has the same columns in order; raises `InvalidInput`."""
    columns = [
        convert_column(column, field, formats) for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def unconvertible(
    table: pa.Table, schema: pa.Schema, formats: TimeFormats, most: int | None = None
) -> dict[int, str]:
    """Return the rows that `convert_table` refuses, with the reasons; at most `most` rows per column."""
    faults: dict[int, str] = {}
    for column, field in zip(table.columns, schema, strict=True):
        found = islice(unconvertible_values(column, field, formats, most), most)
        faults = dict(found) | faults
    return dict(sorted(faults.items()))


def unconvertible_values(
    column: pa.ChunkedArray, target: pa.Field, formats: TimeFormats, most: int | None = None
) -> Iterator[tuple[int, str]]:
    """Yield the rows of one column that cannot be converted, in order, with the reasons.

    After the first `most` rows some may be missing. Good values are converted in large groups. All rows with the same
    bad value are found together, so the cost grows with the number of different bad values.
    """
    start = 0
    for values in column.chunks:
        if not is_convertible(values, target, formats):
            for row, why in sorted(_refused_rows(values, target, formats, most).items()):
                yield start + row, why
        start += len(values)


def _refused_rows(
    values: pa.Array, target: pa.Field, formats: TimeFormats, most: int | None
) -> dict[int, str]:
    """Return the first `most` rows that cannot be converted, and further rows with the same values, with the reasons.

    There must be at least one such row.
    """
    rows, faults = np.arange(len(values)), dict[int, str]()
    for _ in range(_REPEATED_VALUES):
        found = next(_refused_values(values, target, formats), None)
        if found is None or not _has_equals(values[found[0]]):
            break
        is_bad = pc.fill_null(pc.equal(values, values[found[0]]), fill_value=False)
        places = is_bad.to_numpy(zero_copy_only=False)
        faults |= dict.fromkeys(map(int, rows[places]), found[1])
        values, rows = values.filter(pc.invert(is_bad)), rows[~places]
        if is_convertible(values, target, formats):
            return faults
    rest = islice(_refused_values(values, target, formats), most)
    return faults | {int(rows[row]): why for row, why in rest}


def _has_equals(value: pa.Scalar) -> bool:
    """Return whether Arrow can find the values that are equal to this one, and all of them are converted alike.

    False for 0.0, which equals -0.0, for NaN, which equals no value, and for 16-bit numbers: Arrow cannot compare them.
    """
    if kind.is_float16(value.type):
        return False
    if kind.is_floating(value.type):
        return bool(value.as_py()) and not math.isnan(value.as_py())
    return bool(kind.is_integer(value.type) or kind.is_string(value.type) or kind.is_large_string(value.type))


def _refused_values(
    values: pa.Array, target: pa.Field, formats: TimeFormats, start: int = 0
) -> Iterator[tuple[int, str]]:
    """Yield the indices of the values that cannot be converted, with the reasons; there must be at least one."""
    count = len(values)
    if count == 1:
        try:
            convert_column(pa.chunked_array([values]), target, formats)
        except InvalidInput as error:
            yield start, str(error)
        return
    step = 1 if count <= _ROWS_PER_PIECE else (count + 1) // 2
    for first in range(0, count, step):
        piece = values.slice(first, step)
        if step == 1 or not is_convertible(piece, target, formats):
            yield from _refused_values(piece, target, formats, start + first)


def _is_bytes(target: pa.DataType) -> bool:
    return bool(kind.is_binary(target)) or bool(kind.is_fixed_size_binary(target) and target != UUID)
