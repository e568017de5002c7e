"""Analysis of single columns: which are times, which are system columns, and what depends on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from odf_common.errors import InvalidQuery
from odf_engine_spark.analysis.flow import Flow, common, latest
from odf_engine_spark.analysis.joins import join_kind
from odf_engine_spark.analysis.times import (
    STRICT,
    Frame,
    Span,
    Time,
    Times,
    known_of,
    origin_of,
    session_gap,
    time_of,
    window_of,
)
from odf_engine_spark.spark.tree import Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class InputColumns:
    """The columns of an input that the engine treats specially, by name."""

    event_time: str
    system: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOf:
    """The right side of a temporal join: `FOR SYSTEM_TIME AS OF t.event_time`."""

    table: str
    time: str
    view: str  # its name in Spark
    key: tuple[str, ...] = ()  # declared; if empty, the columns that the join compares


def output(node: Tree) -> tuple[tuple[str, int], ...]:
    """Return the names and expression ids of a plan's output columns."""
    match node.kind:
        case "Project":
            columns = node.part("projectList")
        case "Aggregate":
            columns = node.part("aggregateExpressions")
        case "LocalRelation" | "Expand":
            columns = node.part("output")
        case "Generate":
            own = tuple((column.fields["name"], column.id) for column in node.part("generatorOutput"))
            return (*output(node.children[0]), *own)
        case "Window":
            own = tuple((column.fields["name"], column.id) for column in node.part("windowExpressions"))
            return (*output(node.children[0]), *own)
        case "Join" if join_kind(node) not in ("LeftSemi", "LeftAnti"):
            return (*output(node.children[0]), *output(node.children[1]))
        case _:
            return output(node.children[0])
    return tuple((column.fields["name"], column.id) for column in columns)


def check_system_columns(flow: Flow) -> Flow:
    """Return the flow; raises `InvalidQuery` if results that are emitted per record depend on system columns."""
    if flow.misused and not flow.waits:
        raise InvalidQuery(
            text=f"column {min(flow.misused)} cannot be used in computations: a retraction would not repeat the record"
        )
    return flow


def reference(name: str, column: int) -> Tree:
    """Return an expression that refers to a column."""
    return Tree("AttributeReference", (), {"exprId": {"id": column}, "name": name})


def end_time_of(time: Time | Frame | None) -> Time | None:
    """Return the time of a column's values; for a column of windows, the time of their ends."""
    return time.end_time if isinstance(time, Frame) else time


def after_group(columns: Sequence[Tree], flow: Flow, key: Tree) -> Times:
    """Return the known times of grouped rows, each of which is complete with the last row of its group."""
    key_time = end_time_of(known_of(key, flow.times))
    assert key_time is not None
    slack = key_time.span.upper - key_time.span.lower
    times: dict[int, Time | Frame] = {}
    for column in columns:
        value = column.children[0] if column.kind == "Alias" else column
        if value.kind == "AggregateExpression" and value.children[0].kind in ("Min", "Max"):
            if value.part("filter"):
                continue  # null if the filter excludes all rows
            value = value.children[0].children[0]
        time = known_of(value, flow.times)
        if time is None:
            continue
        span = time.end if isinstance(time, Frame) else time.span
        is_exact = origin_of(value).meaning == origin_of(key).meaning  # the same value in the whole group
        span = Span(span.upper, span.upper) if is_exact else span.widened(upper=slack)
        if isinstance(time, Frame):
            times[column.id] = replace(time, end=span, windows=None)
        else:
            times[column.id] = replace(time, span=span, windows=None)
    return times


def session_of(keys: Sequence[Tree], below: Tree) -> tuple[int, int] | None:
    """Return the position of the session window among the keys, and its gap in microseconds; None if there is none."""
    for position, key in enumerate(keys):
        if key.kind != "AttributeReference":
            continue
        for node in below.walk():
            if node.kind == "Alias" and node.id == key.id and (gap := session_gap(node.children[0])):
                return position, gap
    return None


def is_of_event_time(session: int, below: Tree, times: Times) -> bool:
    """Return whether a session window is over the unchanged event time of an input."""
    alias = next(node for node in below.walk() if node.kind == "Alias" and node.id == session)
    columns = [part.children[0] for part in alias.walk() if part.kind == "PreciseTimestampConversion"]
    known_times = [time_of(column, times) for column in columns]
    return any(time is not None and time.windows == STRICT for time in known_times)


def session_edge(value: Tree, session: int) -> int | None:
    """Return 0 if an expression is the start of a session window, 1 if it is the end, else None."""
    if value.kind != "GetStructField" or value.children[0].kind != "AttributeReference":
        return None
    return int(value.fields["ordinal"]) if value.children[0].id == session else None


def column_of_time(tree: Tree, flow: Flow, name: str) -> int:
    """Return the column whose time a temporal join looks up; raises `InvalidQuery` unless it is a time column."""
    *qualifier, last = (part.strip("`").lower() for part in name.split("."))
    columns = {column for other, column in output(tree) if other.lower() == last}
    if qualifier:
        columns &= {
            column
            for node in tree.walk()
            if node.kind == "SubqueryAlias"
            and str(node.fields["identifier"]["name"]).lower() == qualifier[-1]
            for _, column in output(node)
        }
    times = [column for column in columns if isinstance(flow.times.get(column), Time)]
    if len(times) != 1:
        raise InvalidQuery(
            text=f"AS OF {name}: use an event time column of the other side, qualified with its table's name"
        )
    return times[0]


def version_time(tree: Tree, flow: Flow) -> int:
    """Return the column with the start of a version's validity; raises `InvalidQuery` unless there is exactly one."""
    times = [column for _, column in output(tree) if isinstance(flow.times.get(column), Time)]
    raw = [column for column in times if flow.times[column].windows == STRICT]
    if len(raw or times) != 1:
        raise InvalidQuery(text="a table joined AS OF a time needs exactly one column of event time")
    return (raw or times)[0]


def add_projected_column(column: Tree, flow: Flow) -> Flow:
    """Return the flow extended by what is known of a column that a projection computes."""
    value = column.children[0]
    if value.kind == "CreateNamedStruct":
        frame = window_of(value, flow.times)
        return flow if frame is None else replace(flow, times={**flow.times, column.id: frame})
    if is_kept(column, flow.system):
        flow = replace(flow, system={**flow.system, column.id: flow.system[value.id]})
    solid, weak = _solid(value, flow), known_of(value, flow.maybe)
    if solid is not None:
        return replace(flow, times={**flow.times, column.id: solid})
    if weak is not None:
        return replace(flow, maybe={**flow.maybe, column.id: weak})
    return flow


def _solid(value: Tree, flow: Flow) -> Time | Frame | None:
    """Return what is known of a value that outer joins cannot make null."""
    match value.kind:
        case "Coalesce":
            return _time_of_coalesce(value, flow)
        case "Greatest":
            return _time_of_greatest(value, flow)
        case "GetStructField" if isinstance(frame := _solid(value.children[0], flow), Frame):
            return frame.start_time if value.fields["ordinal"] == 0 else frame.end_time
        case _:
            return known_of(value, flow.times)


def _time_of_coalesce(value: Tree, flow: Flow) -> Time | Frame | None:
    """Return what is known of a COALESCE that is never null.

    It is never null if one argument is not, or over both sides of a FULL join.
    """
    both = {**flow.maybe, **flow.times}
    values = [known_of(child, both) for child in value.children]
    has_solid = any(known_of(child, flow.times) is not None for child in value.children)
    return common(values) if has_solid or flow.is_full else None


def _time_of_greatest(value: Tree, flow: Flow) -> Time | None:
    """Return what is known of the GREATEST of times of all sides of a join, with which a joined row is complete."""
    spans = [
        time.span
        for side in flow.join_sides
        for child in value.children
        if (time := time_of(child, side)) is not None
    ]
    has_all_sides = all(any(time_of(child, side) for child in value.children) for side in flow.join_sides)
    is_time = all(any(time_of(child, side) for side in flow.join_sides) for child in value.children)
    return Time(span=latest(tuple(spans))) if spans and has_all_sides and is_time else None


def note_system_columns(node: Tree, flow: Flow) -> Flow:
    """Return the flow extended by the system columns that a node's expressions compute with."""
    return replace(flow, misused=flow.misused | _system_columns_used(node, flow.system))


def _system_columns_used(node: Tree, system: Mapping[int, str]) -> frozenset[str]:
    """Return the system columns that a node's expressions compute with or rename."""
    names: set[str] = set()
    for expression in node.inner():
        if expression.kind == "AttributeReference" or is_kept(expression, system):
            continue
        names.update(
            system[part.id]
            for part in expression.walk()
            if part.kind == "AttributeReference" and part.id in system
        )
    return frozenset(names)


def is_kept(column: Tree, system: Mapping[int, str]) -> bool:
    """Return whether a column is a system column that is passed on with its name."""
    if column.kind != "Alias" or column.children[0].kind != "AttributeReference":
        return False
    return system.get(column.children[0].id) == str(column.fields["name"])
