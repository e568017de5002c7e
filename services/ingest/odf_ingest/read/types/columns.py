"""The types that text formats are parsed to, and their conversion to the expected types."""

import base64
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.time_format import epoch_digits, named_format
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepCsv, ReadStepJson, ReadStepNdJson
from odf_ingest.read.types.epochs import epoch_decimal, from_epoch
from odf_ingest.read.types.numbers import require_decimal_digits, require_room
from odf_ingest.read.types.times import read_as, to_dates, to_times, to_timestamps
from odf_ingest.read.types.type_names import shown, type_name
from odf_ingest.read.types.uuids import UUID, to_uuids
from odf_ingest.read.types.years import with_known_years

_ROWS_PER_PIECE: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedJson(ReadStepNdJson):
    """JSON that was written from messages in a binary format, in which bytes are base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeFormats:
    """Formats of timestamps and dates; None is RFC 3339 and ISO 8601.

    Of an `epoch…` format, values are numbers or strings.
    """

    timestamp: str | None = None
    date: str | None = None
    has_base64: bool = False
    """Whether columns of bytes are base64; otherwise they are the bytes of the text."""

    @classmethod
    def of(cls, step: ReadStepCsv | ReadStepJson | ReadStepNdJson) -> Self:
        """Return the formats of a read step."""
        return cls(
            timestamp=named_format(step.timestamp_format),
            date=named_format(step.date_format),
            has_base64=isinstance(step, DecodedJson),
        )


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
    if table.schema.equals(schema):
        return with_known_years(table)
    columns = [
        _converted(column, field, formats) for column, field in zip(table.columns, schema, strict=True)
    ]
    return with_known_years(pa.Table.from_arrays(columns, schema=schema))


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
        with_known_years(pa.table([_converted(column, target, formats)], [target.name]))
    except InvalidInput:
        return False
    return True


def _converted(column: pa.ChunkedArray, target: pa.Field, formats: TimeFormats) -> pa.ChunkedArray:
    if column.type == target.type:
        return column
    try:
        is_plain = not (kind.is_string(column.type) or kind.is_nested(column.type))
        stored = _as(column if is_plain else column.combine_chunks(), target.type, formats)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, InvalidInput) as error:
        raise InvalidInput(where=f"column {target.name}", text=str(error)) from error
    return stored if isinstance(stored, pa.ChunkedArray) else pa.chunked_array([stored])


def _as(values: pa.Array, target: pa.DataType, formats: TimeFormats) -> pa.Array:
    if values.type == target:
        return values
    epoch = epoch_digits(formats.timestamp)
    if kind.is_timestamp(target) and epoch is not None:
        return from_epoch(values, epoch, target)
    if kind.is_struct(target):
        is_there = values.is_valid()
        for index, inner in enumerate(target.fields):
            missing = pc.and_(values.field(index).is_null(), is_there)
            _require(inner, has_nulls=pc.any(missing, min_count=0).as_py())
        parts = [_as(values.field(index), inner.type, formats) for index, inner in enumerate(target.fields)]
        mask = values.is_null() if values.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(target.fields), mask=mask)
    if kind.is_list(target):
        _require(target.value_field, has_nulls=values.flatten().null_count > 0)
        items = _as(values.values, target.value_type, formats)
        buffers = values.buffers()[:2]
        return pa.Array.from_buffers(target, len(values), buffers, offset=values.offset, children=[items])
    if kind.is_string(values.type):
        values = _of_text(values, target, formats)
    if values.type == target:
        return values
    try:
        # Fractions finer than declared are truncated.
        return values.cast(target, safe=not kind.is_timestamp(target))
    except pa.ArrowInvalid as error:
        value = values[first_misfit(values, target)].as_py()
        raise InvalidInput(text=f"{shown(value)} is not a value of {type_name(target)}") from error


def first_misfit(values: pa.Array | pa.ChunkedArray, target: pa.DataType) -> int:
    """Return the first row whose value cannot be cast; one of them cannot."""
    first, count = 0, len(values)
    while count > 1:
        half = count // 2
        some = values.slice(first, half)
        try:
            require_room(some, target)
            some.cast(target)
        except (pa.ArrowInvalid, ValueError, InvalidInput):
            count = half
        else:
            first, count = first + half, count - half
    return first


def _require(part: pa.Field, *, has_nulls: bool) -> None:
    if has_nulls and not part.nullable:
        raise InvalidInput(text=f"its field {part.name} is required and is null")


def _of_text(texts: pa.Array, target: pa.DataType, formats: TimeFormats) -> pa.Array:
    """Return values close to the expected type, or strings if Arrow can convert them."""
    if kind.is_timestamp(target):
        return to_timestamps(texts, formats.timestamp, target)
    if kind.is_date(target):
        return to_dates(texts, formats.date)
    if kind.is_time(target):
        return to_times(texts, target)
    if kind.is_decimal(target):
        require_room(texts, target)
    if kind.is_integer(target):
        require_decimal_digits(texts, target)
    if formats.has_base64 and _is_bytes(target):
        return _to_bytes(texts)
    return to_uuids(texts) if target == UUID else texts


def _is_bytes(target: pa.DataType) -> bool:
    return bool(kind.is_binary(target)) or bool(kind.is_fixed_size_binary(target) and target != UUID)


def _to_bytes(texts: pa.Array) -> pa.Array:
    try:
        values = [
            None if text is None else base64.b64decode(text, validate=True) for text in texts.to_pylist()
        ]
    except ValueError as error:
        raise InvalidInput(text="is not base64, in which a decoded message has bytes") from error
    return pa.array(values, pa.binary())
