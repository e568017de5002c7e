"""Facts about the times in a plan's columns, so that each result can be emitted once, when it is final.

Each row becomes *complete* at a point in event time: a record of an input one microsecond after its own event time, the
row of a window at the end of the window, and a joined row with the later of its sides. The row is emitted when the
watermark reaches that point. For each time column, the analysis knows how far its values are from that point. All
numbers are microseconds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from odf_common.errors import InvalidQuery
from odf_engine_spark.analysis.intervals import (
    DAY_MICROSECONDS,
    LONGEST_UNIT_MICROSECONDS,
    UNIT_MICROSECONDS,
    constant,
    literal_duration,
)
from odf_engine_spark.spark.tree import Tree

FOREVER: Final = math.inf
MONDAY: Final = 4 * DAY_MICROSECONDS  # the first one after the epoch


@dataclass(frozen=True, slots=True)
class Span:
    """The minimum and maximum time from a column's value to the point at which its row is complete."""

    lower: float
    upper: float

    def later(self, by: float) -> "Span":
        """Return the span for rows that are complete `by` later."""
        return Span(self.lower + by, self.upper + by)

    def widened(self, *, lower: float = 0, upper: float = 0) -> "Span":
        """Return the span with `lower` and `upper` added to its ends."""
        return Span(self.lower + lower, self.upper + upper)

    def hull(self, other: "Span") -> "Span":
        """Return the smallest span that contains both spans."""
        return Span(min(self.lower, other.lower), max(self.upper, other.upper))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """A rule for late records: a record is late if its last window had ended by the watermark of its input.

    Windows of `size` begin at multiples of `slide`, shifted by `offset`, or with each calendar `unit` of at most
    `size`. With size 1, each record is late on its own.
    """

    slide: int = 1
    size: int = 1
    offset: int = 0
    unit: str = ""


STRICT: Final = Lateness()


@dataclass(frozen=True, slots=True, kw_only=True)
class Time:
    """What is known of a time column."""

    span: Span
    period: int = 1
    """All values are multiples of this."""
    windows: Lateness | None = None
    """The windows of an input's event time that the values identify; None if values depend on anything else."""

    def step(self, size: int) -> int:
        """Return the minimum distance of values within a range of `size` that begins at a multiple of `size`."""
        return self.period if size % self.period == 0 else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What is known of a column of windows.

    `end` is the span of the windows' ends, which are multiples of `slide` apart; `windows` is as in `Time`.
    """

    end: Span
    size: int
    slide: int
    windows: Lateness | None = None

    @property
    def start_time(self) -> Time:
        """Return the starts of the windows as a time column."""
        return Time(span=self.end.later(self.size), period=self.slide, windows=self.windows)

    @property
    def end_time(self) -> Time:
        """Return the ends of the windows as a time column."""
        return Time(span=self.end, period=self.slide, windows=self.windows)


Times = Mapping[int, Time | Frame]


def known_of(value: Tree, times: Times) -> Time | Frame | None:
    """Return what is known of an expression, None if it is not a time or window."""
    match value.kind:
        case "AttributeReference":
            return times.get(value.id)
        case "Alias" | "DatetimeSub" | "DatetimeAdd" | "KnownNullable" | "KnownNotNull":
            return known_of(value.children[0], times)
        case "GetStructField":
            frame = known_of(value.children[0], times)
            if isinstance(frame, Frame):
                return frame.start_time if value.fields["ordinal"] == 0 else frame.end_time
            return None
        case "Cast":
            return _cast(known_of(value.children[0], times), value.fields["dataType"])
        case "ParseToDate" if len(value.children) == 1:
            return _cast(known_of(value.children[0], times), "date")
        case "TimestampAddInterval" | "TimestampAdd" | "DateAdd" | "DateSub":
            return _shift_time(value, times)
        case "TruncTimestamp":
            unit, timestamp = value.children
            return _truncate_time(timestamp, unit, times)
        case "TruncDate":
            timestamp, unit = value.children
            return _truncate_time(timestamp, unit, times)
        case _:
            return None


def time_of(value: Tree, times: Times) -> Time | None:
    """Return what is known of an expression, None if it is not a time."""
    time = known_of(value, times)
    return time if isinstance(time, Time) else None


def origin_of(value: Tree) -> Tree:
    """Return the expression that a time is a constant distance from, or whose window it is an edge of."""
    match value.kind:
        case "Alias" | "GetStructField" | "KnownNullable" | "KnownNotNull" | "DatetimeSub" | "DatetimeAdd":
            return origin_of(value.children[0])
        case "TimestampAddInterval" | "DateAdd" | "DateSub":
            return origin_of(value.children[0])
        case "TimestampAdd":
            return origin_of(value.children[1])
        case "Cast" if value.fields["dataType"] == "timestamp":
            return origin_of(value.children[0])
        case _:
            return value


def _cast(inner: Time | Frame | None, type_: object) -> Time | None:
    if not isinstance(inner, Time):
        return None
    match type_:
        case "timestamp":
            return inner
        case "date":
            span = inner.span.widened(upper=DAY_MICROSECONDS - inner.step(DAY_MICROSECONDS))
            return Time(span=span, period=DAY_MICROSECONDS, windows=_coarser(inner, DAY_MICROSECONDS))
        case _:
            return None


def _shift_time(value: Tree, times: Times) -> Time | None:
    match value.kind:
        case "TimestampAdd":
            amount, timestamp = value.children
            unit = UNIT_MICROSECONDS.get(str(value.fields["unit"]).lower())
            by = literal_duration(amount, unit) if unit else None
        case "DateAdd" | "DateSub":
            timestamp, days = value.children
            by = literal_duration(days, DAY_MICROSECONDS if value.kind == "DateAdd" else -DAY_MICROSECONDS)
        case _:
            timestamp, interval = value.children
            by = constant(interval)
    base = time_of(timestamp, times)
    if base is None or by is None:
        return None
    is_record = base.windows is not None and base.windows.size == 1
    windows = Lateness(offset=base.windows.offset - by) if base.windows and is_record else None
    return Time(span=base.span.later(-by), period=math.gcd(base.period, abs(by)) or 1, windows=windows)


def _truncate_time(timestamp: Tree, unit: Tree, times: Times) -> Time | None:
    base = time_of(timestamp, times)
    if base is None or unit.kind != "Literal":
        return None
    name = str(unit.fields["value"]).lower()
    size = UNIT_MICROSECONDS.get(name, LONGEST_UNIT_MICROSECONDS.get(name))
    if size is None:
        return None
    is_even = name in UNIT_MICROSECONDS and name != "week"  # weeks begin on Mondays, months are uneven
    return Time(
        span=base.span.widened(upper=size - base.step(size)),
        period=size if is_even else DAY_MICROSECONDS,
        windows=_coarser(
            base,
            size,
            offset=MONDAY if name == "week" else 0,
            unit="" if name in UNIT_MICROSECONDS else name[0],
        ),
    )


def _coarser(base: Time, size: int, *, offset: int = 0, unit: str = "") -> Lateness | None:
    """Return the windows of a time truncated to a size; None if they are not windows of event time."""
    fine = base.windows
    if fine is None or fine.slide < fine.size or (unit and fine.offset):
        return None
    if fine.size > 1:  # such windows have to begin at their own values, and each to fall into one new window
        grid = math.gcd(DAY_MICROSECONDS if unit else size, offset or size)
        if base.span.lower != 1 or fine.offset or fine.unit or grid % fine.size:
            return None
    return Lateness(slide=size, size=size, offset=(fine.offset + offset) % size, unit=unit)


def is_window(value: Tree) -> bool:
    """Return whether an expression is an analysed `window(…)`: a struct of conversions that SQL cannot express."""
    struct = value.children[0] if value.kind == "Alias" else value
    kinds = {node.kind for node in struct.walk()}
    return struct.kind == "CreateNamedStruct" and {"PreciseTimestampConversion", "Remainder"} <= kinds


def window_of(struct: Tree, times: Times) -> Frame | None:
    """Return what is known of an analysed `window(…)`, None for any other struct.

    Raises `InvalidQuery` for windows over anything but a time column, and for windows with an offset.
    """
    if not is_window(struct):
        return None
    remainders = [node for node in struct.walk() if node.kind == "Remainder"]
    slide = int(remainders[0].children[1].fields["value"])
    timestamp, offset = remainders[0].children[0].children
    if int(offset.fields["value"]):
        raise InvalidQuery(text="windows cannot start at an offset: omit the fourth argument of window()")
    base = time_of(timestamp.children[0], times)
    if base is None:
        raise _no_window_time(timestamp.children[0])
    size = _length(struct)
    if size % slide:
        raise InvalidQuery(text="a window's length has to be a multiple of its slide")
    end = Span(base.span.lower - size, base.span.upper - base.step(slide))
    windows = _coarser(base, slide)
    if windows is not None:  # overlapping windows are identified by their ends, which have to be event times
        windows = None if windows.offset and slide < size else replace(windows, size=size)
    return Frame(end=end, size=size, slide=slide, windows=windows)


def _no_window_time(value: Tree) -> InvalidQuery:
    text = "window() needs the input's event time column, or a column computed from it"
    zones = [node.children[1] for node in value.walk() if node.kind == "FromUTCTimestamp"]
    if zones:
        zone = zones[0].fields.get("value", "<zone>")
        local = f"from_utc_timestamp(<event time>, '{zone}')"
        text += f"; local days have 23 to 25 hours: GROUP BY to_date({local}), or date_trunc('hour', {local})"
    return InvalidQuery(text=text)


def _length(struct: Tree) -> int:
    _, _, _, end = struct.children
    for node in end.walk():
        if node.kind == "Add" and node.children[1].kind == "Literal":
            return int(node.children[1].fields["value"])
    raise AssertionError("a window's end is its start and a length")


def session_gap(struct: Tree) -> int | None:
    """Return the gap of an analysed `session_window(…)` in microseconds, None for any other struct.

    Raises `InvalidQuery` unless the gap is fixed.
    """
    nodes = list(struct.walk())
    is_session = struct.kind == "CreateNamedStruct" and not any(node.kind == "Remainder" for node in nodes)
    if not is_session or not any(node.kind == "PreciseTimestampConversion" for node in nodes):
        return None
    gaps = [constant(node.children[1]) for node in nodes if node.kind == "TimestampAddInterval"]
    if len(gaps) != 1 or gaps[0] is None or gaps[0] <= 0:
        raise InvalidQuery(
            text="session_window needs the unchanged event time and a fixed gap, such as '5 minutes'"
        )
    return gaps[0]
