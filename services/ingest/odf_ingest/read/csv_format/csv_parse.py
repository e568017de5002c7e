"""Parses Csv records that have the same columns with pyarrow, and infers types of columns that are not declared.

Numbers that pyarrow cannot parse exactly are parsed as strings first.

A column is inferred as numbers only if each number prints as the text it was read from: a postcode such as `00501`
would lose its zeros, and no later step could restore them. Integers among fractions, `1` next to `2.5`, are allowed,
because measurements are often written so. Times may print in another notation, because they are the same times; but
a column with a time without minutes, or with dates among timestamps, is text.
"""

import math
import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.types as kind

from odf_common.data.columns import stored_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStepCsv
from odf_ingest.read.csv_format.csv_records import grammar_of
from odf_ingest.read.encoding import BOM, require_utf8
from odf_ingest.read.types.columns import convert_table, parsed_schema, unconvertible_values
from odf_ingest.read.types.conversions import convert_column, misfit_text
from odf_ingest.read.types.kinds import TimeFormats, ValueKind
from odf_ingest.read.types.type_names import printable, show_value, type_name

_INTEGER: Final = r"^(?:0|-?[1-9]\d*)$"
_DECIMAL: Final = r"^-?(?:0|[1-9]\d*)\.\d+$"
_NEGATIVE_ZERO: Final = r"^-0\.0+$"  # a DECIMAL has no sign of zero
_BOOLEAN: Final = r"(?i)^(?:true|false)$"
_TIMESTAMP: Final = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?\s?(?:Z|[+-]\d\d(?::?\d\d)?)?$"
_TIME: Final = r"^\d\d:\d\d:\d\d$"
_DIGITS: Final = (18, 38)  # precisions of decimals: the usual one, and the widest that every reader knows
_MAY_CHANGE: Final = re.compile(rb"(?:^|[^\d.])0\d|\+[\d.]|\d[eE]|[\d.]{16}", re.MULTILINE)
_CHANGED: Final = r"^\s*(?:\+|-?0\d)"
_CHANGED_INTEGER: Final = r"^\s*(?:\+|-?0\d|\S*[eE])"
_MANY_DIGITS: Final = r"^\s*-?[\d.]{16,}\s*$"  # a DOUBLE has all of up to 15
_BIGINT: Final = range(-(2**63), 2**63)
_DECIMAL_38: Final = range(1 - 10**38, 10**38)
ANY_NUMBER: Final = r"^\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*$"


def exact_type(texts: pa.ChunkedArray, likely: pa.DataType) -> pa.DataType:
    """Return the type of a column with these values.

    `likely` is the type that Arrow infers. It is not used if its values would print differently.
    """
    if kind.is_integer(likely):
        return likely if _all(texts, _INTEGER) else pa.string()
    if kind.is_floating(likely):
        return _of_fractions(texts)
    if kind.is_boolean(likely):
        return likely if _all(texts, _BOOLEAN) else pa.string()
    if kind.is_timestamp(likely):
        return likely if _all(texts, _TIMESTAMP) else pa.string()
    if kind.is_time(likely):
        return likely if _all(texts, _TIME) else pa.string()
    return likely if kind.is_date(likely) else pa.string()


def may_change(text: bytes) -> bool:
    """Return whether a Csv text may contain a number that `changed_by` finds. A fast check, with false positives."""
    return _MAY_CHANGE.search(text) is not None


def changed_by(texts: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Return a mask of the texts that would change in a column of an inferred type.

    These are numbers in another notation (007, +7, 1e5), and numbers with more digits than the type has.
    """
    pattern = _CHANGED_INTEGER if kind.is_integer(type_) else _CHANGED
    changed = pc.and_(pc.match_substring_regex(texts, pattern), pc.match_substring_regex(texts, ANY_NUMBER))
    return pc.or_(changed, _loses_digits(texts)) if kind.is_floating(type_) else changed


def _loses_digits(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    is_long = pc.and_(
        pc.match_substring_regex(texts, _MANY_DIGITS), pc.match_substring_regex(texts, ANY_NUMBER)
    )
    if not pc.any(is_long, min_count=0).as_py():
        return is_long
    lost = [
        None if is_long_one is None else is_long_one and not _is_printed(text.strip())
        for is_long_one, text in zip(is_long.to_pylist(), texts.to_pylist(), strict=True)
    ]
    return pa.chunked_array([pa.array(lost, pa.bool_())])


def why_text(texts: pa.ChunkedArray, *, has_null_value: bool = False) -> str | None:
    """Return the reason why a column with numbers is inferred as text; None without a reason, or without numbers.

    `has_null_value`: the source already has a text that stands for null, so no other can be suggested.
    """
    is_number = pc.match_substring_regex(texts, ANY_NUMBER)
    numbers, others = texts.filter(is_number), texts.filter(pc.invert(is_number)).value_counts()
    if not len(numbers) or len(others) > 1:
        return None
    likely = pa.int64() if _all(numbers, r"^\s*[+-]?\d+\s*$") else pa.float64()
    if kind.is_integer(likely) and (large := _first_too_large(numbers)):
        return f"{large!r} is too large for BIGINT; if it holds numbers, declare it as DECIMAL(38, 0)"
    changed = _first_changed_text(numbers, likely) if kind.is_string(exact_type(numbers, likely)) else None
    if len(others) == 0 or changed is not None:
        return changed if len(others) == 0 else None
    value, count = others[0].as_py().values()
    why = f"{value!r} in {count} of {len(texts)} rows is no number"
    if has_null_value or texts.null_count:  # empty values would be text then
        return f"{why}, and another text stands for null"
    return f"{why}; if it stands for null, `--read-option nullValue={value}` makes the others numbers"


def _first_too_large(numbers: pa.ChunkedArray) -> str | None:
    """Return the first number that is too large for BIGINT, if DECIMAL(38, 0) can represent all; None otherwise."""
    whole = [int(text) for text in numbers.to_pylist() if text is not None] if _all(numbers, _INTEGER) else []
    if not all(number in _DECIMAL_38 for number in whole):
        return None
    return next((str(number) for number in whole if number not in _BIGINT), None)


def _first_changed_text(numbers: pa.ChunkedArray, likely: pa.DataType) -> str:
    """Return the first text that a number would print in another way."""
    name, number = ("BIGINT", int) if kind.is_integer(likely) else ("DOUBLE", float)
    text = next(text for text in numbers.to_pylist() if f"{number(text)}" not in (text, f"{text}.0"))
    return f"{text!r} would become {number(text)}; if it holds numbers, declare it as {name}"


def _of_fractions(texts: pa.ChunkedArray) -> pa.DataType:
    """Return the type of a column with fractions.

    It is DOUBLE if all texts print unchanged, DECIMAL if all have the same number of decimals, and otherwise STRING.
    """
    if all(text is None or _is_printed(text) for text in texts.to_pylist()):
        return pa.float64()
    if not _all(texts, _DECIMAL) or pc.any(pc.match_substring_regex(texts, _NEGATIVE_ZERO)).as_py():
        return pa.string()
    point = pc.find_substring(texts, ".")
    scales = pc.min_max(pc.subtract(pc.subtract(pc.utf8_length(texts), point), 1)).as_py()
    most = max(len(Decimal(text).as_tuple().digits) for text in texts.to_pylist() if text is not None)
    precision = next((digits for digits in _DIGITS if max(most, scales["max"]) <= digits), None)
    is_uniform = scales["min"] == scales["max"] and precision is not None
    return pa.decimal128(precision, scales["max"]) if is_uniform else pa.string()


def _is_printed(text: str) -> bool:
    """Return whether a finite DOUBLE is printed as this text, or, for a whole number, as this text and `.0`."""
    return math.isfinite(float(text)) and repr(float(text)) in (text, f"{text}.0") and text != "-0"


def _all(texts: pa.ChunkedArray, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py())


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
    """Return the indices of the records that probably cannot be parsed, without parsing each one alone.

    A good record may be included, for example because of a number in an unusual notation, and a bad one missing.
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
    """Return the columns of the schema in the order of a header. With `is_open`, the header may lack some.

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
    """Return the schema with strings in place of decimals: Arrow cannot parse wide decimals in Csv."""
    return pa.schema(
        [column.with_type(pa.string()) if kind.is_decimal(column.type) else column for column in schema]
    )


def _with_text_for_integers(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [column.with_type(pa.string()) if kind.is_integer(column.type) else column for column in schema]
    )


def _require_finite(step: ReadStepCsv, text: bytes, table: pa.Table, formats: TimeFormats) -> None:
    """Raise `InvalidInput` for a number that is too large for its type, which Arrow parses as infinite."""
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
    """Raise `InvalidInput` for a number that would print differently in its column, whose type was inferred."""
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
            convert_options=_convert_options(step, schema, only),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _explain(str(error), names, schema) from error


def _convert_options(step: ReadStepCsv, schema: pa.Schema | None, only: Sequence[str]) -> pcsv.ConvertOptions:
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
