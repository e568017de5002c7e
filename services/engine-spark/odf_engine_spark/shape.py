"""What kind of query a transform is: row by row, or by tumbling windows of event time (design: laws 3 and 4).

The analysed plan is read from its leaves up. Below an aggregate there are rows of one input; above it only what
belongs to one window: so a window can be computed from its own records, whenever it closes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from odf_common.errors import InvalidQuery
from odf_engine_spark.sandbox import SUPPORTED
from odf_engine_spark.tree import Tree

Part = Literal["window", "start", "end"]
_PARTS: Final[Mapping[int, Part]] = {0: "start", 1: "end"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InputColumns:
    """The columns of an input that mean something to the engine, by name."""

    event_time: str
    system: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """What is known of a plan's result; columns are named by Spark's ids."""

    inputs: frozenset[str]
    is_windowed: bool = False
    size: int | None = None  # of the windows, microseconds
    event_time: frozenset[int] = frozenset()
    system: Mapping[int, str] = field(default_factory=dict)
    misused: frozenset[str] = frozenset()  # system columns that a result depends on
    windows: Mapping[int, Part] = field(default_factory=dict)
    maybe: Mapping[int, Part] = field(
        default_factory=dict
    )  # windows that may be null, from the far side of a join
    is_full: bool = False  # either side of `maybe` may be null, not both


def shape_of(tree: Tree, inputs: Mapping[str, InputColumns]) -> Flow:
    """Return what a transform's plan does; raises `InvalidQuery` naming what is supported."""
    return _Reader(inputs).flow(tree)


def outputs(node: Tree, system: Mapping[int, str]) -> tuple[tuple[str, bool], ...]:
    """Return the columns of a row-wise plan: the name, and whether it is a system column passed on in every branch."""
    match node.kind:
        case "Project":
            columns = node.part("projectList")
        case "LocalRelation":
            columns = node.part("output")
        case "Union":
            first, *others = (outputs(child, system) for child in node.children)
            branches = zip(first, *others, strict=True)
            return tuple((branch[0][0], all(passed for _, passed in branch)) for branch in branches)
        case "Generate":
            own = tuple((column.fields["name"], False) for column in node.part("generatorOutput"))
            return (*outputs(node.children[0], system), *own)
        case _:
            return outputs(node.children[0], system)
    return tuple((column.fields["name"], column.id in system) for column in columns)


@dataclass(frozen=True, slots=True)
class _Reader:
    inputs: Mapping[str, InputColumns]

    def flow(self, node: Tree) -> Flow:
        match node.kind:
            case "View" if node.children[0].kind == "LocalRelation":
                return self._input(node)
            case "View" | "SubqueryAlias" | "PipeOperator":
                return self.flow(node.children[0])
            case "Filter" | "Generate":
                below = self.flow(node.children[0])
                return replace(below, misused=below.misused | _used(node, below.system))
            case "Project":
                return _project(node, self.flow(node.children[0]))
            case "Union":
                return _union(tuple(self.flow(child) for child in node.children))
            case "Aggregate":
                return _aggregate(node, self.flow(node.children[0]))
            case "Join":
                return _join(node, self.flow(node.children[0]), self.flow(node.children[1]))
            case _:
                raise InvalidQuery(text="every SELECT has to read from an input of the transform")

    def _input(self, view: Tree) -> Flow:
        name = view.fields["desc"]["identifier"]["table"]
        known = self.inputs[name.lower()]
        output = {column.fields["name"]: column.id for column in view.children[0].part("output")}
        return Flow(
            inputs=frozenset({name.lower()}),
            event_time=frozenset({output[known.event_time]}),
            system={output[column]: column for column in known.system},
        )


def _project(node: Tree, below: Flow) -> Flow:
    result = replace(below, misused=below.misused | _used(node, below.system))
    for column in node.part("projectList"):
        if column.kind != "Alias":
            continue
        result = _window_column(column, result)
        value = column.children[0]
        if value.kind == "AttributeReference" and value.id in below.event_time:
            result = replace(result, event_time=result.event_time | {column.id})
        if _is_kept(column, below.system):
            result = replace(result, system={**result.system, column.id: below.system[value.id]})
        result = _named(column, value, result)
    return result


def _named(column: Tree, value: Tree, flow: Flow) -> Flow:
    """Note that a column is a window, or an edge of one."""
    solid, weak = _window_part(value, flow.windows), _window_part(value, flow.maybe)
    if solid:
        return replace(flow, windows={**flow.windows, column.id: solid})
    if weak:
        return replace(flow, maybe={**flow.maybe, column.id: weak})
    if value.kind == "Coalesce":
        parts = {_window_part(each, {**flow.maybe, **flow.windows}) for each in value.children}
        has_solid = any(_window_part(each, flow.windows) for each in value.children)
        if len(parts) == 1 and (has_solid or flow.is_full) and (part := parts.pop()):
            return replace(flow, windows={**flow.windows, column.id: part})
    return flow


def _window_part(value: Tree, known: Mapping[int, Part]) -> Part | None:
    if value.kind == "AttributeReference":
        return known.get(value.id)
    if value.kind == "GetStructField" and _window_part(value.children[0], known) == "window":
        return _PARTS.get(value.fields["ordinal"])
    return None


def _window_column(column: Tree, flow: Flow) -> Flow:
    """Recognise what Spark makes of `window(…)`: a struct computed with a conversion that has no name in SQL."""
    struct = column.children[0]
    if struct.kind != "CreateNamedStruct" or flow.is_windowed:
        return flow
    nodes = list(struct.walk())
    if not any(node.kind == "PreciseTimestampConversion" for node in nodes):
        return flow
    used = {node.id for node in nodes if node.kind == "AttributeReference"}
    if not used <= flow.event_time:
        raise InvalidQuery(text="windows are made of the input's event time column, as it is")
    numbers = {int(node.fields["value"]) for node in nodes if _is_number(node)} - {0}
    if len(numbers) != 1:
        raise InvalidQuery(text=f"windows cannot slide nor start at an offset: {SUPPORTED}")
    size = numbers.pop()
    if size % 1000:
        raise InvalidQuery(text="a window is a whole number of milliseconds")
    if flow.size not in (None, size):
        raise InvalidQuery(text="all windows of a transform have one size")
    return replace(flow, size=size, windows={**flow.windows, column.id: "window"})


def _is_number(node: Tree) -> bool:
    return node.kind == "Literal" and node.fields["dataType"] in ("long", "integer")


def _union(flows: tuple[Flow, ...]) -> Flow:
    if len({flow.is_windowed for flow in flows}) != 1:
        raise InvalidQuery(text=f"UNION ALL of rows and windows: {SUPPORTED}")
    size = _one_size(flows)
    first = flows[0]
    system: dict[int, str] = {}
    for flow in flows:
        system.update(flow.system)
    return Flow(
        inputs=frozenset().union(*(flow.inputs for flow in flows)),
        is_windowed=first.is_windowed,
        size=size,
        system=system,
        misused=frozenset().union(*(flow.misused for flow in flows)),
    )


def _one_size(flows: tuple[Flow, ...]) -> int | None:
    sizes = {flow.size for flow in flows if flow.size is not None}
    if len(sizes) > 1:
        raise InvalidQuery(text="all windows of a transform have one size")
    return sizes.pop() if sizes else None


def _aggregate(node: Tree, below: Flow) -> Flow:
    keys = node.part("groupingExpressions")
    if not any(_window_part(key, below.windows) for key in keys):
        raise InvalidQuery(text=f"an aggregate needs GROUP BY window(<event time>, '<size>'): {SUPPORTED}")
    result = Flow(inputs=below.inputs, is_windowed=True, size=below.size)
    for column in node.part("aggregateExpressions"):
        value = column.children[0] if column.kind == "Alias" else column
        part = _window_part(value, below.windows)
        if part:
            result = replace(result, windows={**result.windows, column.id: part})
    return result


def _join(node: Tree, left: Flow, right: Flow) -> Flow:
    if not (left.is_windowed and right.is_windowed):
        raise InvalidQuery(text=f"rows cannot be joined before they are grouped by windows: {SUPPORTED}")
    size = _one_size((left, right))
    here, there = {**left.maybe, **left.windows}, {**right.maybe, **right.windows}
    if not any(_equal_windows(each, here, there) for each in _conjuncts(node.part("condition"))):
        raise InvalidQuery(text=f"a join needs equal windows, such as a.window = b.window: {SUPPORTED}")
    kind = _join_kind(node)
    both = Flow(inputs=left.inputs | right.inputs, is_windowed=True, size=size)
    match kind:
        case "Inner":
            return replace(
                both, windows={**left.windows, **right.windows}, maybe={**left.maybe, **right.maybe}
            )
        case "LeftOuter":
            return replace(both, windows=left.windows, maybe={**left.maybe, **there})
        case "RightOuter":
            return replace(both, windows=right.windows, maybe={**right.maybe, **here})
        case "FullOuter":
            is_full = not left.maybe and not right.maybe
            return replace(both, maybe={**here, **there}, is_full=is_full)
        case "LeftSemi" | "LeftAnti":
            return replace(left, inputs=both.inputs)
        case _:
            raise InvalidQuery(text=f"INNER, LEFT, RIGHT and FULL joins are supported, not {kind}")


def _join_kind(node: Tree) -> str:
    kind = node.fields["joinType"]
    return str(kind.get("object") or kind.get("product-class")).rsplit(".", 1)[-1].removesuffix("$")


def _conjuncts(conditions: tuple[Tree, ...]) -> tuple[Tree, ...]:
    found: list[Tree] = []
    for condition in conditions:
        found.extend(_conjuncts(condition.children) if condition.kind == "And" else (condition,))
    return tuple(found)


def _equal_windows(node: Tree, left: Mapping[int, Part], right: Mapping[int, Part]) -> bool:
    if node.kind not in ("EqualTo", "EqualNullSafe"):
        return False
    one, two = node.children
    straight = _window_part(one, left) or _window_part(two, left)
    other = _window_part(two, right) or _window_part(one, right)
    return straight is not None and straight == other


def _used(node: Tree, system: Mapping[int, str]) -> frozenset[str]:
    """Return the system columns that a node's expressions compute with, or give another name."""
    found: set[str] = set()
    for expression in node.inner():
        if expression.kind == "AttributeReference" or _is_kept(expression, system):
            continue
        found.update(
            system[part.id]
            for part in expression.walk()
            if part.kind == "AttributeReference" and part.id in system
        )
    return frozenset(found)


def _is_kept(column: Tree, system: Mapping[int, str]) -> bool:
    """Tell whether a column is a system column passed on under its own name."""
    if column.kind != "Alias" or column.children[0].kind != "AttributeReference":
        return False
    return system.get(column.children[0].id) == str(column.fields["name"])
