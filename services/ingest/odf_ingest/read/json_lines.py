"""One JSON object a line, as pyarrow's C++ reads it."""

import json
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from odf_common.errors import InvalidInput
from odf_ingest.read.columns import TimeFormats, converted, parsed_schema
from odf_ingest.read.encoding import require_utf8
from odf_ingest.values import Values

_OPEN: Final = ord("{")
_CLOSE: Final = ord("}")
BLOCK: Final = 1024 * 1024  # bytes parsed at a time: what comes of them stays in a core's own cache


def parse_lines(
    text: bytes | pa.Buffer, schema: pa.Schema | None, formats: TimeFormats, *, threads: bool = True
) -> pa.Table:
    """Return the records of lines of objects; columns that `schema` does not name are passed over.

    Raises `InvalidInput` in Arrow's words. Without `threads` it takes longer, but less of the processors' time.
    """
    if schema is None:
        return _parse(text, None, threads=threads)
    try:
        return converted(_parse(text, parsed_schema(schema, formats), threads=threads), schema, formats)
    except InvalidInput as error:
        if formats.timestamp is not None or "timestamp" not in str(error):
            raise
    lenient = parsed_schema(schema, formats, is_lenient=True)
    return converted(_parse(text, lenient, threads=threads), schema, formats)


def parse_objects(values: Sequence[bytes], schema: pa.Schema | None, formats: TimeFormats) -> pa.Table:
    """Return one record for each value; raises `InvalidInput` if one of them is not exactly one object in UTF-8.

    Batches are parsed side by side, each by one thread.
    """
    lines = Values.of(values)
    if not _is_one_each(lines):
        lines = Values.of([_one_line(value) for value in values])
        if not _is_one_each(lines):
            raise InvalidInput(text="is not one JSON object")
    require_utf8(lines.text)
    table = parse_lines(lines.text, schema, formats, threads=False)
    if table.num_rows != len(values):
        raise InvalidInput(text="holds more than one JSON object")
    return table


def _is_one_each(values: Values) -> bool:
    """Tell whether each value is one line that begins and ends as an object does.

    Together with the number of records that is proof that each value is one object.
    """
    text, ends = values.text, values.ends
    if text.count(b"\n") != len(ends) - 1 or int(np.diff(ends, prepend=-1).min()) < 3:
        return False
    raw = np.frombuffer(text, np.uint8)
    starts = ends[:-1] + 1
    return text[0] == _OPEN and bool((raw[ends - 1] == _CLOSE).all() and (raw[starts] == _OPEN).all())


def _one_line(value: bytes) -> bytes:
    """Return an object that is spread over lines as one line."""
    value = value.strip(b" \t\r\n")
    if b"\n" not in value:
        return value
    check_object(value)
    # Inside a string a line feed would have been refused: what is left is white space.
    return value.replace(b"\n", b" ")


def check_object(value: bytes) -> None:
    """Raise `InvalidInput` unless the value is one JSON object."""
    try:
        plain = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(text=f"is not JSON: {error}") from error
    if not isinstance(plain, dict):
        raise InvalidInput(text="is not a JSON object")


def _parse(
    text: bytes | pa.Buffer, schema: pa.Schema | None, *, threads: bool, block: int = BLOCK
) -> pa.Table:
    options = pj.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
    )
    try:
        return pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=threads, block_size=block),
            parse_options=options,
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
        if "straddling" in str(error) and block < len(text) + 2:
            # A line is longer than a block.
            return _parse(text, schema, threads=threads, block=min(8 * block, len(text) + 2))
        raise InvalidInput(text=str(error)) from error
