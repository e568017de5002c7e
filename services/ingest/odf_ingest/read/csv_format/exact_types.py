"""The type of a Csv column without a declared one: values that print as the text they were read from, or text.

A postcode such as `00501` would lose its zeros as a number, and no later step could restore them. Whole numbers among
fractions, `1` beside `2.5`, are numbers: files of measurements are written so. A time may be printed in another
notation, since it is the same time; a time with only an hour, or a date among them, is text.
"""

import math
import re
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

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
    """Return the type of a column whose values are these; `likely` is Arrow's, which need not print as the texts."""
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
    """Return whether a Csv text may have a number that `changed_by` finds; True for some that have none."""
    return _MAY_CHANGE.search(text) is not None


def changed_by(texts: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Return the texts that an inferred column would change.

    Of another notation (007, +7, 1e5), or with more digits.
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
    """Return the reason why a column of numbers has to be text; None if it has none, or no number.

    `has_null_value`: a text already stands for null, so that no other can.
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
    """Return the first that a BIGINT does not hold, if a DECIMAL(38, 0) holds and prints them all; None: none."""
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
    """Return DOUBLE, DECIMAL if all have the same number of decimals, or STRING."""
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
