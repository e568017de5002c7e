"""String columns → numbers, exactly: an integer may be written with a zero fraction or an exponent."""

import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.errors import InvalidInput
from odf_ingest.read.types.type_names import Quoted, shown, type_name

LONG_INTEGER: Final = re.compile(rb"(?<![\d.])\d{16,}+(?![.eE])")  # which a double may not represent exactly
HEXADECIMAL: Final = "0[xX]"  # which Arrow reads as an integer, and 0xFF as the TINYINT -1
_ZERO_FRACTION: Final = r"^(\s*[+-]?\d+)\.0*(\s*)$"
_INFINITE: Final = r"(?i)^\s*[+-]?inf(?:inity)?\s*$"
_TOO_MANY_DIGITS: Final = 30  # no integer type has as many


def to_whole_numbers(texts: pa.Array | pa.ChunkedArray, target: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return integers; raises `InvalidInput` for the first string that is not one, such as `1039.5`."""
    require_decimal_digits(texts, target)
    plain = pc.utf8_trim_whitespace(pc.replace_substring_regex(texts, _ZERO_FRACTION, r"\1"))
    try:
        return plain.cast(target)
    except pa.ArrowInvalid:
        numbers = [None if text is None else _whole_number(text, target) for text in texts.to_pylist()]
    return pa.array(numbers, target)


def require_decimal_digits(texts: pa.Array | pa.ChunkedArray, target: pa.DataType) -> None:
    """Raise `InvalidInput` for the first string with hexadecimal digits."""
    wrong = texts.filter(pc.match_substring_regex(texts, HEXADECIMAL))
    if len(wrong):
        raise InvalidInput(text=f"{shown(wrong[0].as_py())} is not a value of {type_name(target)}")


def _whole_number(text: str, target: pa.DataType) -> int:
    try:
        number: int = pa.scalar(text.strip()).cast(target).as_py()
    except pa.ArrowInvalid:
        number = _exact(text, target)
    return number


def _exact(text: str, target: pa.DataType) -> int:
    refused = InvalidInput(text=f"{shown(text)} is not a value of {type_name(target)}")
    try:
        number = Decimal(text) if text.isascii() and "_" not in text else Decimal("NaN")
    except InvalidOperation as error:
        raise refused from error
    if not number.is_finite() or number.adjusted() > _TOO_MANY_DIGITS or number != number.to_integral_value():
        raise refused
    try:
        pa.scalar(int(number), target)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise refused from error
    return int(number)


def require_room(values: pa.Array | pa.ChunkedArray, target: pa.DataType) -> None:
    """Raise `InvalidInput` for a decimal, or the text of one, with more digits before the point than `target` has.

    Arrow's cast would wrap some of these. Values that are not numbers or text are left to Arrow.
    """
    if isinstance(values, pa.ChunkedArray):
        for chunk in values.chunks:
            require_room(chunk, target)
    elif kind.is_struct(target) and kind.is_struct(values.type):
        for part, inner in zip(values.flatten(), values.type.fields, strict=True):
            if target.get_field_index(inner.name) >= 0:
                require_room(part, target.field(inner.name).type)
    elif kind.is_list(target) and (kind.is_list(values.type) or kind.is_large_list(values.type)):
        require_room(values.flatten(), target.value_type)
    elif kind.is_decimal(target) and kind.is_dictionary(values.type):
        require_room(values.dictionary_decode(), target)
    elif kind.is_decimal(target):
        for value in _suspects(values, target.precision - target.scale):
            raise InvalidInput(text=f"{shown(value)} is not a value of {type_name(target)}")


def _suspects(values: pa.Array, digits: int) -> Iterable[object]:
    """Yield decimals, or texts of them, with more than that many digits before the point."""
    if kind.is_decimal(values.type):
        if values.type.precision - values.type.scale > digits:
            least = pa.scalar(Decimal(10) ** digits, values.type)
            yield from map(Quoted, values.filter(pc.greater_equal(pc.abs(values), least)).to_pylist())
    elif kind.is_string(values.type) or kind.is_large_string(values.type) or kind.is_string_view(values.type):
        texts = values.cast(pa.large_string())
        is_usual = pc.match_substring_regex(texts, rf"^\s*[+-]?0*\d{{0,{digits}}}(?:\.\d*)?\s*$")
        yield from (text for text in texts.filter(pc.invert(is_usual)).to_pylist() if _is_long(text, digits))


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


def require_finite(texts: pa.Array | pa.ChunkedArray, target: pa.DataType) -> None:
    """Raise `InvalidInput` for the first number that is too large for a float column and would become infinite."""
    numbers = pc.utf8_trim_whitespace(texts).cast(target)
    is_named = pc.match_substring_regex(texts, _INFINITE)
    wrong = pc.and_(pc.is_inf(numbers), pc.invert(is_named))
    if pc.any(wrong, min_count=0).as_py():
        first = texts.filter(wrong)[0].as_py()
        raise InvalidInput(text=f"{shown(first)} is not a value of {type_name(target)}")
