"""The types that text formats are parsed to, and tables in their declared types."""

from typing import Final

import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.time_format import epoch_digits
from odf_common.errors import InvalidInput
from odf_ingest.read.types.conversions import convert_column
from odf_ingest.read.types.epochs import epoch_decimal
from odf_ingest.read.types.kinds import UUID, TimeFormats
from odf_ingest.read.types.times import read_as

_ROWS_PER_PIECE: Final = 32


def parsed_schema(schema: pa.Schema, formats: TimeFormats, *, is_lenient: bool = False) -> pa.Schema:
    """Return the types to parse text to: the expected ones, or string if `converted` does the conversion.

    All columns are optional here: Arrow's parser would refuse null structs for their missing fields.

    `is_lenient` leaves RFC 3339 timestamps to `converted` too, which accepts finer fractions and mixed zones.
    Arrow's parsers do not check the digits before the point of a decimal, and wrap a number that is too large: it is
    parsed to a type with room for that, and `converted` checks it.
    """
    return pa.schema(
        [(column.name, _parsed(column.type, formats, is_lenient=is_lenient)) for column in schema]
    )


def _parsed(target: pa.DataType, formats: TimeFormats, *, is_lenient: bool) -> pa.DataType:
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
        parts = [(f, _parsed(f.type, formats, is_lenient=is_lenient)) for f in target.fields]
        return pa.struct([(inner.name, parsed) for inner, parsed in parts])
    if kind.is_list(target):
        return pa.list_(pa.field("element", _parsed(target.value_type, formats, is_lenient=is_lenient)))
    return target


def converted(table: pa.Table, schema: pa.Schema, formats: TimeFormats) -> pa.Table:
    """Convert the table to the types of `schema`, which has the same columns in order; raises `InvalidInput`."""
    columns = [
        convert_column(column, field, formats) for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def unconvertible(table: pa.Table, schema: pa.Schema, formats: TimeFormats) -> dict[int, str]:
    """Return the rows that `converted` refuses individually, and why."""
    suspects: set[int] = set()
    for column, field in zip(table.columns, schema, strict=True):
        suspects |= unconvertible_rows(column, field, formats)
    faults = {}
    for row in sorted(suspects):
        try:
            converted(table.slice(row, 1), schema, formats)
        except InvalidInput as error:
            faults[row] = str(error)
    return faults


def unconvertible_rows(column: pa.ChunkedArray, target: pa.Field, formats: TimeFormats) -> set[int]:
    """Return the rows of one column that cannot be converted; only pieces with such rows are checked row by row."""
    if _converts(column, target, formats):
        return set()
    misfits: set[int] = set()
    for start in range(0, len(column), _ROWS_PER_PIECE):
        piece = column.slice(start, _ROWS_PER_PIECE)
        if not _converts(piece, target, formats):
            rows = (row for row in range(len(piece)) if not _converts(piece.slice(row, 1), target, formats))
            misfits |= {start + row for row in rows}
    return misfits


def _converts(column: pa.ChunkedArray, target: pa.Field, formats: TimeFormats) -> bool:
    try:
        convert_column(column, target, formats)
    except InvalidInput:
        return False
    return True


def _is_bytes(target: pa.DataType) -> bool:
    return bool(kind.is_binary(target)) or bool(kind.is_fixed_size_binary(target) and target != UUID)
