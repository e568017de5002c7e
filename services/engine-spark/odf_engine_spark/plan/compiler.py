"""Compiles an analysed plan (`plan_shape`) to segments that Spark runs, and to stages with state (`stateful_steps`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from odf_engine_spark.analysis.flow import Flow
from odf_engine_spark.analysis.joins import join_kind
from odf_engine_spark.analysis.plan_shape import Node
from odf_engine_spark.plan.aggregate_calls import in_order_of_rows
from odf_engine_spark.plan.join_keys import join_keys_of
from odf_engine_spark.plan.segments import Segment
from odf_engine_spark.plan.stages import Stage
from odf_engine_spark.spark.jvm import Java
from odf_engine_spark.spark.logical_plans import (
    ARRIVED,
    COMPLETE,
    LATE,
    RECORDS,
    ROW,
    WAITING,
    PlanPart,
    Plans,
    items,
)

# When a joined row is complete: {0} and {1} are when its sides are, {2} and {3} how long each side waits for a partner.
# Semi and anti joins show nothing of the right side, so their rows wait in any case.
_COMPLETE: Final = {
    "Inner": "greatest({0}, {1})",
    "LeftOuter": "CASE WHEN {1} IS NULL THEN {0} + {2} ELSE greatest({0}, {1}) END",
    "RightOuter": "CASE WHEN {0} IS NULL THEN {1} + {3} ELSE greatest({0}, {1}) END",
    "FullOuter": "CASE WHEN {1} IS NULL THEN {0} + {2} WHEN {0} IS NULL THEN {1} + {3} ELSE greatest({0}, {1}) END",
    "LeftSemi": "{0} + {2}",
    "LeftAnti": "{0} + {2}",
}
# Window functions whose result depends on the order of rows that tie
_TIED: Final = ("RowNumber", "NTile", "Lag", "Lead", "NthValue", "First", "Last")


@dataclass(frozen=True, slots=True)
class Compiler:
    """Compiles one transform; `stages` are in the order of execution.

    `cut` adds a stage for a node that keeps state, given the node's plan and the requested hidden columns, and returns
    a plan for the stage's output.
    """

    plans: Plans
    cut: Callable[["Compiler", Node, Java, Sequence[str]], PlanPart]
    stages: list[Stage] = field(default_factory=list)

    def last(self, node: Node, plan: Java, columns: Sequence[int], event_time: str) -> Segment:
        """Return the segment of the output, with these columns; in total order if rows depend on several records."""
        waits = node.flow.waits
        part = self.part(node, plan, WAITING if waits else RECORDS)
        ids = {column.exprId().id(): column for column in items(part.plan.output())}
        chosen = [ids[column] for column in columns]
        if waits:
            # Of rows that become complete together, those with the earlier event times come first.
            first = [column for column in chosen if column.name() == event_time]
            others = [column for column in chosen if column.name() != event_time]
            part = self.in_order(part, [*first, *others])
        return replace(self.segment("", node.flow, part, chosen), join_keys=join_keys_of(node))

    def segment(self, name: str, flow: Flow, part: PlanPart, columns: Sequence[Java]) -> Segment:
        """Return a segment for a plan, with these columns and one hidden column."""
        # Rows either wait until they are complete, or belong to the one record whose number they carry.
        hidden = COMPLETE if COMPLETE in part.hidden else ROW
        plans = self.plans
        named = plans.project(columns, part.plan)
        with_hidden = plans.project([*columns, plans.column(part.plan, part.hidden[hidden])], part.plan)
        schema = plans.schema(named)
        if name:
            # Columns of a stage's input may have equal names, as both sides of a join do: stages know them by position.
            schema = pa.schema([column.with_name(str(index)) for index, column in enumerate(schema)])
        return Segment(
            name=name,
            plans=plans,
            slot=plans.slots(with_hidden),
            flow=flow,
            schema=schema,
            waits=hidden == COMPLETE,
        )

    def in_order(
        self,
        part: PlanPart,
        columns: Sequence[Java],
        orders: Sequence[Java] = (),
        *,
        by_arrival: bool = False,
    ) -> PlanPart:
        """Return the rows in total order: by completion, `orders`, arrival if requested, and then by all columns."""
        plans = self.plans
        by = [plans.ascending(plans.column(part.plan, part.hidden[COMPLETE])), *orders]
        if by_arrival and ARRIVED in part.hidden:
            by.append(plans.ascending(plans.column(part.plan, part.hidden[ARRIVED])))
        # By all columns, so that rows which still tie are equal; maps are left out, since Spark cannot order them.
        by += [plans.ascending(column) for column in columns if column.dataType().typeName() != "map"]
        return PlanPart(plans.sort(by, part.plan), part.hidden)

    def part(self, node: Node, plan: Java, hidden: Sequence[str]) -> PlanPart:
        """Return the plan of a node with hidden columns, and with leaves for its streams."""
        if node.cut is not None:
            return self.cut(self, node, plan, hidden)
        children = items(plan.children())
        match node.tree.kind:
            case "View" if node.stream is not None:
                return self.plans.leaf(node.stream, items(children[0].output()), hidden)
            case "View" | "SubqueryAlias" | "PipeOperator" | "ResolvedHint":
                return self.part(node.children[0], children[0], hidden)
            case "Union":
                return self._union(node, plan, hidden)
            case "Join":
                return self._join(node, plan)
            case _:
                return self._over_one(node, plan, children[0], hidden)

    def _over_one(self, node: Node, plan: Java, child: Java, hidden: Sequence[str]) -> PlanPart:
        """Return the plan of a node that has one child."""
        below = self.part(node.children[0], child, hidden)
        match node.tree.kind:
            case "Project":
                columns = [*items(plan.projectList()), *self.hidden(below)]
                return PlanPart(self.plans.project(columns, below.plan), below.hidden)
            case "Expand":
                more = self.hidden(below)
                seq = self.plans.spark.seq
                projections = [seq([*items(projection), *more]) for projection in items(plan.projections())]
                columns = [*items(plan.output()), *more]
                return PlanPart(self.plans.expand(projections, columns, below.plan), below.hidden)
            case "Aggregate" | "Distinct":
                return self._windows(node, plan, below)
            case "Window" if node.key is not None:
                return self._over(node, plan, below)
            case "Window":
                return self._over_range(node, plan, below)
            case _:
                return PlanPart(plan.withNewChildren(self.plans.spark.seq([below.plan])), below.hidden)

    def hidden(self, part: PlanPart) -> list[Java]:
        """Return the hidden columns of a plan."""
        return [self.plans.column(part.plan, name) for name in part.hidden.values()]

    def _union(self, node: Node, plan: Java, hidden: Sequence[str]) -> PlanPart:
        branches = []
        names = {kind: self.plans.fresh(kind) for kind in hidden}
        for child, java in zip(node.children, items(plan.children()), strict=True):
            part = self.part(child, java, hidden)
            # A branch may lack a hidden column, such as a window the one for late records; a union needs it in all.
            more = [self.plans.alias(self._hidden_or_none(part, kind), name) for kind, name in names.items()]
            branches.append(self.plans.project([*items(java.output()), *more], part.plan))
        return PlanPart(plan.withNewChildren(self.plans.spark.seq(branches)), names)

    def _hidden_or_none(self, part: PlanPart, kind: str) -> Java:
        if kind in part.hidden:
            return self.plans.column(part.plan, part.hidden[kind])
        return self.plans.null_of(self.plans.column(part.plan, part.hidden[COMPLETE]))

    def _windows(self, node: Node, plan: Java, below: PlanPart) -> PlanPart:
        """Return an aggregation by a time column.

        Its rows are complete with the last record that their group can have.
        """
        plans = self.plans
        keys, columns = grouping_of(node, plan)
        assert node.key is not None
        key, name = keys[node.key], plans.fresh("__odf_key")
        below_plan = below.plan
        # Where windows overlap, a record may be late for the first of its windows and in time for later ones. Only
        # those that are late for all were dropped before Spark, so here each pair of record and window is looked at.
        if self._may_be_partly_late(node, below):
            probe = plans.with_key(below_plan, key, name)
            below_plan = plans.where(probe, f"unix_micros({name}.end) > {below.hidden[LATE]}")
        if _is_reordered(node.children[0]):  # sums of floats depend on the order of the rows
            visible = items(plan.children().apply(0).output())
            below_plan = self.in_order(PlanPart(below_plan, below.hidden), visible).plan
        columns = in_order_of_rows(plans, columns, plans.column(below_plan, below.hidden[COMPLETE]))
        aggregate = plans.aggregate(keys, [*columns, plans.alias(key, name)], below_plan)
        return self.with_complete(aggregate, name, key, node.flow.phase)

    def _may_be_partly_late(self, node: Node, below: PlanPart) -> bool:
        rules = node.flow.late.values()
        return LATE in below.hidden and any(1 < rule.slide < rule.size for rule in rules)

    def _over(self, node: Node, plan: Java, below: PlanPart) -> PlanPart:
        """Return window functions over partitions by a time column, with ties broken by all columns."""
        plans = self.plans
        columns = items(plan.children().apply(0).output())
        ties = [plans.ascending(column) for column in columns if column.dataType().typeName() != "map"]
        over = plans.window(plan, below.plan, ties, _TIED)
        assert node.key is not None
        key, name = plan.partitionSpec().apply(node.key), plans.fresh("__odf_key")
        probe = plans.with_key(over, key, name)
        return self.with_complete(probe, name, key, node.flow.phase)

    def _over_range(self, node: Node, plan: Java, below: PlanPart) -> PlanPart:
        """Return window functions in the order of time; a row is complete when all rows with the same time are."""
        over = plan.withNewChildren(self.plans.spark.seq([below.plan]))
        key, name = plan.orderSpec().apply(0).child(), self.plans.fresh("__odf_key")
        part = self.with_complete(self.plans.with_key(over, key, name), name, key, node.behind)
        return PlanPart(part.plan, {**below.hidden, **part.hidden})

    def with_complete(self, plan: Java, name: str, key: Java, phase: int) -> PlanPart:
        """Return a plan whose rows are complete `phase` microseconds after the time in the hidden column `name`."""
        is_window = key.dataType().typeName() == "struct"
        timestamp = f"{name}.end" if is_window else f"CAST({name} AS TIMESTAMP)"
        complete = self.plans.fresh(COMPLETE)
        text = f"unix_micros({timestamp}) + {phase}L"
        return PlanPart(self.plans.with_column(plan, complete, text), {COMPLETE: complete})

    def _join(self, node: Node, plan: Java) -> PlanPart:
        children = zip(node.children, items(plan.children()), strict=True)
        left, right = (self.part(child, java, WAITING) for child, java in children)
        joined = plan.withNewChildren(self.plans.spark.seq([left.plan, right.plan]))
        complete = self.plans.fresh(COMPLETE)
        waits = [f"{int(wait)}L" for wait in node.waits]
        template = _COMPLETE[join_kind(node.tree)]
        text = template.format(left.hidden[COMPLETE], right.hidden[COMPLETE], *waits)
        return PlanPart(self.plans.with_column(joined, complete, text), {COMPLETE: complete})


def grouping_of(node: Node, plan: Java) -> tuple[list[Java], list[Java]]:
    """Return the keys and the columns of an aggregation; DISTINCT groups by all columns."""
    if node.is_distinct:
        columns = items(plan.output())
        return columns, columns
    return items(plan.groupingExpressions()), items(plan.aggregateExpressions())


def _is_reordered(node: Node) -> bool:
    """Return whether rows may have another order than the records that they are computed from."""
    if node.cut is not None:
        return False
    is_own = node.tree.kind in ("Join", "Aggregate", "Distinct", "Window")
    return is_own or any(_is_reordered(child) for child in node.children)
