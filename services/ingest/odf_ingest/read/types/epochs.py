"""Numbers of seconds, milliseconds, microseconds or nanoseconds since 1970, also as text → timestamps, exactly.

Numbers are decimals on the way, never doubles: 1700000000.1 s is .100, not .099999905. A fraction of a nanosecond is
refused. Fractions that are finer than the column are cut, as those of other timestamps are.
"""

import re
from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.errors import InvalidInput
from odf_ingest.read.types.finer_times import require_not_finer
from odf_ingest.read.types.type_names import Quoted, shown

_NANOSECOND_DIGITS: Final = 9
_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}  # of a fraction of a second
_UNITS: Final = {0: "seconds", 3: "milliseconds", 6: "microseconds", 9: "nanoseconds"}
_PLAIN: Final = r"^-?\d{1,20}(?:\.\d{1,9})?$"
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)


def epoch_decimal(digits: int) -> pa.DataType:
    """Return the type of numbers in the unit with that many decimals of a second; its fraction ends at nanoseconds."""
    return pa.decimal256(38, _NANOSECOND_DIGITS - digits)


def from_epoch(values: pa.Array | pa.ChunkedArray, digits: int, target: pa.DataType) -> pa.Array:
    """Return timestamps of type `target` from strings, or from decimals.

    Raises `ValueError` if one is not such a number; for a single value `InvalidInput` that explains it.
    """
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    try:
        return _timestamps(values, digits, target)
    except (pa.ArrowInvalid, ArithmeticError) as error:
        if len(values) > 1:
            raise ValueError(target) from error
        value = values[0].as_py()
        text = shown(Quoted(value.normalize()) if isinstance(value, Decimal) else value)
        raise InvalidInput(text=f"{text} is not a time in {_UNITS[digits]} since 1970") from error


def _timestamps(values: pa.Array, digits: int, target: pa.DataType) -> pa.Array:
    type_ = epoch_decimal(digits)
    numbers = _decimals(values, type_) if kind.is_string(values.type) else values.cast(type_)
    # The same digits with another point: the number in the unit of the column.
    shifted = pa.decimal256(38, _NANOSECOND_DIGITS - _DIGITS[target.unit])
    moved = pa.Array.from_buffers(shifted, len(numbers), numbers.buffers(), offset=numbers.offset)
    whole = pc.floor(moved)
    require_not_finer(whole, moved, values)
    return whole.cast(pa.int64()).cast(target)


def _decimals(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    if pc.all(pc.match_substring_regex(texts, _PLAIN), min_count=0).as_py():
        return texts.cast(type_)
    return pa.array([None if text is None else _decimal(text) for text in texts.to_pylist()], type_)


def _decimal(text: str) -> Decimal:
    if _NUMBER.fullmatch(text.strip()) is None:
        raise pa.ArrowInvalid(text)
    return Decimal(text.strip())
