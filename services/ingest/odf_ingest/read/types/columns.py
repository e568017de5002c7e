"""The types that text formats are parsed to, and tables in their declared types."""

import math
from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.time_format import epoch_digits
from odf_common.errors import InvalidInput
from odf_ingest.read.types.conversions import convert_column, is_convertible
from odf_ingest.read.types.kinds import UUID, TimeFormats
from odf_ingest.read.types.times import epoch_decimal, read_as

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
