"""Exact conversions of numbers and strings to numeric types.

The string of an integer may have a zero fraction or an exponent.
"""

import math
import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.schema_evolution import OUTGROWN

_MAX_FLOAT: Final = Decimal(math.ldexp(2 - 2**-23, 127))  # of 32 bits


def outgrown(value: object, target: pa.DataType) -> str:
    """Return a remedy for a value that is too large for its column, to add to the error; empty for other values."""
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return ""
    return f": it is too large; {OUTGROWN}" if number.is_finite() and _exceeds(number, target) else ""


def _exceeds(number: Decimal, target: pa.DataType) -> bool:
    if kind.is_integer(target):
        has_sign = kind.is_signed_integer(target)
        most = Decimal(2 ** (target.bit_width - has_sign))
        return number >= most or (has_sign and number < -most)
    if kind.is_decimal(target):
        return bool(number) and number.adjusted() >= target.precision - target.scale
    return bool(kind.is_float32(target)) and number.copy_abs() > _MAX_FLOAT


LONG_NUMBER: Final = re.compile(rb"(?<![\d.])\d{16,}+(?![eE])")  # which a double may not represent exactly
_LONG_TEXT: Final = re.compile(r"-?\d{16,}(?:\.\d+)?", re.ASCII)
HEXADECIMAL: Final = "0[xX]"  # which Arrow reads as an integer, and 0xFF as the TINYINT -1
_ZERO_FRACTION: Final = r"^(\s*[+-]?\d+)\.0*(\s*)$"
_INFINITE: Final = r"(?i)^\s*[+-]?inf(?:inity)?\s*$"
_TOO_MANY_DIGITS: Final = 30  # no integer type has as many
_ANY_INTEGER: Final = pa.decimal128(20)  # has room for every 64-bit integer
_EXACT_INTEGERS: Final = 2**53  # doubles have every integer up to this
_EXACT_POWERS_OF_TEN: Final = 22  # doubles have every power of ten up to this
_DIGITS_OF_DOUBLES: Final = 15  # decimals of up to this many digits have distinct doubles
_DECIMAL128_BITS: Final = 128


def to_whole_numbers(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Return integers; raises `ValueError` for a string that is not an integer of the type, such as `1039.5`."""
    if pc.any(pc.match_substring_regex(texts, HEXADECIMAL), min_count=0).as_py():
        raise ValueError(target)
    plain = pc.utf8_trim_whitespace(pc.replace_substring_regex(texts, _ZERO_FRACTION, r"\1"))
    try:
        return plain.cast(target)
    except pa.ArrowInvalid:
        numbers = [None if text is None else _whole_number(text, target) for text in texts.to_pylist()]
    return pa.array(numbers, target)


def _whole_number(text: str, target: pa.DataType) -> int:
    try:
        number: int = pa.scalar(text.strip()).cast(target).as_py()
    except pa.ArrowInvalid:
        number = _exact(text, target)
    return number


def _exact(text: str, target: pa.DataType) -> int:
    try:
        number = Decimal(text) if text.isascii() and "_" not in text else Decimal("NaN")
    except InvalidOperation as error:
        raise ValueError(text) from error
    if not number.is_finite() or number.adjusted() > _TOO_MANY_DIGITS or number != number.to_integral_value():
        raise ValueError(text)
    try:
        pa.scalar(int(number), target)
    except OverflowError as error:
        raise ValueError(text) from error
    return int(number)


def text_to_decimals(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Return decimals; raises Arrow's errors, and `ValueError` if a number has too many digits before the point."""
    digits = target.precision - target.scale
    # Arrow's cast would wrap some of the longer ones.
    is_usual = pc.match_substring_regex(texts, rf"^\s*[+-]?0*\d{{0,{digits}}}(?:\.\d*)?\s*$")
    if any(_is_long(text, digits) for text in texts.filter(pc.invert(is_usual)).to_pylist()):
        raise ValueError(target)
    return texts.cast(target)


def trimmed_text_to_decimals(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Return decimals, ignoring surrounding white space as for other numbers. Raises errors as `text_to_decimals`."""
    return text_to_decimals(pc.utf8_trim_whitespace(texts), target)


def decimals_to_decimals(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return the same numbers; raises Arrow's errors, and `ValueError` if a number has too many digits."""
    digits = target.precision - target.scale
    if values.type.precision - values.type.scale > digits:
        # As above.
        least = pa.scalar(Decimal(10) ** digits, values.type)
        if pc.any(pc.greater_equal(pc.abs(values), least), min_count=0).as_py():
            raise ValueError(target)
    return values.cast(target)


def integers_to_decimals(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return the same numbers; raises the same errors as `decimals_to_decimals`."""
    return decimals_to_decimals(values.cast(_ANY_INTEGER), target)


def integers_to_floats(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return the same numbers; raises `ValueError` if the target type cannot represent one of them exactly."""
    floats = values.cast(target, safe=False)
    bounds = pc.min_max(values).as_py()
    if bounds["min"] >= -_EXACT_INTEGERS and bounds["max"] <= _EXACT_INTEGERS:
        is_same = bool(pc.all(pc.equal(floats.cast(pa.float64()), values.cast(pa.float64()))).as_py())
    else:
        pairs = zip(floats.to_pylist(), values.to_pylist(), strict=True)
        is_same = all(number is None or float(real) == number for real, number in pairs)
    if not is_same:
        raise ValueError(target)
    return floats


def floats_to_floats(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return the same numbers; raises `ValueError` if the target type cannot represent one of them exactly."""
    floats, doubles = values.cast(target), values.cast(pa.float64())
    is_same = pc.or_(pc.equal(floats.cast(pa.float64()), doubles), pc.is_nan(doubles))
    if not pc.all(is_same, min_count=0).as_py():
        raise ValueError(target)
    return floats


def floats_to_decimals(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return for each float the decimal with the fewest digits that reads back as the same float.

    Raises the same errors as `text_to_decimals`.
    """
    decimals = _short_decimals(values, target) if kind.is_float64(values.type) else None
    return text_to_decimals(values.cast(pa.string()), target) if decimals is None else decimals


def _short_decimals(values: pa.Array, target: pa.DataType) -> pa.Array | None:
    """Return the floats as decimals if all have few digits, as amounts of money do; None otherwise.

    This is much faster than printing each float to find its shortest digits.
    """
    if target.scale > _EXACT_POWERS_OF_TEN or target.bit_width != _DECIMAL128_BITS:
        return None
    power = 10.0**target.scale
    floats = pc.fill_null(values, 0.0).to_numpy()
    with np.errstate(over="ignore"):
        scaled = floats * power
    if not (np.abs(scaled) < 10.0 ** min(target.precision, _DIGITS_OF_DOUBLES)).all():
        return None
    whole = np.rint(scaled)
    # The quotient of two exact doubles is the double nearest to the decimal, and no other decimal of up to 15 digits
    # has the same one: so these are its shortest digits.
    if not (whole / power == floats).all():
        return None
    words = np.empty((len(whole), 2), np.int64)
    words[:, 0] = whole
    words[:, 1] = words[:, 0] >> 63
    decimals = pa.Array.from_buffers(target, len(whole), [None, pa.py_buffer(words)])
    return pc.if_else(values.is_valid(), decimals, pa.scalar(None, target)) if values.null_count else decimals


def decimals_to_floats(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return the nearest floats; raises `ValueError` if a float does not print with the digits of its decimal."""
    # By text, since Arrow's own cast is not to the nearest number: it makes 19.990000000000002 of 19.99.
    floats = values.cast(pa.string()).cast(target)
    if not pc.all(pc.equal(floats_to_decimals(floats, values.type), values), min_count=0).as_py():
        raise ValueError(target)
    return floats


def _is_long(text: str, digits: int) -> bool:
    try:
        number = Decimal(text)
    except InvalidOperation:
        return False
    return bool(number) and number.is_finite() and number.adjusted() >= digits


def has_wide_decimals(columns: Iterable[pa.Field]) -> bool:
    """Return whether a column has decimals of more than 38 digits."""
    return any(
        kind.is_decimal256(column.type)
        or (kind.is_struct(column.type) and has_wide_decimals(column.type.fields))
        or (kind.is_list(column.type) and has_wide_decimals([column.type.value_field]))
        for column in columns
    )


def is_rounded(text: str) -> bool:
    """Return whether DOUBLE cannot represent a number that has many digits before the point and no exponent.

    Other numbers are never rounded in this sense: a fraction always becomes the nearest DOUBLE.
    """
    if _LONG_TEXT.fullmatch(text) is None:
        return False
    nearest = float(text)
    return Decimal(text) not in (Decimal(nearest), Decimal(repr(nearest)))


def to_floats(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Return the nearest floats; raises Arrow's errors, and `ValueError` if a number would become infinite."""
    numbers = pc.utf8_trim_whitespace(texts).cast(target)
    is_named = pc.match_substring_regex(texts, _INFINITE)
    if pc.any(pc.and_(pc.is_inf(numbers.cast(pa.float64())), pc.invert(is_named)), min_count=0).as_py():
        raise ValueError(target)
    return numbers
