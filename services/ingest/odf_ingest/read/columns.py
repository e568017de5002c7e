"""What text formats are parsed as, and how that becomes the types that are wanted."""

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as kind

from odf_common.errors import InvalidInput
from odf_ingest.read.times import MOMENT, to_dates, to_moments


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFormats:
    """Formats of moments and dates; None is RFC 3339 and ISO 8601."""

    timestamp: str | None = None
    date: str | None = None


def parsed_schema(schema: pa.Schema, formats: TimeFormats, *, is_lenient: bool = False) -> pa.Schema:
    """Return the types to parse text into: those wanted, but text where `converted` has to look at it.

    `is_lenient` leaves RFC 3339 moments to `converted` too: it takes finer fractions and mixed zones.
    """
    return pa.schema(
        [(column.name, _parsed(column.type, formats, is_lenient=is_lenient)) for column in schema]
    )


def _parsed(wanted: pa.DataType, formats: TimeFormats, *, is_lenient: bool) -> pa.DataType:
    if kind.is_timestamp(wanted):
        return pa.string() if is_lenient or formats.timestamp is not None else MOMENT
    if kind.is_date(wanted) or kind.is_time(wanted) or kind.is_duration(wanted):
        return pa.string()
    return wanted


def converted(table: pa.Table, schema: pa.Schema, formats: TimeFormats) -> pa.Table:
    """Return the table in the types of `schema`, whose columns it has in the same order; raises `InvalidInput`."""
    if table.schema.equals(schema):
        return table
    columns = [
        _converted(column, field, formats) for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _converted(column: pa.ChunkedArray, wanted: pa.Field, formats: TimeFormats) -> pa.ChunkedArray:
    if column.type == wanted.type:
        return column
    try:
        if kind.is_string(column.type):
            if kind.is_timestamp(wanted.type):
                column = to_moments(column.combine_chunks(), formats.timestamp)
            elif kind.is_date(wanted.type):
                column = to_dates(column.combine_chunks(), formats.date)
        made = column.cast(wanted.type, safe=not kind.is_timestamp(wanted.type))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, InvalidInput) as error:
        raise InvalidInput(where=f"column {wanted.name}", text=str(error)) from error
    return made if isinstance(made, pa.ChunkedArray) else pa.chunked_array([made])
