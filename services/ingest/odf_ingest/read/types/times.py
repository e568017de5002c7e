"""Converts strings, numbers and times to timestamps, dates and times of day. Timestamps without a zone are UTC.

Times with a finer fraction than their column are truncated towards the past, or refused if the source's settings say
so. Numbers of seconds, or of a smaller unit, since 1970 are converted as decimals, never as doubles: 1700000000.1 s is
.100, not .099999905. A fraction of a nanosecond is refused.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.columns import in_unit
from odf_common.data.time_format import TimeFormat, epoch_digits, epoch_hint, time_format
from odf_common.errors import InvalidInput
from odf_ingest.read.types.type_names import Quoted, show_value, type_name

# Not a parameter of every reader: they are chosen by read steps, in which the specification has no such option.
_REFUSES_FINER: Final = ContextVar("_REFUSES_FINER", default=False)


@contextmanager
def refusing_finer_times(*, is_on: bool) -> Iterator[None]:
    """Within this context, refuse times that would be truncated with `InvalidInput`, if `is_on`."""
    before = _REFUSES_FINER.set(is_on)
    try:
        yield
    finally:
        _REFUSES_FINER.reset(before)


def cut(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return timestamps or times of day in the unit of `target`; finer ones are truncated towards the past.

    Raises `pa.ArrowInvalid` if a time is outside of the range of the unit.
    """
    result = in_unit(values, target)
    if _REFUSES_FINER.get():
        require_not_finer(values.cast(target, safe=False).cast(values.type), values, values)
    return result


def require_not_finer(restored: pa.Array, values: pa.Array, written: pa.Array) -> None:
    """Raise `InvalidInput` for the first of `values` that differs from its restored value, if that is refused.

    `restored` are the truncated times in the unit of `values`; `written` are the values for the message.
    """
    if _REFUSES_FINER.get():
        finer = written.filter(pc.not_equal(restored, values))
        if len(finer):
            raise _finer_time_refusal(finer[0].cast(pa.string()).as_py())


def _finer_time_refusal(text: str) -> InvalidInput:
    what = f"{show_value(text)} has a finer fraction than its column, and the source has finerTimes=refuse"
    return InvalidInput(text=f"{what}; declare more digits, or STRING")


def without_finer_digits(texts: pa.Array, digits: int) -> pa.Array:
    """Return the strings of times, truncated to `digits` digits after the point."""
    if _REFUSES_FINER.get():
        finer = texts.filter(pc.match_substring_regex(texts, rf"\.\d{{{digits}}}\d*[1-9]"))
        if len(finer):
            raise _finer_time_refusal(finer[0].as_py())
    return pc.replace_substring_regex(texts, rf"(\.\d{{{digits}}})\d+", r"\1")


WRITE_TIME: Final = "write it as 2026-01-31T23:59:59Z, or set timestampFormat"
WRITE_DATE: Final = "write it as 2026-01-31, or set dateFormat"
MICROSECONDS: Final = pa.timestamp("us", "UTC")
_DIGITS: Final = {"us": 6, "ns": 9}  # maximum digits of a fraction
_ZONE: Final = r"[Tt :]\d\d(?:\.\d+)?\s*(?:[Zz]|[+-]\d\d:?\d\d)$"
_TIME: Final = r"^(?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?$"


def to_days(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return the days of times that are midnight in UTC; raises `ValueError` if one is not."""
    if kind.is_timestamp(values.type):
        # With another zone, Arrow would give its local day.
        values = values.cast(pa.timestamp(values.type.unit, "UTC"))
    days = values.cast(target)
    if not pc.all(pc.equal(days.cast(values.type), values), min_count=0).as_py():
        raise ValueError(target)
    return days


def from_dates(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Return midnight in UTC of each day; raises `pa.ArrowInvalid` if it is outside of the range of the unit."""
    return to_days(values, pa.date32()).cast(target)


def read_as(target: pa.DataType) -> pa.DataType:
    """Return the type to parse timestamps to before they are converted to `target`.

    Its unit is at least as fine as that of `target`, and has a wide range if possible.
    """
    return pa.timestamp("ns", "UTC") if target.unit == "ns" else MICROSECONDS


def to_timestamps(texts: pa.Array, format_text: str | None, target: pa.DataType = MICROSECONDS) -> pa.Array:
    """Return timestamps of type `target` or `read_as(target)`. Strings are in RFC 3339 unless a format is given.

    Raises `ValueError` if a string is not a timestamp; for a single string an `InvalidInput` with the reason.
    """
    digits = epoch_digits(format_text)
    if digits is not None:
        return from_epoch(texts, digits, target)
    how = None if format_text is None else time_format(format_text)

    def read(some: pa.Array, type_: pa.DataType) -> pa.Array:
        if how is None:
            return _rfc3339(some, type_)
        return _by_regex(some, how, type_) if how.is_numeric else _one_by_one(some, how).cast(type_)

    try:
        return read(texts, read_as(target))
    except pa.ArrowInvalid as error:
        if len(texts) > 1:
            raise
        is_far = target.unit == "ns" and _reads(texts, partial(read, type_=MICROSECONDS))
        reach = ", whose range is the years 1677 to 2262; declare fewer digits" if is_far else ""
        text = texts[0].as_py()
        if how is not None and not is_far:
            raise _no_such_time(text, how) from error
        hint = reach or epoch_hint(text) or f"; {WRITE_TIME}"
        raise InvalidInput(text=f"{show_value(text)} is not a value of {type_name(target)}{hint}") from error


def to_dates(texts: pa.Array, format_text: str | None) -> pa.Array:
    """Return dates. Strings are `YYYY-MM-DD` unless a format is given. Raises the same errors as `to_timestamps`."""
    how = None if format_text is None else time_format(format_text)

    def read(some: pa.Array) -> pa.Array:
        if how is None:
            return some.cast(pa.date32())
        timestamps = _by_regex(some, how, None) if how.is_numeric else _one_by_one(some, how)
        return timestamps.cast(pa.date32(), safe=False)

    try:
        return read(texts)
    except pa.ArrowInvalid as error:
        if len(texts) > 1:
            raise
        text = texts[0].as_py()
        if how is not None:
            raise _no_such_time(text, how) from error
        raise InvalidInput(text=f"{show_value(text)} is not a value of DATE; {WRITE_DATE}") from error


def _no_such_time(text: str, how: TimeFormat) -> InvalidInput:
    """Return the error for a string that matches a format but is not a valid time, such as the 30th of February."""
    return InvalidInput(text=f"{show_value(text)} has the format {how.text!r}, and no such time exists")


def _reads(texts: pa.Array, read: Callable[[pa.Array], pa.Array]) -> bool:
    try:
        read(texts)
    except pa.ArrowInvalid:
        return False
    return True


def to_times(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Return times of day: `HH:MM`, optionally with seconds and a fraction, truncated to the unit of `target`."""
    is_time = pc.match_substring_regex(texts, _TIME)
    if pc.any(pc.invert(is_time), min_count=0).as_py():
        first = texts.filter(pc.invert(is_time))[0].as_py()
        raise InvalidInput(text=f"{show_value(first)} is not a time of day, such as 23:59:59.999")
    clock = without_finer_digits(texts, _DIGITS["ns"])
    day = pa.scalar("1970-01-01", pa.string())
    timestamps = pc.binary_join_element_wise(day, clock, "T").cast(pa.timestamp("ns"))
    return cut(timestamps.cast(pa.time64("ns")), target)


def _rfc3339(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    try:
        return texts.cast(type_)
    except pa.ArrowInvalid:
        # Some are naive, or finer than Arrow can parse.
        short = without_finer_digits(texts, _DIGITS[type_.unit])
    has_zone = pc.match_substring_regex(short, _ZONE)
    none = pa.scalar(None, pa.string())
    aware = pc.if_else(has_zone, pc.replace_substring_regex(short, "z$", "Z"), none).cast(type_)
    naive = pc.if_else(has_zone, none, short).cast(pa.timestamp(type_.unit))
    return pc.coalesce(aware, naive.cast(type_))


def _by_regex(texts: pa.Array, how: TimeFormat, type_: pa.DataType | None) -> pa.Array:
    """Return timestamps of type `type_`, or dates if it is None."""
    parts = pc.extract_regex(texts, pattern=how.regex)
    if parts.null_count > texts.null_count:
        _refuse(texts, parts, how)
    groups = dict(zip((field.name for field in parts.type), parts.flatten(), strict=True))
    two = {
        name: pc.utf8_lpad(groups[name], 2, "0") if name in groups else initial
        for name, initial in (("m", "01"), ("d", "01"), ("H", "00"), ("M", "00"), ("S", "00"))
    }
    year = groups.get("y", "1970")
    day = pc.binary_join_element_wise(year, two["m"], two["d"], "-")
    if type_ is None:
        return day.cast(pa.date32())
    clock = pc.binary_join_element_wise(two["H"], two["M"], two["S"], ":")
    if "f" in groups:
        fraction = pc.binary_join_element_wise("", groups["f"], ".")
        clock = pc.binary_join_element_wise(clock, without_finer_digits(fraction, _DIGITS[type_.unit]), "")
    naive = _nulls_of(texts, pc.binary_join_element_wise(day, clock, "T")).cast(pa.timestamp(type_.unit))
    timestamps = naive.cast(type_)
    if "z" not in groups:
        return timestamps
    return pc.subtract_checked(timestamps, _offsets(groups["z"]).cast(pa.duration(type_.unit)))


def _offsets(zones: pa.Array) -> pa.Array:
    """Return the offset of each zone from UTC."""
    digits = pc.replace_substring_regex(pc.replace_substring_regex(zones, "^Z$", "+00"), ":", "")
    digits = pc.utf8_rpad(digits, 5, "0")
    sign = pc.if_else(pc.starts_with(digits, "-"), -1, 1)
    hours = pc.utf8_slice_codeunits(digits, 1, 3).cast(pa.int64())
    minutes = pc.utf8_slice_codeunits(digits, 3, 5).cast(pa.int64())
    seconds = pc.multiply(sign, pc.add(pc.multiply(hours, 3600), pc.multiply(minutes, 60)))
    return pc.multiply(seconds, 1_000_000).cast(pa.duration("us"))


def _one_by_one(texts: pa.Array, how: TimeFormat) -> pa.Array:
    encoded = (
        texts.dictionary_encode()
        if isinstance(texts, pa.Array)
        else texts.combine_chunks().dictionary_encode()
    )
    timestamps = [
        None if text is None else _parse_timestamp(text, how) for text in encoded.dictionary.to_pylist()
    ]
    return pa.array(timestamps, MICROSECONDS).take(encoded.indices)


def _parse_timestamp(text: str, how: TimeFormat) -> datetime:
    try:
        if re.fullmatch(how.regex, text, re.ASCII) is None:
            raise ValueError(text)
        timestamp = datetime.strptime(how.prefix + text, how.strptime)  # noqa: DTZ007 - naive ones become UTC below
        return timestamp.replace(tzinfo=UTC) if timestamp.tzinfo is None else timestamp.astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(text=f"{show_value(text)} is not of the format {how.text!r}") from error


def _nulls_of(texts: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(pc.is_null(texts), pa.scalar(None, pa.string()), values)


def _refuse(texts: pa.Array, values: pa.Array, how: TimeFormat) -> None:
    wrong = pc.and_(pc.is_valid(texts), pc.is_null(values))
    first = texts.filter(wrong)[0].as_py()
    raise InvalidInput(text=f"{show_value(first)} is not of the format {how.text!r}")


_NANOSECOND_DIGITS: Final = 9
_EPOCH_DIGITS: Final = {"s": 0, "ms": 3, "us": 6, "ns": 9}  # of a fraction of a second
_UNITS: Final = {0: "seconds", 3: "milliseconds", 6: "microseconds", 9: "nanoseconds"}
_PLAIN: Final = r"^-?\d{1,20}(?:\.\d{1,9})?$"
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)


def epoch_decimal(digits: int) -> pa.DataType:
    """Return the decimal type for numbers of a unit that is `digits` decimals of a second, down to nanoseconds."""
    return pa.decimal256(38, _NANOSECOND_DIGITS - digits)


def from_epoch(values: pa.Array | pa.ChunkedArray, digits: int, target: pa.DataType) -> pa.Array:
    """Return timestamps of type `target` from strings, or from decimals.

    Raises `ValueError` if a value is not such a number; for a single value an `InvalidInput` with the reason.
    """
    values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    try:
        return _timestamps(values, digits, target)
    except (pa.ArrowInvalid, ArithmeticError) as error:
        if len(values) > 1:
            raise ValueError(target) from error
        value = values[0].as_py()
        text = show_value(Quoted(value.normalize()) if isinstance(value, Decimal) else value)
        raise InvalidInput(text=f"{text} is not a time in {_UNITS[digits]} since 1970") from error


def _timestamps(values: pa.Array, digits: int, target: pa.DataType) -> pa.Array:
    type_ = epoch_decimal(digits)
    numbers = _decimals(values, type_) if kind.is_string(values.type) else values.cast(type_)
    # The same digits with another point: the number in the unit of the column.
    shifted = pa.decimal256(38, _NANOSECOND_DIGITS - _EPOCH_DIGITS[target.unit])
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
