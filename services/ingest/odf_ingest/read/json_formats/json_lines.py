"""One JSON object per line, parsed by pyarrow; values that it cannot parse exactly are rewritten first."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.types as kind

from odf_common.data.time_format import epoch_digits
from odf_common.errors import InvalidInput
from odf_ingest.read.encoding import BOM, require_utf8
from odf_ingest.read.isolate_bad_records import read_one_by_one
from odf_ingest.read.json_formats.inferred import (
    HALF_PAIR,
    MAX_NESTING,
    infer_schema,
    require_inferable,
    too_deep,
)
from odf_ingest.read.json_formats.json_exact import (
    NO_COLUMN_TEXT,
    Misfit,
    decode_object,
    require_known,
    rewrite_exactly,
    with_plain_numbers,
    with_text_of_containers,
)
from odf_ingest.read.message_buffer import MessageBuffer
from odf_ingest.read.types.columns import convert_table, parsed_schema, unconvertible
from odf_ingest.read.types.kinds import TimeFormats
from odf_ingest.read.types.numbers import LONG_NUMBER, has_wide_decimals

_OPEN: Final = ord("{")
_CLOSE: Final = ord("}")
_NULL_LINE: Final = re.compile(rb"^[ \t\r]*+null", re.MULTILINE)
_NESTED: Final = re.compile(rb":[ \t\r]*+[{\[]")  # also matches inside strings
_LARGE: Final = 1e15  # DOUBLEs have all decimals of up to 15 digits
PARSE_BYTES: Final = 1024 * 1024  # per parse: the result fits into a core's cache


def parse_objects(values: Sequence[bytes], schema: pa.Schema | None, formats: TimeFormats) -> pa.Table:
    """Return one record per value; raises `InvalidInput` unless each value is exactly one object in UTF-8.

    An object must have at least one of the columns. Batches are parsed in parallel, each by one thread.
    """
    lines = as_lines(values, schema, formats)
    schema = columns_of_batch(values, None, formats) if schema is None else schema
    try:
        table = _parse_converted(lines.text, schema, formats, threads=False)
        _require_known(table, lines, schema)
    except InvalidInput:
        if len(lines) > 1:
            raise
        # A single record: rewriting makes it exact, or gives a helpful error.
        exact = _rewritten(lines.text, schema, formats)
        return convert_table(_parse(exact, _lenient(schema, formats)), schema, formats)
    return table


def parse_inferred(values: Sequence[bytes], schema: pa.Schema, formats: TimeFormats) -> pa.Table:
    """Return one record per value with inferred columns; raises `InvalidInput`."""
    require_inferable(MessageBuffer.pack(values))
    return parse_objects(values, schema, formats)


def parse_text(text: bytes, schema: pa.Schema | None, formats: TimeFormats) -> pa.Table:
    """Return the records of lines with objects; blank lines are ignored.

    Raises `InvalidInput` with the first line that is not a record.
    """
    if not text or text.isspace():
        return (schema or pa.schema([])).empty_table()
    if schema is None:
        schema = columns_of_batch(lines_of(text)[0], None, formats)
    try:
        require_utf8(text)
        table = _parse_converted(text, schema, formats, threads=True) if _is_parsable(text) else None
    except InvalidInput:
        table = None
    # Arrow reads several objects on a line as several records; a message with such a line is refused.
    is_one_a_line = table is not None and len(table) == _objects_begun(text)
    if is_one_a_line and not _rows_of_nulls(table).any():
        return table
    lines, places = lines_of(text)
    return read_records_by_name(lines, places, schema, formats)


def read_records_by_name(
    values: Sequence[bytes], names: Sequence[str], schema: pa.Schema, formats: TimeFormats
) -> pa.Table:
    """Return one record per value; raises `InvalidInput` with the name of the first value that is not a record."""
    read = partial(parse_objects, schema=schema, formats=formats)
    return read_one_by_one(values, names, read, partial(misfits, schema=schema, formats=formats))


def misfits(
    values: Sequence[bytes], schema: pa.Schema | None, formats: TimeFormats
) -> Mapping[int, str | None]:
    """Return by index the values that are not records, with the reason if that does not depend on other values."""
    reasons: dict[int, str | None] = {}
    lines: dict[int, bytes] = {}
    for number, value in enumerate(values):
        try:
            is_deep = value.count(b"[") + value.count(b"{") > MAX_NESTING
            if schema is None or is_deep or HALF_PAIR.search(value) is not None:
                reasons[number] = None
            else:
                lines[number] = _rewritten(value.removeprefix(BOM), schema, formats)
        except Misfit as error:
            reasons[number] = str(error)
        except InvalidInput:
            reasons[number] = None
    if schema is None or not lines:
        return reasons
    try:
        table = _parse(b"\n".join(lines.values()), _lenient(schema, formats))
    except InvalidInput:
        return reasons
    numbers = list(lines)
    return {**reasons, **{numbers[row]: why for row, why in unconvertible(table, schema, formats).items()}}


def inferred_columns(
    values: Sequence[bytes | None], base: pa.Schema | None, formats: TimeFormats
) -> pa.Schema:
    """Return the columns of `base`, followed by new ones of the objects, one per line. Bad lines are ignored."""
    lines = MessageBuffer.pack(values)
    is_lenient = epoch_digits(formats.timestamp) is None
    parsed = None if base is None else parsed_schema(base, formats, is_lenient=is_lenient)
    try:
        require_utf8(lines.text)
        is_read = len(lines) > 0 and _is_parsable(lines.text) and not too_deep(lines)
        schema = _parse(lines.text, parsed, infers=True).schema if is_read else None
    except InvalidInput:
        schema = None
    return infer_schema(lines, base, schema)


def columns_of_batch(values: Sequence[bytes], base: pa.Schema | None, formats: TimeFormats) -> pa.Schema:
    """Return the columns of `base`, followed by new ones of the objects; raises `InvalidInput` if one is bad."""
    require_inferable(MessageBuffer.pack(values))
    return inferred_columns(values, base, formats)


def as_lines(values: Sequence[bytes], schema: pa.Schema | None, formats: TimeFormats) -> MessageBuffer:
    """Return the values with each object on its own line; raises `InvalidInput` if one is not an object."""
    lines = MessageBuffer.pack(values)
    if not _is_one_each(lines):
        lines = MessageBuffer.pack([_one_line(value, schema, formats) for value in values])
        if not _is_one_each(lines):
            require_utf8(lines.text)
            has_array = any(value.lstrip().startswith(b"[") for value in values)
            hint = "; an array of objects is Json" if has_array else ""
            raise InvalidInput(text=f"expected one JSON object{hint}")
    require_utf8(lines.text)
    return lines


def _parse_converted(text: bytes, schema: pa.Schema, formats: TimeFormats, *, threads: bool) -> pa.Table:
    """Return records in the types of `schema`; other columns are ignored.

    Raises `InvalidInput` with Arrow's message. Without `threads` parsing takes longer, but less CPU time.
    """
    if len(schema) == 0:
        raise InvalidInput(text=NO_COLUMN_TEXT)
    if has_wide_decimals(schema):
        # No type has room for numbers that are too large for these; see `parsed_schema`.
        text = b"\n".join(_rewritten(line, schema, formats) for line in lines_of(text)[0])
    try:
        table = convert_table(_parse(text, parsed_schema(schema, formats), threads=threads), schema, formats)
    except InvalidInput as error:
        kept = _with_kept_text(text, schema, formats)
        plain = with_plain_numbers(kept or text)
        is_same = kept is None and plain is None
        if is_same and (formats.timestamp is not None or "timestamp" not in str(error)):
            raise
        # Numbers of an epoch format were not rewritten as strings, so they are not parsed as such.
        lenient = parsed_schema(schema, formats, is_lenient=epoch_digits(formats.timestamp) is None)
        table = convert_table(_parse(plain or kept or text, lenient, threads=threads), schema, formats)
    _require_finite(table)
    if formats.is_inferred and _has_large_floats(table) and LONG_NUMBER.search(text) is not None:
        for line in lines_of(text)[0]:
            _rewritten(line, schema, formats)
    return table


def _with_kept_text(text: bytes, schema: pa.Schema, formats: TimeFormats) -> bytes | None:
    """Return the lines with objects and arrays that are kept as text replaced by strings; None if there are none."""
    if not formats.keeps_text or _NESTED.search(text) is None:
        return None
    kept = b"\n".join(with_text_of_containers(line, schema) for line in lines_of(text)[0])
    return None if kept == text else kept


def _rewritten(line: bytes, schema: pa.Schema, formats: TimeFormats) -> bytes:
    line = with_text_of_containers(line, schema) if formats.keeps_text else line
    return rewrite_exactly(line, schema, formats)


def _lenient(schema: pa.Schema, formats: TimeFormats) -> pa.Schema:
    return parsed_schema(schema, formats, is_lenient=True)


def _require_known(table: pa.Table, lines: MessageBuffer, schema: pa.Schema) -> None:
    if table.num_rows != len(lines):
        raise InvalidInput(text="has more than one JSON object")
    for row in np.flatnonzero(_rows_of_nulls(table)):
        value = lines[int(row)]
        assert value is not None
        require_known(decode_object(value), schema)


def _rows_of_nulls(table: pa.Table) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Return a mask of the records without values: these may be objects that have none of the columns."""
    rows = np.ones(table.num_rows, np.bool_)
    for column in table.columns:
        if column.null_count == 0 or not rows.any():
            return np.zeros(table.num_rows, np.bool_)
        rows &= pc.is_null(column).to_numpy()
    return rows


def _require_finite(table: pa.Table) -> None:
    """Raise `InvalidInput` for NaN, which is not JSON, and for infinity: a number that is too large for its type."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not _has_floats(column.type):
            continue
        for values in _floats(column.combine_chunks() if kind.is_nested(column.type) else column):
            if len(values) and not pc.all(pc.is_finite(values), min_count=0).as_py():
                raise InvalidInput(
                    where=f"column {name}", text="has NaN, or a number that is too large for its type"
                )


def _has_large_floats(table: pa.Table) -> bool:
    """Return whether a number is so large that it may differ from the number in the text."""
    return any(
        len(values) and pc.any(pc.greater_equal(pc.abs(values), _LARGE), min_count=0).as_py()
        for column in table.columns
        if _has_floats(column.type)
        for values in _floats(column.combine_chunks() if kind.is_nested(column.type) else column)
    )


def _has_floats(type_: pa.DataType) -> bool:
    if kind.is_struct(type_):
        return any(_has_floats(inner.type) for inner in type_.fields)
    return _has_floats(type_.value_type) if kind.is_list(type_) else bool(kind.is_floating(type_))


def _floats(values: pa.Array | pa.ChunkedArray) -> list[pa.Array | pa.ChunkedArray]:
    """Return all floating-point values of a column, including nested ones."""
    if kind.is_struct(values.type):
        return [part for child in values.flatten() for part in _floats(child)]
    if not _has_floats(values.type):
        return []  # Arrow cannot flatten null lists of UUIDs
    if kind.is_list(values.type):
        return _floats(values.flatten())
    return [values] if kind.is_floating(values.type) else []


def _is_parsable(text: bytes) -> bool:
    """Return whether pyarrow's parser can safely parse the text.

    It treats a NUL as the end of its input, and a block that starts with `null` crashes the process.
    """
    is_usual = _objects_begun(text) + text.endswith(b"\n") == text.count(b"\n") + 1
    return b"\0" not in text and (is_usual or _NULL_LINE.search(text) is None)


def _objects_begun(text: bytes) -> int:
    """Return the number of lines that start like an object."""
    return text.count(b"\n{") + text.startswith(b"{")


def lines_of(text: bytes) -> tuple[list[bytes], list[str]]:
    """Return the lines that are not blank, and their locations, such as `line 1`."""
    lines = [(number, line) for number, line in enumerate(text.split(b"\n"), start=1) if line.strip()]
    return [line for _, line in lines], [f"line {number}" for number, _ in lines]


def _is_one_each(values: MessageBuffer) -> bool:
    """Return whether each value is one line that starts and ends like an object.

    If the number of records is also that of the values, each value is one object.
    """
    text, ends = values.text, values.ends
    if text.count(b"\n") != len(ends) - 1 or int(np.diff(ends, prepend=-1).min()) < 3:
        return False
    raw = np.frombuffer(text, np.uint8)
    starts = ends[:-1] + 1
    # The parser treats a NUL as the end of its input.
    is_bounded = text[0] == _OPEN and bool((raw[ends - 1] == _CLOSE).all() and (raw[starts] == _OPEN).all())
    return is_bounded and b"\0" not in text


def _one_line(value: bytes, schema: pa.Schema | None, formats: TimeFormats) -> bytes:
    value = value.removeprefix(BOM).strip(b" \t\r\n")
    if b"\n" in value:
        decode_object(value)
    return one_line(value, schema, formats)


def one_line(record: bytes, schema: pa.Schema | None, formats: TimeFormats) -> bytes:
    """Return an object that spans several lines as one line. Newlines in text that is kept are preserved."""
    if b"\n" not in record:
        return record
    if schema is not None and formats.keeps_text:
        record = with_text_of_containers(record, schema)
    # JSON strings cannot contain newlines, so these are white space.
    return record.replace(b"\n", b" ")


def _parse(
    text: bytes,
    schema: pa.Schema | None,
    *,
    threads: bool = False,
    infers: bool = False,
    block: int = PARSE_BYTES,
) -> pa.Table:
    options = pj.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="infer" if infers else "ignore"
    )
    try:
        return pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=threads, block_size=block),
            parse_options=options,
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
        larger = min(8 * block, len(text) + 2)
        if "straddling" in str(error) and larger != block:
            # A line is longer than a block.
            return _parse(text, schema, threads=threads, infers=infers, block=larger)
        raise InvalidInput(text=str(error)) from error
