"""What is known of a plan's rows: whose they are, how they become complete, how long records are needed.

Times are in microseconds of event time; columns are named by Spark's ids (see `times`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from odf_common.errors import InvalidQuery
from odf_engine_spark.analysis.times import FOREVER, STRICT, Frame, Known, Lateness, Span, Time


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What is known of a node's rows.

    `reach`: how long after a stream's record is complete a row that needs it may be, by stream.
    `sides`: columns of time one of which, on the side that comes last, tells when a row is complete.
    """

    streams: frozenset[str]
    waits: bool = False  # for the watermark: a row is more than one record
    takes_back: bool = False  # rows may be retracted later, at any event time
    known: Known = field(default_factory=dict)
    maybe: Known = field(default_factory=dict)  # may be null, from the far side of a join
    is_full: bool = False  # either side of `maybe` may be null, not both
    reach: Mapping[str, float] = field(default_factory=dict)
    late: Mapping[str, Lateness] = field(default_factory=dict)
    sides: tuple[Known, ...] = ()
    period: int = 1  # rows are complete at `phase` past a multiple
    phase: int = 0
    system: Mapping[int, str] = field(default_factory=dict)
    misused: frozenset[str] = frozenset()  # system columns that a result depends on

    def strict(self) -> "Flow":
        """Return the flow where each record stands for itself, unless windows have said otherwise."""
        return replace(self, late={name: self.late.get(name, STRICT) for name in self.streams})

    def settled(self, what: str) -> "Flow":
        """Return the flow; raises `InvalidQuery` if its rows may be taken back, for what needs final rows."""
        if self.takes_back:
            raise InvalidQuery(
                text=f"{what} cannot follow a GROUP BY, row_number() or other step whose rows change later: "
                "make that step a dataset of windows, or group by window(<event time>, '<size>')"
            )
        return self

    def watermark(self, event_time: Time | None, frontier: int | None) -> int | None:
        """Return the output's watermark when rows complete by `frontier` are out; law 5: never too late."""
        if self.takes_back or event_time is None or frontier is None or event_time.span.most == FOREVER:
            return None
        behind = int(event_time.span.most) - self.phase
        if self.period > 1:  # a window's watermark is where the next one begins, never later
            behind = max(behind, self.period - self.phase)
        reached = (frontier - self.phase) // self.period * self.period + self.period - behind
        return min(reached, frontier)

    def grouped(self, key: Time, known: Known) -> "Flow":
        """Return the flow of rows that belong to one value of a column of time, complete with the last of it."""
        slack = key.span.most - key.span.least
        if FOREVER in (slack, key.span.most):
            raise InvalidQuery(text="rows of a join without bounds in time cannot be grouped by time")
        assert slack >= 0
        late = dict(self.late)
        for name in self.streams - late.keys():
            late[name] = key.windows or STRICT
        return Flow(
            streams=self.streams,
            waits=True,
            known=known,
            reach={name: reach + slack for name, reach in self.reach.items()},
            late=late,
            sides=(known,),
            period=key.period,
            phase=int(key.span.most),
        )


def merged(reaches: Mapping[str, float], others: Mapping[str, float]) -> Mapping[str, float]:
    """Return the longer reach of each stream."""
    both = {**reaches}
    for name, reach in others.items():
        both[name] = max(reach, both.get(name, 0))
    return both


def merged_lateness(one: Flow, other: Flow) -> Mapping[str, Lateness]:
    """Return each stream's rule; where two uses differ, a record stands for itself."""
    late: dict[str, Lateness] = {}
    for name in one.streams | other.streams:
        rules = {flow.late.get(name, STRICT) for flow in (one, other) if name in flow.streams}
        late[name] = rules.pop() if len(rules) == 1 else STRICT
    return late


def united(flows: tuple[Flow, ...], ids: tuple[tuple[int, ...], ...], *, waits: bool) -> Flow:
    """Return the flow of UNION ALL, whose columns have the first branch's ids; `waits` if only time orders it."""
    first, *others = flows
    waits = waits or any(flow.waits for flow in flows)
    result = replace(first, sides=(), known={}, system={}, waits=waits)
    for other in others:
        result = replace(
            result,
            streams=result.streams | other.streams,
            takes_back=result.takes_back or other.takes_back,
            reach=merged(result.reach, other.reach),
            late=merged_lateness(result, other) if waits else {},
            misused=result.misused | other.misused,
            maybe={},
            period=result.period if (result.period, result.phase) == (other.period, other.phase) else 1,
            phase=result.phase if (result.period, result.phase) == (other.period, other.phase) else 0,
        )
    if result.waits and result.takes_back:
        raise InvalidQuery(
            text="UNION ALL takes rows that may change later (GROUP BY, row_number()) and rows that wait for the "
            "watermark (windows, joins), or other rows of the same input, in two datasets, not in one"
        )
    known: dict[int, Time | Frame] = {}
    system: dict[int, str] = {}
    for columns in zip(*ids, strict=True):
        found = common([flow.known.get(column) for flow, column in zip(flows, columns, strict=True)])
        if found is not None:
            known[columns[0]] = found
        names = {flow.system.get(column, "") for flow, column in zip(flows, columns, strict=True)}
        if len(names) == 1 and (name := names.pop()):
            system[columns[0]] = name
    return replace(result, known=known, system=system, sides=(known,))


def common(found: Sequence[Time | Frame | None]) -> Time | Frame | None:
    """Return what holds of a column in every branch."""
    result = found[0]
    for other in found[1:]:
        match result, other:
            case Time(), Time():
                windows = result.windows if result.windows == other.windows else None
                period = math.gcd(result.period, other.period)
                result = Time(span=result.span.hull(other.span), period=period, windows=windows)
            case Frame(), Frame() if (result.size, result.slide) == (other.size, other.slide):
                windows = result.windows if result.windows == other.windows else None
                result = replace(result, end=result.end.hull(other.end), windows=windows)
            case _:
                return None
    return result


def joined(
    kind: str, left: Flow, right: Flow, bounds: tuple[float, float], *, is_keyed: bool
) -> tuple[Flow, float, float]:
    """Return the flow of a join, and how long a row of either side waits for its partner.

    `bounds`: how much later than the left row the right one is complete, at least and at most.
    """
    least, most = bounds
    if least > most:
        raise InvalidQuery(text="the join's bounds in time exclude each other: no row can ever match")
    is_bounded = least != -FOREVER and most != FOREVER
    if kind not in ("Inner", "LeftOuter", "RightOuter", "FullOuter", "LeftSemi", "LeftAnti"):
        raise InvalidQuery(text=f"INNER, LEFT, RIGHT, FULL, SEMI and ANTI joins are supported, not {kind}")
    if not is_bounded and not (kind == "Inner" and is_keyed):
        raise InvalidQuery(
            text="a join needs bounds in time, such as a.window = b.window or b.event_time BETWEEN a.event_time "
            "AND a.event_time + INTERVAL 1 HOUR; without them, an INNER join needs an equal column, and keeps all rows"
        )
    waits_left = max(0.0, most) if kind in ("LeftOuter", "FullOuter", "LeftSemi", "LeftAnti") else 0.0
    waits_right = max(0.0, -least) if kind in ("RightOuter", "FullOuter") else 0.0
    reach_left = {n: r + max(0.0, most, most + waits_right) for n, r in left.reach.items()}
    reach_right = {n: r + max(0.0, -least, waits_left - least) for n, r in right.reach.items()}
    here = _moved(left.known, max(0.0, least), max(0.0, most))
    there = _moved(right.known, max(0.0, -most), max(0.0, -least))
    maybe_here = _moved(left.maybe, max(0.0, least), max(0.0, most))
    maybe_there = _moved(right.maybe, max(0.0, -most), max(0.0, -least))
    flow = Flow(
        streams=left.streams | right.streams,
        waits=True,
        reach=merged(reach_left, reach_right),
        late=merged_lateness(left, right),
        system={**left.system, **right.system},
    )
    if (left.period, left.phase) == (right.period, right.phase) and least == most == 0:
        flow = replace(flow, period=left.period, phase=left.phase)
    match kind:
        case "Inner":
            sides = (*(left.sides or (left.known,)), *(right.sides or (right.known,)))
            maybe = {**maybe_here, **maybe_there}
            return replace(flow, known={**here, **there}, maybe=maybe, sides=sides), 0, 0
        case "LeftOuter":
            flow = replace(flow, known=here, maybe={**maybe_here, **maybe_there, **there})
        case "RightOuter":
            flow = replace(flow, known=there, maybe={**maybe_here, **maybe_there, **here})
        case "FullOuter":
            is_full = not left.maybe and not right.maybe
            flow = replace(flow, maybe={**here, **there}, is_full=is_full)
        case _:
            flow = replace(flow, known=here, maybe=maybe_here, system=left.system)
    return flow, waits_left, waits_right


def _moved(known: Known, least: float, most: float) -> Known:
    return {
        column: replace(each, span=each.span.widened(least=least, most=most))
        if isinstance(each, Time)
        else replace(each, end=each.end.widened(least=least, most=most))
        for column, each in known.items()
    }


def latest(times: tuple[Span, ...]) -> Span:
    """Return the span of the greatest of times, one from each side."""
    return Span(min(each.least for each in times), max(each.most for each in times))
