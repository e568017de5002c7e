"""Encoding and decoding of values that FlatBuffers tables contain inline: integers and timestamps (wire-facts §2.2)."""

import struct
from datetime import date
from typing import Final

from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import NANOS, Timestamp, Width

_CODES: Final = {1: "b", 2: "h", 4: "i", 8: "q"}
_TIMESTAMP: Final = struct.Struct("<iHxxII")  # year, day of the year from 1, seconds, nanoseconds
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_DAY_SECONDS: Final = 86_400
_END: Final = Timestamp((date.max.toordinal() + 1 - _EPOCH_DAY) * _DAY_SECONDS * NANOS)  # of the year 9999


def integer_struct(width: Width) -> struct.Struct:
    """Return the binary layout of an integer of this width."""
    code = _CODES[width.size]
    return struct.Struct("<" + (code if width.signed else code.upper()))


def pack_timestamp(timestamp: Timestamp) -> bytes:
    """Encode a timestamp; raises `InvalidInput` outside of the years 1 to 9999."""
    days, within = divmod(timestamp.ns, _DAY_SECONDS * NANOS)
    try:
        day = date.fromordinal(days + _EPOCH_DAY)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(text=f"{timestamp.ns} ns since 1970 is outside the years 1 to 9999") from error
    ordinal = day.toordinal() - date(day.year, 1, 1).toordinal() + 1
    return _TIMESTAMP.pack(day.year, ordinal, *divmod(within, NANOS))


def unpack_timestamp(raw: bytes, position: int) -> Timestamp:
    """Decode the timestamp at a position; raises `InvalidInput` if its day or time of day does not exist."""
    year, ordinal, seconds, nanos = _TIMESTAMP.unpack_from(raw, position)
    try:
        first = date(year, 1, 1)
        day = date.fromordinal(first.toordinal() + ordinal - 1)
    except ValueError as error:
        raise InvalidInput(text=f"day {ordinal} of year {year} does not exist") from error
    # A leap second is written as more than a second of nanoseconds.
    if day.year != year or seconds >= _DAY_SECONDS or nanos >= 2 * NANOS:
        raise InvalidInput(text=f"day {ordinal} of {year} with {seconds} s and {nanos} ns is not a time")
    timestamp = Timestamp(((day.toordinal() - _EPOCH_DAY) * _DAY_SECONDS + seconds) * NANOS + nanos)
    if timestamp >= _END:
        raise InvalidInput(
            text=f"{timestamp} is outside the years 1 to 9999"
        )  # a block that carries it has no bytes
    return timestamp
