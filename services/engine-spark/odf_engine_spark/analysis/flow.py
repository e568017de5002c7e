"""Facts about the rows of a plan: their streams, when they are complete, and how long records must be retained.

Times are in microseconds of event time; columns are identified by Spark's expression ids (see `times`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from odf_common.errors import InvalidQuery
from odf_engine_spark.analysis.times import FOREVER, STRICT, Frame, Lateness, Span, Time, Times


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The facts about the rows of a plan's node."""

    streams: frozenset[str]
    waits: bool = False
    """Whether rows wait for the watermark, because they depend on more than one record."""
    is_retractable: bool = False
    """Whether rows may be retracted later, regardless of the watermark."""
    times: Times = field(default_factory=dict)
    maybe: Times = field(default_factory=dict)
    """Columns of times that an outer join may make null."""
    is_full: bool = False
    """Whether the times in `maybe` come from a FULL join, of which at most one side is null."""
    retention: Mapping[str, float] = field(default_factory=dict)
    """The retention of each stream: how long after a record is complete a row that needs the record may be complete."""
    late: Mapping[str, Lateness] = field(default_factory=dict)
    shown: frozenset[str] = frozenset()
    """The streams whose records give rows even without a partner in a join."""
    join_sides: tuple[Times, ...] = ()
    """The time columns of each side of a join; a row is complete with the latest of its sides."""
    period: int = 1
    """Rows are complete only at multiples of `period`, shifted by `phase`."""
    phase: int = 0
    system: Mapping[int, str] = field(default_factory=dict)
    misused: frozenset[str] = frozenset()
    """The system columns that results are computed from."""

    def per_record(self) -> "Flow":
        """Return the flow with a lateness rule for each stream: each record on its own, unless windows have set one."""
        return replace(self, late={name: self.late.get(name, STRICT) for name in self.streams})

    def require_final(self, what: str) -> "Flow":
        """Return the flow, for a step that needs final rows; raises `InvalidQuery` if its rows may be retracted."""
        if self.is_retractable:
            raise InvalidQuery(
                text=f"{what} cannot follow a GROUP BY, row_number() or other step whose rows change later: "
                "replace that step by a dataset of windows, or group by window(<event time>, '<size>')"
            )
        return self

    def watermark(self, event_time: Time | None, input_watermark: int | None) -> int | None:
        """Return the watermark of the output once all rows complete at `input_watermark` are emitted; None if unknown.

        No later row may have an earlier event time.
        """
        if (
            self.is_retractable
            or event_time is None
            or input_watermark is None
            or event_time.span.upper == FOREVER
        ):
            return None
        behind = int(event_time.span.upper) - self.phase
        if self.period > 1:  # the watermark of windows is at most the start of the next one
            behind = max(behind, self.period - self.phase)
        reached = (input_watermark - self.phase) // self.period * self.period + self.period - behind
        return min(reached, input_watermark)

    def group_by_time(self, key: Time, times: Times) -> "Flow":
        """Return the flow of rows grouped by a time column; each is complete with the last record of its group."""
        slack = key.span.upper - key.span.lower
        if FOREVER in (slack, key.span.upper):
            raise InvalidQuery(text="rows of a join without time bounds cannot be grouped by time")
        assert slack >= 0
        late = dict(self.late)
        for name in self.streams - late.keys():
            late[name] = key.windows or STRICT
        return Flow(
            streams=self.streams,
            waits=True,
            times=times,
            retention={name: retention + slack for name, retention in self.retention.items()},
            late=late,
            shown=self.shown,
            join_sides=(times,),
            period=key.period,
            phase=int(key.span.upper),
        )


def longest_retention(reaches: Mapping[str, float], others: Mapping[str, float]) -> Mapping[str, float]:
    """Merge two retention maps, keeping the longer retention of each stream."""
    both = {**reaches}
    for name, retention in others.items():
        both[name] = max(retention, both.get(name, 0))
    return both


def merged_lateness(one: Flow, other: Flow) -> Mapping[str, Lateness]:
    """Merge the lateness rules of each stream; if two uses have different rules, each record is late on its own."""
    late: dict[str, Lateness] = {}
    for name in one.streams | other.streams:
        rules = {flow.late.get(name, STRICT) for flow in (one, other) if name in flow.streams}
        late[name] = rules.pop() if len(rules) == 1 else STRICT
    return late


def unite_flows(flows: tuple[Flow, ...], ids: tuple[tuple[int, ...], ...], *, waits: bool) -> Flow:
    """Return the flow of a UNION ALL with the column ids of its first branch.

    `waits` is whether its rows have no other order than that of their completion.
    """
    first, *others = flows
    waits = waits or any(flow.waits for flow in flows)
    result = replace(first, join_sides=(), times={}, system={}, waits=waits)
    for other in others:
        result = replace(
            result,
            streams=result.streams | other.streams,
            is_retractable=result.is_retractable or other.is_retractable,
            retention=longest_retention(result.retention, other.retention),
            late=merged_lateness(result, other) if waits else {},
            shown=result.shown | other.shown,
            misused=result.misused | other.misused,
            maybe={},
            period=result.period if (result.period, result.phase) == (other.period, other.phase) else 1,
            phase=result.phase if (result.period, result.phase) == (other.period, other.phase) else 0,
        )
    if result.waits and result.is_retractable:
        raise InvalidQuery(
            text="UNION ALL cannot combine rows that may change later (GROUP BY, row_number()) with rows that wait for "
            "the watermark (windows, joins) or with other rows of the same input: use two datasets"
        )
    times: dict[int, Time | Frame] = {}
    system: dict[int, str] = {}
    for columns in zip(*ids, strict=True):
        time = common([flow.times.get(column) for flow, column in zip(flows, columns, strict=True)])
        if time is not None:
            times[columns[0]] = time
        names = {flow.system.get(column, "") for flow, column in zip(flows, columns, strict=True)}
        if len(names) == 1 and (name := names.pop()):
            system[columns[0]] = name
    return replace(result, times=times, system=system, join_sides=(times,))


def common(times: Sequence[Time | Frame | None]) -> Time | Frame | None:
    """Return what is known of a column in all branches of a UNION ALL."""
    result = times[0]
    for other in times[1:]:
        match result, other:
            case Time(), Time():
                windows = result.windows if result.windows == other.windows else None
                # Times of either branch are multiples of this.
                period = math.gcd(result.period, other.period)
                result = Time(span=result.span.hull(other.span), period=period, windows=windows)
            case Frame(), Frame() if (result.size, result.slide) == (other.size, other.slide):
                windows = result.windows if result.windows == other.windows else None
                result = replace(result, end=result.end.hull(other.end), windows=windows)
            case _:
                return None
    return result


def join_flows(
    kind: str, left: Flow, right: Flow, bounds: tuple[float, float], *, is_keyed: bool
) -> tuple[Flow, float, float]:
    """Return the flow of a join, and how long a row of the left and of the right side waits for a partner.

    `bounds` are the minimum and maximum of how much later than the left row the right row is complete.
    """
    lower, upper = bounds
    _require_joinable(kind, lower, upper, is_keyed=is_keyed)
    # An inner join emits pairs only. The other kinds ask whether a row has a partner at all, which is known only when
    # none can come any more.
    waits_left = max(0.0, upper) if kind in ("LeftOuter", "FullOuter", "LeftSemi", "LeftAnti") else 0.0
    waits_right = max(0.0, -lower) if kind in ("RightOuter", "FullOuter") else 0.0
    reach_left = {n: r + max(0.0, upper, upper + waits_right) for n, r in left.retention.items()}
    reach_right = {n: r + max(0.0, -lower, waits_left - lower) for n, r in right.retention.items()}
    here = _widen_times(left.times, max(0.0, lower), max(0.0, upper))
    there = _widen_times(right.times, max(0.0, -upper), max(0.0, -lower))
    maybe_here = _widen_times(left.maybe, max(0.0, lower), max(0.0, upper))
    maybe_there = _widen_times(right.maybe, max(0.0, -upper), max(0.0, -lower))
    flow = Flow(
        streams=left.streams | right.streams,
        waits=True,
        retention=longest_retention(reach_left, reach_right),
        late=merged_lateness(left, right),
        system={**left.system, **right.system},
    )
    if (left.period, left.phase) == (right.period, right.phase) and lower == upper == 0:
        flow = replace(flow, period=left.period, phase=left.phase)
    match kind:
        case "Inner":
            join_sides = (*(left.join_sides or (left.times,)), *(right.join_sides or (right.times,)))
            maybe = {**maybe_here, **maybe_there}
            return replace(flow, times={**here, **there}, maybe=maybe, join_sides=join_sides), 0, 0
        case "LeftOuter":
            maybe = {**maybe_here, **maybe_there, **there}
            flow = replace(flow, times=here, maybe=maybe, shown=left.shown)
        case "RightOuter":
            maybe = {**maybe_here, **maybe_there, **here}
            flow = replace(flow, times=there, maybe=maybe, shown=right.shown)
        case "FullOuter":
            is_full = not left.maybe and not right.maybe
            flow = replace(flow, maybe={**here, **there}, is_full=is_full, shown=left.shown | right.shown)
        case _:
            flow = replace(flow, times=here, maybe=maybe_here, system=left.system)
    return flow, waits_left, waits_right


def _require_joinable(kind: str, lower: float, upper: float, *, is_keyed: bool) -> None:
    if lower > upper:
        raise InvalidQuery(text="the join's time bounds contradict each other: no row can ever match")
    is_bounded = lower != -FOREVER and upper != FOREVER
    if kind not in ("Inner", "LeftOuter", "RightOuter", "FullOuter", "LeftSemi", "LeftAnti"):
        raise InvalidQuery(text=f"INNER, LEFT, RIGHT, FULL, SEMI and ANTI joins are supported, not {kind}")
    if not is_bounded and not (kind == "Inner" and is_keyed):
        raise InvalidQuery(
            text="a join needs time bounds, such as a.window = b.window or b.event_time BETWEEN a.event_time "
            "AND a.event_time + INTERVAL 1 HOUR; without them, an INNER join needs an equal column, and keeps all rows"
        )


def _widen_times(times: Times, lower: float, upper: float) -> Times:
    return {
        column: replace(time, span=time.span.widened(lower=lower, upper=upper))
        if isinstance(time, Time)
        else replace(time, end=time.end.widened(lower=lower, upper=upper))
        for column, time in times.items()
    }


def latest(times: tuple[Span, ...]) -> Span:
    """Return the span of the latest of several times, one of each side."""
    return Span(min(time.lower for time in times), max(time.upper for time in times))
