"""Scalar types of the metadata model; their names tell codecs the width of integers."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Self

from odf_common.errors import InvalidInput

Strings = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Width:
    """The width and sign of an integer in FlatBuffers."""

    size: int  # bytes
    signed: bool


UInt64 = Annotated[int, Width(8, signed=False)]
Int64 = Annotated[int, Width(8, signed=True)]
UInt32 = Annotated[int, Width(4, signed=False)]
Int32 = Annotated[int, Width(4, signed=True)]

NANOS: Final = 1_000_000_000
CLOCK_TOLERANCE_MS: Final = 300_000  # by how much the clocks of two machines may differ, unless it is set
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // timedelta(
    seconds=1
)  # first second with a date
_LAST: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // timedelta(seconds=1)
_CYCLE: Final = 146_097 * 86_400  # seconds in 400 years, after which the calendar repeats
_LAST_YEAR: Final = 9999
RFC3339_TIME: Final = re.compile(
    r"(\d{4,6})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A time in UTC with nanosecond precision, as nanoseconds since 1970-01-01T00:00:00Z."""

    ns: int

    @classmethod
    def from_ms(cls, milliseconds: int) -> Self:
        """Return the timestamp for milliseconds since the epoch, the unit of data columns."""
        return cls(milliseconds * 1_000_000)

    @classmethod
    def from_datetime(cls, timestamp: datetime) -> Self:
        """Return the timestamp for a datetime with a time zone; raises `InvalidInput` if it has none."""
        if timestamp.tzinfo is None:
            raise InvalidInput(text=f"expected a time with an offset, got {timestamp.isoformat()}")
        return cls((timestamp - _EPOCH) // timedelta(microseconds=1) * 1000)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse RFC 3339 and convert it to UTC; raises `InvalidInput` if the offset from UTC is missing."""
        match = RFC3339_TIME.fullmatch(text)
        if match is None:
            raise InvalidInput(text=f"expected an RFC 3339 time such as 2020-01-01T12:00:00Z, got {text!r}")
        year, month, day, hour, minute, second, fraction, zone = match.groups()
        try:
            whole = datetime(int(year), int(month), int(day), int(hour), int(minute), int(second), tzinfo=UTC)
        except ValueError as error:
            raise InvalidInput(text=f"{text!r} is not a time: {error}") from error
        offset = 0
        if zone not in ("Z", "z"):
            hours, minutes = int(zone[1:3]), int(zone[4:])
            if hours > 23 or minutes > 59:
                raise InvalidInput(
                    text=f"{text!r} is not a time: its offset is not below 24 hours of 60 minutes"
                )
            offset = (hours * 3600 + minutes * 60) * (-1 if zone[0] == "-" else 1)
        seconds = (whole - _EPOCH) // timedelta(seconds=1) - offset
        if not _FIRST <= seconds <= _LAST:
            raise InvalidInput(text=f"{text!r} is not a time: in UTC it is outside the years 1 to 9999")
        return cls(seconds * NANOS + int((fraction or "").ljust(9, "0")))

    @property
    def ms(self) -> int:
        """Return whole milliseconds since the epoch, rounded down."""
        return self.ns // 1_000_000

    def whole_ms(self) -> Self:
        """Return the timestamp rounded down to whole milliseconds."""
        return self.from_ms(self.ms)

    def datetime(self) -> datetime:
        """Return a datetime, rounded down to microseconds; raises `OverflowError` outside of the years 1 to 9999."""
        return _EPOCH + timedelta(microseconds=self.ns // 1000)

    def __str__(self) -> str:
        """Return RFC 3339 with `Z` and 0, 3, 6 or 9 fractional digits as needed (wire-facts §3.1).

        All values have a form, because any content of a chain or column has to be displayed. Years outside of 0 to 9999
        have a sign and at least four digits, as in the expanded form of ISO 8601, which `parse` does not accept.
        """
        seconds, nanos = divmod(self.ns, NANOS)
        cycles, within = divmod(seconds - _FIRST, _CYCLE)
        timestamp = _EPOCH + timedelta(seconds=_FIRST + within)
        year = timestamp.year + 400 * cycles
        sign = "-" if year < 0 else "+" if year > _LAST_YEAR else ""
        text = f"{sign}{abs(year):04d}-{timestamp:%m-%dT%H:%M:%S}"
        if nanos == 0:
            return text + "Z"
        digits = f"{nanos:09d}"
        while digits.endswith("000"):
            digits = digits[:-3]
        return f"{text}.{digits}Z"


@dataclass(frozen=True, slots=True)
class ExtraAttributes:
    """Additional attributes as a JSON object in one form: keys sorted, no spaces (wire-facts §1.6)."""

    entries: str


def record_count(last_offset: int | None) -> int:
    """Return the number of records of a dataset with this last offset, which is None if there are no records."""
    return 0 if last_offset is None else last_offset + 1
