"""Numbers that are too large for the type of their column, which cannot change any more."""

import math
from decimal import Decimal, InvalidOperation
from typing import Final

import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.schema_evolution import OUTGROWN

_MAX_FLOAT: Final = Decimal(math.ldexp(2 - 2**-23, 127))  # of 32 bits


def outgrown(value: object, target: pa.DataType) -> str:
    """Return what to add to the message that a value does not fit a column: the ways that exist if it is too large."""
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
