"""Analysis of a transform's plan, node by node: which parts Spark runs unchanged, and where state is kept.

The analysed plan is read from its leaves up. Most of it runs in Spark over the records that are retained. `Node.cut`
marks the steps whose state is updated by the engine between two runs of Spark (adr/0001).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Literal

from odf_common.errors import InvalidQuery
from odf_engine_spark.analysis.columns import (
    AsOf,
    InputColumns,
    add_projected_column,
    after_group,
    check_system_columns,
    column_of_time,
    end_time_of,
    is_of_event_time,
    note_system_columns,
    output,
    reference,
    session_edge,
    session_of,
    version_time,
)
from odf_engine_spark.analysis.flow import Flow, join_flows, unite_flows
from odf_engine_spark.analysis.joins import Condition, conjuncts, join_kind, read_condition
from odf_engine_spark.analysis.limits import Limits
from odf_engine_spark.analysis.times import (
    FOREVER,
    STRICT,
    Span,
    Time,
    Times,
    is_window,
    known_of,
    window_of,
)
from odf_engine_spark.analysis.windowing import Over, in_time, read_over
from odf_engine_spark.spark.tree import Tree

Cut = Literal["grouped", "ranked", "running", "session", "as_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node of a plan and the facts about its rows.

    `stream` is the stream that a leaf reads, or that a cut produces.
    """

    tree: Tree
    flow: Flow
    children: tuple["Node", ...] = ()
    stream: str | None = None
    cut: Cut | None = None
    key: int | None = None  # of a time-bound aggregate or OVER: the position of the time among its keys
    waits: tuple[float, float] = (0, 0)  # of a join: for how long each side's row waits for a partner
    condition: Condition | None = None
    over: Over | None = None
    # Of a temporal join: the columns with the time asked for and the version's start.
    times: tuple[int, int] = (0, 0)
    # In microseconds. Of an OVER in order of time: from the time of a row until it is complete; of sessions: their gap.
    behind: int = 0
    limit: int = 0

    @property
    def is_distinct(self) -> bool:
        """Return whether the node is a DISTINCT, which is an aggregate over all columns."""
        return self.tree.kind == "Distinct"


def shape_of(
    tree: Tree,
    inputs: Mapping[str, InputColumns],
    as_of: Mapping[str, AsOf],
    *,
    emits_changes: bool = False,
) -> Node:
    """Return the analysed plan of a transform; raises `InvalidQuery` with the supported alternatives.

    With `emits_changes` (the hint CHANGES), groups by time are treated like other groups.
    """
    node = _Reader(inputs, as_of, emits_changes).node(tree)
    if emits_changes and not _has_groups(node):
        raise InvalidQuery(text="the hint CHANGES is for GROUP BY, such as by a window: remove it")
    return node


def _has_groups(node: Node) -> bool:
    return node.cut == "grouped" or any(_has_groups(child) for child in node.children)


@dataclass(frozen=True, slots=True)
class _Reader:
    inputs: Mapping[str, InputColumns]
    as_of: Mapping[str, AsOf]
    emits_changes: bool = False
    limits: Limits = field(default_factory=Limits)
    joined: set[str] = field(default_factory=set)  # views on the right side of a temporal join so far
    origins: dict[str, frozenset[str]] = field(default_factory=dict)  # the inputs of each stream
    numbers: count = field(default_factory=lambda: count(1))  # type: ignore[type-arg]

    def node(self, tree: Tree) -> Node:
        match tree.kind:
            case "View" if tree.children[0].kind == "LocalRelation":
                return self._input(tree)
            case "View" | "SubqueryAlias" | "PipeOperator" | "ResolvedHint" | "Generate":
                return self._above(tree)
            case "Filter":
                return self._filter(tree)
            case "Project":
                return self._project(tree)
            case "Expand":
                return self._expand(tree)
            case "Union":
                return self._union(tree)
            case "Aggregate" | "Distinct":
                return self._aggregate(tree)
            case "Window":
                return self._over(tree)
            case "Join":
                return self._join(tree, ())
            case _:
                raise InvalidQuery(text="every SELECT has to read from an input of the transform")

    def _above(self, tree: Tree) -> Node:
        below = self.node(tree.children[0])
        flow = note_system_columns(tree, below.flow) if tree.kind == "Generate" else below.flow
        return Node(tree=tree, children=(below,), flow=flow)

    def _input(self, view: Tree) -> Node:
        name = view.fields["desc"]["identifier"]["table"].lower()
        if name in self.as_of:
            if name not in self.joined:
                raise InvalidQuery(
                    text=f"FOR SYSTEM_TIME AS OF {self.as_of[name].time} has to be on the right side of a JOIN: "
                    f"JOIN {self.as_of[name].table} FOR SYSTEM_TIME AS OF …, not in a sub-query or on the left"
                )
            name = self.as_of[name].table.lower()
        meaning = self.inputs[name]
        columns = {column.fields["name"]: column.id for column in view.children[0].part("output")}
        self.origins[name] = frozenset({name})
        raw = {columns[meaning.event_time]: Time(span=Span(1, 1), windows=STRICT)}
        flow = Flow(
            streams=frozenset({name}),
            times=raw,
            retention={name: 0},
            shown=frozenset({name}),
            join_sides=(raw,),
            system={columns[column]: column for column in meaning.system},
        )
        return Node(tree=view, flow=flow, stream=name)

    def _filter(self, tree: Tree) -> Node:
        conditions = conjuncts(tree.part("condition"))
        for condition in conditions:
            self.limits.note(condition)
        inner = tree.children[0]
        if inner.kind == "Join" and join_kind(inner) == "Inner" and not self._right_as_of(inner):
            below = self._join(inner, conditions)
        else:
            below = self.node(inner)
        return Node(tree=tree, children=(below,), flow=note_system_columns(tree, below.flow))

    def _project(self, tree: Tree) -> Node:
        self.limits.follow(tree.part("projectList"))
        below = self.node(tree.children[0])
        flow = note_system_columns(tree, below.flow)
        for column in tree.part("projectList"):
            is_group = self.emits_changes and is_window(column)
            if column.kind == "Alias" and not is_group:
                flow = add_projected_column(column, flow)
        return Node(tree=tree, children=(below,), flow=flow)

    def _expand(self, tree: Tree) -> Node:
        below = self.node(tree.children[0])
        struct, *_ = tree.part("projections")
        if self.emits_changes and is_window(struct):
            return Node(tree=tree, children=(below,), flow=note_system_columns(tree, below.flow))
        frame = window_of(struct, below.flow.times)
        if frame is None:
            text = "GROUPING SETS, CUBE, ROLLUP and UNPIVOT cannot be used in a transform: use a dataset per GROUP BY"
            raise InvalidQuery(text=f"{text}, and LATERAL VIEW explode(array(…)) to turn columns into rows")
        window, *_ = tree.part("output")
        flow = replace(below.flow, times={**below.flow.times, window.id: frame})
        return Node(tree=tree, children=(below,), flow=flow)

    def _union(self, tree: Tree) -> Node:
        children = tuple(self.node(child) for child in tree.children)
        ids = tuple(tuple(column for _, column in output(child)) for child in tree.children)
        inputs = self._ways(children)
        # Rows of one input that arrive on two paths have no other order than that of their completion.
        flow = unite_flows(tuple(child.flow for child in children), ids, waits=len(inputs) > len(set(inputs)))
        return Node(tree=tree, children=children, flow=flow)

    def _ways(self, nodes: Sequence[Node]) -> list[str]:
        """Return the inputs of nodes, each as many times as there are paths from it."""
        streams = {stream for node in nodes for stream in node.flow.streams}
        return [name for stream in streams for name in self.origins[stream]]

    def _aggregate(self, tree: Tree) -> Node:
        below = self.node(tree.children[0])
        keys = tree.part("groupingExpressions")
        if tree.kind == "Distinct":
            columns = keys = tuple(reference(*column) for column in output(tree.children[0]))
        else:
            columns = tree.part("aggregateExpressions")
        session = session_of(keys, below.tree)
        if session and self.emits_changes:
            raise InvalidQuery(
                text="session_window cannot have the hint CHANGES, since a record may join two sessions: use windows "
                "of a fixed length, or remove the hint"
            )
        if session:
            return self._in_sessions(tree, below, columns, *session)
        times = [(index, end_time_of(known_of(key, below.flow.times))) for index, key in enumerate(keys)]
        key_times = {index: time for index, time in times if time is not None}
        if not key_times or self.emits_changes:
            return self._group(tree, below)
        below.flow.require_final("GROUP BY a time")
        spans = {index: time.span for index, time in key_times.items()}
        index = min(spans, key=lambda index: (spans[index].upper - spans[index].lower, spans[index].upper))
        flow = below.flow.group_by_time(key_times[index], after_group(columns, below.flow, keys[index]))
        return Node(tree=tree, children=(below,), flow=flow, key=index)

    def _in_sessions(
        self, tree: Tree, below: Node, columns: tuple[Tree, ...], position: int, gap: int
    ) -> Node:
        below.flow.require_final("session_window")
        key = tree.part("groupingExpressions")[position]
        is_plain = not below.flow.waits and len(below.flow.streams) == 1
        if not is_plain or not is_of_event_time(key.id, below.tree, below.flow.times):
            raise InvalidQuery(
                text="session_window needs the unchanged event time of one input's records: join or window them, "
                "or change the event time, in another dataset first"
            )
        # A session may have begun any time before it is complete.
        spans = (Span(gap + 1, FOREVER), Span(1, 1))
        edges = {
            column.id: Time(span=spans[edge])
            for column in columns
            if column.kind == "Alias" and (edge := session_edge(column.children[0], key.id)) is not None
        }
        node = self._stateful_node(
            tree, (replace(below, flow=below.flow.per_record()),), "session", times=edges
        )
        return replace(node, key=position, behind=gap)

    def _group(self, tree: Tree, below: Node) -> Node:
        flow = check_system_columns(note_system_columns(tree, below.flow)).per_record()
        node = self._stateful_node(tree, (replace(below, flow=flow),), "grouped", times={})
        return replace(node, flow=replace(node.flow, is_retractable=True))

    def _over(self, tree: Tree) -> Node:
        # A filter above an OVER does not limit the rows that it reads.
        below = replace(self, limits=Limits()).node(tree.children[0])
        over = read_over(tree, below.flow.times)
        match over.kind:
            case "partitioned":
                below.flow.require_final("OVER by windows")
                assert over.key is not None
                key = end_time_of(known_of(tree.part("partitionSpec")[over.key], below.flow.times))
                assert key is not None
                columns = tuple(reference(*column) for column in output(tree.children[0]))
                times = after_group(columns, below.flow, tree.part("partitionSpec")[over.key])
                flow = replace(below.flow.group_by_time(key, times), system=below.flow.system)
                return Node(tree=tree, children=(below,), flow=flow, key=over.key, over=over)
            case "ranged":
                flow, behind = in_time(tree, below.flow.require_final("OVER").per_record())
                retention = {name: retention + over.preceding for name, retention in flow.retention.items()}
                flow = replace(flow, retention=retention)
                return Node(tree=tree, children=(below,), flow=flow, over=over, behind=behind)
            case "running":
                return self._running(tree, below, over)
            case "ranked":
                return self._rank(tree, below, over)

    def _running(self, tree: Tree, below: Node, over: Over) -> Node:
        flow, behind = in_time(tree, below.flow.require_final("a running OVER").per_record())
        node = self._stateful_node(tree, (replace(below, flow=flow),), "running", times=flow.times)
        return replace(node, over=over, behind=behind, flow=replace(node.flow, system=flow.system))

    def _rank(self, tree: Tree, below: Node, over: Over) -> Node:
        (ranked,) = (column.id for column in tree.part("windowExpressions"))
        limit = self.limits.of(ranked)
        if limit is None:
            raise InvalidQuery(
                text="row_number() that is not ordered by event time needs a bound, since every record would renumber "
                "all others: put it into a sub-query and add WHERE <its name> <= 10"
            )
        flow = check_system_columns(note_system_columns(tree, below.flow)).per_record()
        node = self._stateful_node(tree, (replace(below, flow=flow),), "ranked", times={}, limit=limit)
        return replace(
            node, over=over, flow=replace(node.flow, is_retractable=True, system=below.flow.system)
        )

    def _join(self, tree: Tree, more: tuple[Tree, ...]) -> Node:
        as_of = self._right_as_of(tree)
        left = self.node(tree.children[0])
        if as_of is not None:
            self.joined.add(as_of.view)
        right = self.node(tree.children[1])
        left = replace(left, flow=left.flow.require_final("a join").per_record())
        right = replace(right, flow=right.flow.require_final("a join").per_record())
        conditions = (*conjuncts(tree.part("condition")), *more)
        condition = read_condition(conditions, left.flow, right.flow)
        if as_of is not None:
            return self._as_of(tree, left, right, condition, as_of)
        flow, *waits = join_flows(
            join_kind(tree), left.flow, right.flow, condition.bounds, is_keyed=condition.is_keyed
        )
        flow = note_system_columns(tree, flow)
        return Node(
            tree=tree, children=(left, right), flow=flow, waits=(waits[0], waits[1]), condition=condition
        )

    def _right_as_of(self, join: Tree) -> AsOf | None:
        right = join.children[1]
        while right.kind in ("SubqueryAlias", "View") and right.children[0].kind != "LocalRelation":
            if right.kind == "View" and right.fields["desc"]["identifier"]["table"].lower() in self.as_of:
                break
            right = right.children[0]
        if right.kind != "View":
            return None
        return self.as_of.get(right.fields["desc"]["identifier"]["table"].lower())

    def _as_of(self, tree: Tree, left: Node, right: Node, condition: Condition, as_of: AsOf) -> Node:
        kind = join_kind(tree)
        if kind not in ("Inner", "LeftOuter"):
            raise InvalidQuery(text=f"only JOIN and LEFT JOIN can join a table AS OF a time, not {kind}")
        condition.check_as_of(output(tree.children[1]), as_of.table, as_of.key)
        time_column, version_column = (
            column_of_time(tree.children[0], left.flow, as_of.time),
            version_time(tree.children[1], right.flow),
        )
        left_time, version_start = left.flow.times[time_column], right.flow.times[version_column]
        assert isinstance(left_time, Time)
        assert isinstance(version_start, Time)
        # A version valid at the left row's time may be complete later than that row.
        waits = max(0.0, version_start.span.upper - left_time.span.lower)
        times = {
            column: replace(time, span=time.span.later(waits))
            for column, time in left.flow.times.items()
            if isinstance(time, Time)
        }
        node = self._stateful_node(tree, (left, right), "as_of", times=times, condition=condition)
        waited = (waits, left_time.span.upper)
        return replace(node, waits=waited, times=(time_column, version_column))

    def _stateful_node(
        self, tree: Tree, children: tuple[Node, ...], cut: Cut, *, times: Times, **more: object
    ) -> Node:
        """Return a node that keeps state; its rows form a new stream."""
        stream = f"#{next(self.numbers)}"
        self.origins[stream] = frozenset(self._ways(children))
        flow = Flow(
            streams=frozenset({stream}),
            times=times,
            retention={stream: 0},
            shown=frozenset({stream}),
            join_sides=(times,),
            late={stream: STRICT},
        )
        return Node(tree=tree, children=children, flow=flow, stream=stream, cut=cut, **more)  # type: ignore[arg-type]
