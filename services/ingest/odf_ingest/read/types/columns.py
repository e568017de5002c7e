"""The types that text formats are parsed to, and tables in their declared types.

Continuation of a dataset's columns in a batch without a declared schema.

They keep their types, and new ones follow.
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


_ROWS_PER_PIECE: Final = 4
_REPEATED_VALUES: Final = 8  # different ones that are sought by their equals


def parsed_schema(schema: pa.Schema, formats: TimeFormats, *, is_lenient: bool = False) -> pa.Schema:
    """Return the types to parse text to: the expected ones, or string if `convert_table` does the conversion.

    All columns are optional here: Arrow's parser would refuse null structs for their missing fields.

    `is_lenient` leaves RFC 3339 timestamps to `convert_table` too, which accepts finer fractions and mixed zones.
    Arrow's parsers do not check the digits before the point of a decimal, and wrap a number that is too large: it is
    parsed to a type with room for that, and `convert_table` checks it.
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
    """Return the rows that `convert_table` refuses individually, and why; of each column up to `most`."""
    faults: dict[int, str] = {}
    for column, field in zip(table.columns, schema, strict=True):
        found = islice(unconvertible_values(column, field, formats, most), most)
        faults = dict(found) | faults
    return dict(sorted(faults.items()))


def unconvertible_values(
    column: pa.ChunkedArray, target: pa.Field, formats: TimeFormats, most: int | None = None
) -> Iterator[tuple[int, str]]:
    """Yield the rows of one column that cannot be converted, in order, and why; not all of them after `most`.

    Good values are converted in large groups, and a few bad ones are sought by their equals: the cost grows with the
    number of different bad ones.
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
    """Return rows of values, not all of which can be converted: the first ones up to `most`, and more equal to them."""
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
    """Return whether values that equal one are converted alike: 0.0 and -0.0 are not, and NaN equals none.

    Arrow does not compare numbers of 16 bits.
    """
    if kind.is_float16(value.type):
        return False
    if kind.is_floating(value.type):
        return bool(value.as_py()) and not math.isnan(value.as_py())
    return bool(kind.is_integer(value.type) or kind.is_string(value.type) or kind.is_large_string(value.type))


def _refused_values(
    values: pa.Array, target: pa.Field, formats: TimeFormats, start: int = 0
) -> Iterator[tuple[int, str]]:
    """Yield which of some values, not all of which can be converted, cannot, and why."""
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
