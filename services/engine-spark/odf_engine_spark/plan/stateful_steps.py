"""Splits a plan at the steps that keep state: what Spark computes for a step, and where its rows continue."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from odf_engine_spark.analysis.flow import Flow
from odf_engine_spark.analysis.joins import join_kind
from odf_engine_spark.analysis.plan_shape import Node
from odf_engine_spark.operators.top_n import SortKey
from odf_engine_spark.plan.aggregate_calls import (
    aggregate_calls,
    aggregate_of,
    in_order_of_rows,
    is_alias,
    kind_of,
    unique,
    window_function,
)
from odf_engine_spark.plan.compiler import Compiler, grouping_of
from odf_engine_spark.plan.segments import Segment
from odf_engine_spark.plan.stages import (
    AggregateCall,
    GroupBy,
    RunningAggregates,
    Session,
    TemporalJoin,
    TopN,
)
from odf_engine_spark.spark.jvm import Java
from odf_engine_spark.spark.logical_plans import COMPLETE, RECORDS, ROW, WAITING, PlanPart, items


def add_stage(compiler: Compiler, node: Node, plan: Java, hidden: Sequence[str]) -> PlanPart:
    """Add a stage for a node that keeps state, and return a leaf for the stage's output."""
    assert node.stream is not None
    match node.cut:
        case "grouped":
            return _add_group_by(compiler, node, plan, hidden)
        case "ranked":
            _add_top_n(compiler, node, plan)
        case "running":
            _add_running(compiler, node, plan)
        case "session":
            _add_session(compiler, node, plan)
        case _:
            _add_as_of(compiler, node, plan)
    return compiler.plans.leaf(node.stream, items(plan.output()), hidden)


def _input_of(compiler: Compiler, child: Node, plan: Java) -> tuple[PlanPart, Flow]:
    """Return the input of a step: changes in order of arrival, or complete rows if that order is undefined."""
    waits = child.flow.waits or len(child.flow.streams) > 1
    if waits and child.flow.is_retractable:
        child.flow.require_final("a step over several tables")
    part = compiler.part(child, plan, WAITING if waits else RECORDS)
    return part, replace(child.flow, waits=waits)


def _add_group_by(compiler: Compiler, node: Node, plan: Java, hidden: Sequence[str]) -> PlanPart:
    plans, (below,) = compiler.plans, items(plan.children())
    part, flow = _input_of(compiler, node.children[0], below)
    keys, columns = grouping_of(node, plan)
    calls = unique(call for column in columns for call in aggregate_calls(column))
    values = [*keys, *(_argument(compiler, call) for call in calls)]
    # Never executed: Spark's analyser derives from it the types that keys and calls have.
    results = plans.aggregate(keys, [plans.alias(expression, "r") for expression in (*keys, *calls)], below)
    types = plans.schema(results)
    aliases = [plans.alias(value, f"c{index}") for index, value in enumerate(values)]
    assert node.stream is not None
    compiler.stages.append(
        GroupBy(
            stream=node.stream,
            segment=_segment_for(compiler, node.stream, flow, part, aliases),
            keys=len(keys),
            aggregates=tuple(
                aggregate_of(call, output.type)
                for call, output in zip(calls, list(types)[len(keys) :], strict=True)
            ),
        )
    )
    attributes = plans.columns_for(
        pa.schema([(str(index), output.type) for index, output in enumerate(types)])
    )
    leaf = plans.leaf(node.stream, attributes, hidden)
    results_of = list(zip([*keys, *calls], attributes, strict=True))

    def replace_call(expression: Java) -> Java | None:
        return next((own for value, own in results_of if expression.semanticEquals(value)), None)

    # A column may combine several calls: the stage computes the calls, and Spark what is around them.
    final = []
    for column in columns:
        value = plans.rebuild(column.child() if is_alias(column) else column, replace_call)
        final.append(plans.alias(value, column.name(), like=column))
    return PlanPart(plans.project([*final, *compiler.hidden(leaf)], leaf.plan), leaf.hidden)


def _argument(compiler: Compiler, call: Java) -> Java:
    """Return the argument of a function; for a function that counts rows, a constant that is not null."""
    if kind_of(call) == "RowNumber":
        return compiler.plans.one()
    return call.aggregateFunction().children().apply(0)


def _segment_for(
    compiler: Compiler,
    stream: str,
    flow: Flow,
    part: PlanPart,
    columns: Sequence[Java],
    *,
    is_ordered: bool = False,
) -> Segment:
    """Return a segment that computes the columns for a stage, in total order if rows wait for completion."""
    plans = compiler.plans
    part = PlanPart(plans.project([*columns, *compiler.hidden(part)], part.plan), part.hidden)
    own = items(part.plan.output())[: len(columns)]
    if COMPLETE in part.hidden and not is_ordered:
        part = compiler.in_order(part, own)
    return compiler.segment(f"{stream}<", flow, part, own)


def _add_top_n(compiler: Compiler, node: Node, plan: Java) -> None:
    plans, (below,) = compiler.plans, items(plan.children())
    part, flow = _input_of(compiler, node.children[0], below)
    system = node.children[0].flow.system
    columns = items(below.output())
    # A retraction has another offset and system time than the record that it removes; without them both are equal.
    shown = [plans.null_of(column) if column.exprId().id() in system else column for column in columns]
    partition = items(plan.partitionSpec())
    orders = [order.child() for order in items(plan.orderSpec())]
    aliases = [plans.alias(v, f"c{index}") for index, v in enumerate((*shown, *partition, *orders))]
    assert node.stream is not None
    assert node.over is not None
    first = len(shown) + len(partition)
    compiler.stages.append(
        TopN(
            stream=node.stream,
            segment=_segment_for(compiler, node.stream, flow, part, aliases),
            outputs=len(shown),
            partition=tuple(range(len(shown), first)),
            order=tuple(
                SortKey(first + index, is_ascending=key.is_ascending, nulls_first=key.nulls_first)
                for index, key in enumerate(node.over.order)
            ),
            limit=node.limit,
        )
    )


def _add_running(compiler: Compiler, node: Node, plan: Java) -> None:
    plans, (below,) = compiler.plans, items(plan.children())
    part = compiler.part(node.children[0], below, WAITING)
    order = [key.child() for key in items(plan.orderSpec())]
    name, complete = plans.fresh("__odf_key"), plans.fresh(COMPLETE)
    probe = plans.with_key(part.plan, order[0], name)
    text = f"unix_micros(CAST({name} AS TIMESTAMP)) + {node.behind}L"
    part = PlanPart(plans.with_column(probe, complete, text), {**part.hidden, COMPLETE: complete})
    functions = [window_function(column) for column in items(plan.windowExpressions())]
    arguments = [_argument(compiler, function) for function in functions]
    columns, keys = items(below.output()), items(plan.partitionSpec())
    values = (*columns, *keys, *order, *arguments)
    # The first key is the time, in whose order rows become complete anyway.
    orders = items(plan.orderSpec())[1:]
    # Each stream numbers its own records, so the order of arrival means nothing across several.
    part = compiler.in_order(part, columns, orders, by_arrival=len(node.children[0].flow.streams) == 1)
    aliases = [plans.alias(value, f"c{index}") for index, value in enumerate(values)]
    types = list(plans.schema(plan))[len(columns) :]
    assert node.over is not None
    assert node.stream is not None
    flow = replace(node.children[0].flow, waits=True)
    first = len(columns) + len(keys) + len(order)
    compiler.stages.append(
        RunningAggregates(
            stream=node.stream,
            segment=replace(
                _segment_for(compiler, node.stream, flow, part, aliases, is_ordered=True), holder="OVER"
            ),
            outputs=len(columns),
            keys=tuple(range(len(columns), len(columns) + len(keys))),
            peers=tuple(range(first - len(order), first)),
            calls=tuple(
                _calls(functions, [output.type for output in types], first, len(columns), node.over.ranges)
            ),
        )
    )


def _add_session(compiler: Compiler, node: Node, plan: Java) -> None:
    plans, (below,) = compiler.plans, items(plan.children())
    part = compiler.part(node.children[0], below, RECORDS)
    keys, columns = items(plan.groupingExpressions()), items(plan.aggregateExpressions())
    assert node.key is not None
    assert node.stream is not None
    columns = in_order_of_rows(plans, columns, plans.column(part.plan, part.hidden[ROW]))
    name, members = plans.fresh("__odf_key"), plans.fresh("__odf_members")
    collected = plans.collect_list(plans.column(part.plan, part.hidden[ROW]))
    aggregate = plans.aggregate(
        keys, [*columns, plans.alias(collected, members), plans.alias(keys[node.key], name)], part.plan
    )
    # A record exactly at a session's end still belongs to it, and a watermark at that time does not make it late.
    ended = compiler.with_complete(aggregate, name, keys[node.key], 1)
    own = items(plan.output())
    ended = compiler.in_order(ended, own)
    segment = compiler.segment(
        f"{node.stream}<",
        replace(node.children[0].flow, waits=True),
        ended,
        [*own, plans.column(ended.plan, members)],
    )
    compiler.stages.append(Session(stream=node.stream, segment=segment, gap=node.behind))


def _add_as_of(compiler: Compiler, node: Node, plan: Java) -> None:
    assert node.condition is not None
    assert node.stream is not None
    children = zip(node.children, items(plan.children()), strict=True)
    sides = [_as_of_side(compiler, node, index, child, java) for index, (child, java) in enumerate(children)]
    (left, asking), (right, versions) = sides
    compiler.stages.append(
        TemporalJoin(
            stream=node.stream,
            left=asking,
            right=versions,
            keys=_key_positions(node.condition.equal, left, right),
            behind=int(node.waits[0] + node.waits[1]),
            is_inner=join_kind(node.tree) == "Inner",
        )
    )


def _as_of_side(
    compiler: Compiler, node: Node, side: int, child: Node, java: Java
) -> tuple[list[Java], Segment]:
    """Return the columns and the segment of one side of a temporal join: 0 for the rows, 1 for the versions.

    The segment's last column is the time in microseconds.
    """
    plans = compiler.plans
    part = compiler.part(child, java, WAITING)
    columns = items(java.output())
    time = next(column for column in columns if column.exprId().id() == node.times[side])
    name, micros = plans.fresh("__odf_key"), plans.fresh("__odf_time")
    probe = plans.with_key(part.plan, time, name)
    timed = plans.with_column(probe, micros, f"unix_micros(CAST({name} AS TIMESTAMP))")
    hidden = part.hidden
    # The rows that ask wait until all versions up to their time have arrived, and are kept for that long.
    if side == 0 and node.waits[0]:
        complete = plans.fresh(COMPLETE)
        timed = plans.with_column(timed, complete, f"{hidden[COMPLETE]} + {int(node.waits[0])}L")
        hidden = {COMPLETE: complete}
    flow = replace(child.flow, waits=True, shown=child.flow.shown if side == 0 else frozenset())
    if side == 0:
        flow = replace(
            flow,
            phase=flow.phase + int(node.waits[0]),
            retention={stream: retention + node.waits[0] for stream, retention in flow.retention.items()},
        )
    # Of versions with one key and time the last one counts, which is the last to arrive if there is one stream.
    by_arrival = side == 1 and len(child.flow.streams) == 1
    part = compiler.in_order(PlanPart(timed, hidden), columns, by_arrival=by_arrival)
    own = [*columns, plans.column(part.plan, micros)]
    segment = compiler.segment(f"{node.stream}{'<>'[side]}", flow, part, own)
    return columns, replace(segment, holder="AS OF")


def _key_positions(
    equal: Iterable[tuple[int, int]], left: Iterable[Java], right: Iterable[Java]
) -> tuple[tuple[int, int], ...]:
    """Return the positions of the equal columns in the left and in the right rows."""
    ids = [[column.exprId().id() for column in columns] for columns in (left, right)]
    pairs = (pair if pair[0] in ids[0] else (pair[1], pair[0]) for pair in equal)
    return tuple((ids[0].index(one), ids[1].index(other)) for one, other in pairs)


def _calls(
    functions: Sequence[Java], types: Sequence[pa.DataType], first: int, place: int, ranges: Sequence[bool]
) -> list[AggregateCall]:
    calls = []
    for is_range in (False, True):
        chosen = [index for index, of_range in enumerate(ranges) if of_range == is_range]
        if chosen:
            calls.append(
                AggregateCall(
                    aggregates=tuple(aggregate_of(functions[index], types[index]) for index in chosen),
                    types=tuple(types[index] for index in chosen),
                    arguments=tuple(first + index for index in chosen),
                    places=tuple(place + index for index in chosen),
                    is_range=is_range,
                )
            )
    return calls
