"""Csv records with equal columns, parsed by pyarrow; numbers that it cannot parse exactly are parsed as strings."""

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.types as kind

from odf_common.data.stored_types import stored_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepCsv
from odf_ingest.read.csv_format.csv_records import grammar_of
from odf_ingest.read.csv_format.exact_types import changed_by, exact_type, may_change
from odf_ingest.read.encoding import BOM, require_utf8
from odf_ingest.read.types.columns import convert_table, parsed_schema, unconvertible_values
from odf_ingest.read.types.conversions import convert_column, misfit_text
from odf_ingest.read.types.kinds import TimeFormats, ValueKind
from odf_ingest.read.types.type_names import printable, show_value, type_name

_IN_COLUMN: Final = re.compile(r"In CSV column #(\d+): (?:CSV conversion error to (.+?): )?(.*)", re.DOTALL)
# The value is quoted as it is, so that it may contain quotes too.
_VALUE: Final = re.compile(r"(?:invalid value|The string) '(.*)'", re.DOTALL)
_WIDTH: Final = re.compile(r"Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)
_DECLARE: Final = "declare {type} if it is a number, or STRING, in a new dataset if this one has records"
_NUMBER: Final = r"(?i)^\s*[+-]?(?:\d+\.?\d*|\.\d+|(?:nan|inf|infinity)$)(?:e[+-]?\d+)?\s*$"


def parse(step: ReadStepCsv, text: bytes, columns: pa.Schema) -> pa.Table:
    """Return the records of a text without header, with values for `columns` in order.

    Raises `InvalidInput` naming the column.
    """
    if len(columns) == 0:
        raise InvalidInput(text="has no columns")
    require_utf8(text)
    formats = TimeFormats.from_step(step)
    parsed = _readable(parsed_schema(columns, formats, is_lenient=True))
    try:
        table = None if _may_be_hexadecimal(text) else _read(step, text, parsed)
    except _NotWhole:
        table = None
    if table is None:
        table = _read(step, text, _with_text_for_integers(parsed))
    table = convert_table(table, columns, formats)
    _require_finite(step, text, table, formats)
    if _infers(step) and may_change(text):
        _require_unchanged(step, text, table.schema)
    return table


def misfits(step: ReadStepCsv, records: Sequence[bytes], columns: pa.Schema) -> AbstractSet[int]:
    """Return the records that probably cannot be parsed: found together, since parsing each alone is slow.

    Some good ones may be among them, such as a number in an unusual notation, and bad ones missing.
    """
    width = grammar_of(step).width
    suspects = {
        number
        for number, record in enumerate(records)
        if width(record) != len(columns) or not _is_utf8(record)
    }
    rest = [number for number in range(len(records)) if number not in suspects]
    strings = pa.schema([(name, pa.string()) for name in columns.names])
    try:
        table = _read(step, b"\n".join(records[number] for number in rest), strings)
    except InvalidInput:
        return suspects
    if len(table) != len(rest):
        return suspects
    formats = TimeFormats.from_step(step)
    parsed = parsed_schema(columns, formats, is_lenient=True)
    for values, text, column in zip(table.columns, parsed, columns, strict=True):
        if _is_number(text.type):
            is_other = pc.invert(pc.match_substring_regex(values, _NUMBER))
            if _infers(step):
                is_other = pc.or_(is_other, changed_by(values, column.type))
            suspects |= {rest[row] for row in np.flatnonzero(is_other.fill_null(False))}  # noqa: FBT003 - a value
        elif kind.is_string(text.type):
            suspects |= {rest[row] for row, _ in unconvertible_values(values, column, formats)}
    return suspects


def _is_utf8(record: bytes) -> bool:
    try:
        record.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_number(type_: pa.DataType) -> bool:
    return bool(kind.is_integer(type_) or kind.is_floating(type_) or kind.is_decimal(type_))


@lru_cache(maxsize=64)  # each message may bring it
def header_names(step: ReadStepCsv, header: bytes) -> Sequence[str]:
    """Return the names in a header line; raises `InvalidInput`."""
    require_utf8(header)
    width = grammar_of(step).width(header)
    texts = pa.schema([(f"f{number}", pa.string()) for number in range(width)])
    (row,) = _read(step, header, texts).to_pylist() or [{}]
    return tuple(name or "" for name in row.values())


def in_order_of(names: Sequence[str], schema: pa.Schema, *, is_open: bool) -> pa.Schema:
    """Return the columns of the schema in a header's order; if `is_open`, some may be missing.

    Raises `InvalidInput` for duplicate, unknown or missing names.
    """
    if list(names) == schema.names:
        return schema
    require_distinct(names)
    unknown = [name for name in names if name not in schema.names]
    missing = [] if is_open else [name for name in schema.names if name not in names]
    if unknown or missing:
        faults = [("has unknown columns", unknown), ("lacks columns", missing)]
        what = " and ".join(f"{fault} {', '.join(map(repr, some))}" for fault, some in faults if some)
        raise InvalidInput(text=f"the header {what}; the columns are {', '.join(schema.names)}")
    return pa.schema([schema.field(name) for name in names])


def require_distinct(names: Sequence[str]) -> None:
    """Raise `InvalidInput` for duplicate names in a header."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidInput(text=f"the header has duplicate columns: {', '.join(map(repr, twice))}")


def inferred_types(step: ReadStepCsv, names: Sequence[str], texts: Sequence[bytes]) -> pa.Schema:
    """Return columns with these names: strings, or `exact_type` if the step infers types; raises `InvalidInput`."""
    strings = pa.schema([(name, pa.string()) for name in names])
    require_distinct(names)
    text = b"\n".join(texts)
    if not step.infer_schema or grammar_of(step).is_blank(text):
        return strings
    require_utf8(text)
    schema = stored_schema(_read(step, text, None, names=names).schema)
    written = _read(step, text, strings).columns
    exact = [exact_type(values, column.type) for values, column in zip(written, schema, strict=True)]
    return pa.schema([column.with_type(type_) for column, type_ in zip(schema, exact, strict=True)])


def _may_be_hexadecimal(text: bytes) -> bool:
    return b"0x" in text or b"0X" in text


class _NotWhole(InvalidInput):
    """A value of an integer column is not written as an integer."""


def _readable(schema: pa.Schema) -> pa.Schema:
    """Return the schema with strings for decimals: from Csv, Arrow does not parse the wider ones."""
    return pa.schema(
        [column.with_type(pa.string()) if kind.is_decimal(column.type) else column for column in schema]
    )


def _with_text_for_integers(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [column.with_type(pa.string()) if kind.is_integer(column.type) else column for column in schema]
    )


def _require_finite(step: ReadStepCsv, text: bytes, table: pa.Table, formats: TimeFormats) -> None:
    """Raise `InvalidInput` for a number that became infinite because it is too large for its type."""
    for column in table.schema:
        if (
            kind.is_floating(column.type)
            and pc.any(pc.is_inf(table.column(column.name)), min_count=0).as_py()
        ):
            strings = pa.schema([(name, pa.string()) for name in table.column_names])
            convert_column(_read(step, text, strings, only=[column.name]).column(0), column, formats)


def _infers(step: ReadStepCsv) -> bool:
    return bool(step.infer_schema) and step.schema is None and step.ddl_schema is None


def _require_unchanged(step: ReadStepCsv, text: bytes, columns: pa.Schema) -> None:
    """Raise `InvalidInput` for the text of a number that its column, whose type is inferred, would change."""
    numbers = [column for column in columns if _is_number(column.type)]
    if not numbers:
        return
    strings = pa.schema([(name, pa.string()) for name in columns.names])
    texts = _read(step, text, strings, only=[column.name for column in numbers])
    for column, values in zip(numbers, texts.columns, strict=True):
        changed = values.filter(changed_by(values, column.type))
        if len(changed):
            type_, value = type_name(column.type), show_value(changed[0].as_py())
            why = f"{value} is not as {type_} prints a number, and earlier records had no others"
            raise InvalidInput(where=f"column {column.name}", text=f"{why}; {_DECLARE.format(type=type_)}")


def _read(
    step: ReadStepCsv,
    text: bytes,
    schema: pa.Schema | None,
    *,
    names: Sequence[str] = (),
    only: Sequence[str] = (),
) -> pa.Table:
    grammar = grammar_of(step)
    names = names if schema is None else schema.names
    text = grammar.with_doubled_quotes(text)
    # At the end of a text, Arrow treats an empty value after a quoted one as quoted too.
    text = text if text.endswith(b"\n") else text + b"\n"
    if text.startswith(BOM):
        # The message's BOM is already removed: another one belongs to its first value, and Arrow would strip it.
        text = b"\n" + text
    try:
        return pcsv.read_csv(
            pa.BufferReader(text),
            read_options=pcsv.ReadOptions(
                column_names=names, block_size=max(1 << 20, min(len(text), 16 << 20))
            ),
            parse_options=pcsv.ParseOptions(
                delimiter=grammar.separator,
                quote_char=grammar.quote or False,
                escape_char=False,
                double_quote=grammar.quote is not None,
                newlines_in_values=True,
            ),
            convert_options=_converting(step, schema, only),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _explain(str(error), names, schema) from error


def _converting(step: ReadStepCsv, schema: pa.Schema | None, only: Sequence[str]) -> pcsv.ConvertOptions:
    nulls = ["" if step.null_value is None else step.null_value]
    return pcsv.ConvertOptions(
        column_types=schema,
        include_columns=only or None,
        null_values=nulls,
        strings_can_be_null=True,
        quoted_strings_can_be_null=step.null_value is not None,
    )


def _explain(text: str, names: Sequence[str], schema: pa.Schema | None) -> InvalidInput:
    """Return Arrow's error with the column's name instead of its number."""
    of_column = _IN_COLUMN.search(text)
    if of_column is not None:
        number, type_, what = of_column.groups()
        name = names[int(number)]
        column_type = None if schema is None else schema.field(int(number)).type
        if type_ is not None and column_type is not None and kind.is_integer(column_type):
            return _NotWhole(where=f"column {name}", text=f"{printable(what)} for {type_}")
        value = _VALUE.search(what)
        if value is not None and column_type is not None:
            text = misfit_text(value.group(1), ValueKind.TEXT, column_type)
            return InvalidInput(where=f"column {name}", text=text)
        text = printable(what)
        return InvalidInput(where=f"column {name}", text=text if type_ is None else f"{text} for {type_}")
    width = _WIDTH.search(text)
    if width is not None:
        expected, got, row = width.groups()
        what = f"has {got} values instead of {expected} ({', '.join(names)})"
        return InvalidInput(text=f"{what}: {printable(row.strip())}")
    return InvalidInput(text=printable(text))
