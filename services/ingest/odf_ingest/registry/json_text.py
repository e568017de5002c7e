"""Converts values of binary formats to JSON exactly; values that JSON or columns cannot represent are refused."""

import base64
import math
from collections.abc import Iterable
from datetime import date, timedelta
from decimal import Context, Decimal
from json.encoder import encode_basestring
from typing import Final

from odf_common.errors import InvalidInput

MAX_DIGITS: Final = 76  # of a decimal, as the widest column has
DAY_SECONDS: Final = 86_400
_EPOCH: Final = date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = (date.min - _EPOCH).days, (date.max - _EPOCH).days
_EXACT: Final = Context(prec=MAX_DIGITS + 1)


def text_json(value: str) -> str:
    """Return a string as JSON."""
    return encode_basestring(value)


def integer_json(value: int) -> str:
    """Return an integer as JSON."""
    return str(value)


def boolean_json(value: bool) -> str:  # noqa: FBT001 - the value itself
    """Return a boolean as JSON."""
    return "true" if value else "false"


def bytes_json(value: bytes) -> str:
    """Return bytes as JSON: base64."""
    return f'"{base64.b64encode(value).decode()}"'


def floating_json(value: float) -> str:
    """Return a number as JSON, in the shortest form that is the same double."""
    if not math.isfinite(value):
        raise InvalidInput(text=f"{value} is not a number that a row can have")
    return repr(value)


def decimal_json(unscaled: int, precision: int, scale: int) -> str:
    """Return a decimal as a JSON string, so that it stays exact in a column without a declared type."""
    if abs(unscaled) >= 10**precision:
        raise InvalidInput(text=f"has a decimal of more than {precision} digits")
    return f'"{Decimal(unscaled).scaleb(-scale, _EXACT):f}"'


def date_json(days: int) -> str:
    """Return days since 1970 as JSON."""
    return f'"{_day(days)}"'


def time_json(units: int, digits: int) -> str:
    """Return a time of day in units of `digits` decimal places of a second as JSON."""
    seconds, fraction = divmod(units, 10**digits)
    if not 0 <= seconds < DAY_SECONDS:
        raise InvalidInput(text=f"{units} is not a time of day")
    return f'"{_clock(seconds, fraction, digits)}"'


def timestamp_json(units: int, digits: int, zone: str) -> str:
    """Return a timestamp in units of `digits` decimal places of a second since 1970 as JSON."""
    seconds, fraction = divmod(units, 10**digits)
    days, seconds = divmod(seconds, DAY_SECONDS)
    return f'"{_day(days)}T{_clock(seconds, fraction, digits)}{zone}"'


def array_json(items: Iterable[str]) -> str:
    """Return an array of values that are JSON."""
    return f"[{','.join(items)}]"


def object_json(members: Iterable[str]) -> str:
    """Return an object of members such as `"a":1`."""
    return f"{{{','.join(members)}}}"


def _day(days: int) -> date:
    if not _FIRST_DAY <= days <= _LAST_DAY:
        raise InvalidInput(text=f"the date {days} days from 1970 is not in the years 1 to 9999")
    return _EPOCH + timedelta(days=days)


def _clock(seconds: int, fraction: int, digits: int) -> str:
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02}:{minute:02}:{second:02}.{fraction:0{digits}}"
