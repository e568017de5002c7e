"""Analysis of `OVER (…)`: what its functions require, and how they can be computed incrementally."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from odf_common.errors import InvalidQuery
from odf_engine_spark.analysis.columns import after_group, output, reference
from odf_engine_spark.analysis.flow import Flow
from odf_engine_spark.analysis.intervals import constant
from odf_engine_spark.analysis.times import FOREVER, Time, Times, known_of, time_of
from odf_engine_spark.spark.tree import Tree

Function = Literal["count", "sum", "min", "max", "avg"]
FUNCTIONS: Final[Mapping[str, Function]] = {
    "Count": "count",
    "Sum": "sum",
    "Min": "min",
    "Max": "max",
    "Average": "avg",
}
_ADVICE: Final = (
    "supported are OVER (PARTITION BY a window …), count, sum, avg, min, max and row_number() OVER (… ORDER BY "
    "<event time>), aggregates over RANGE BETWEEN INTERVAL … PRECEDING AND CURRENT ROW, and row_number() with a "
    "bound such as WHERE place <= 10"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The sort order of a column in ORDER BY."""

    is_ascending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The way in which window functions are computed.

    *partitioned*: by Spark, once a whole partition is complete (`key` is its time column). *ranged*: by Spark, over
    records that are at most `preceding` microseconds older. *running*: updated in the order of event time. *ranked*:
    the top N, updated as records arrive.
    """

    kind: Literal["partitioned", "ranged", "running", "ranked"]
    key: int | None = None
    preceding: int = 0
    ranges: tuple[bool, ...] = ()  # of each function: whether peers share a value
    order: tuple[Order, ...] = ()


def read_over(tree: Tree, times: Times) -> Over:
    """Return the way in which a plan's window functions can be computed; raises `InvalidQuery` for unsupported ones."""
    partition, order = tree.part("partitionSpec"), tree.part("orderSpec")
    orders = tuple(
        Order(
            is_ascending="Ascending" in str(o.fields["direction"]),
            nulls_first="First" in str(o.fields["nullOrdering"]),
        )
        for o in order
    )
    for index, column in enumerate(partition):
        if known_of(column, times) is not None:
            return Over(kind="partitioned", key=index, order=orders)
    functions = [_function(column) for column in tree.part("windowExpressions")]
    ranges = [_frame(column) for column in tree.part("windowExpressions")]
    frames = set(ranges)
    is_by_time = bool(order) and time_of(order[0].children[0], times) is not None and orders[0].is_ascending
    is_folded = all(name == "RowNumber" or name in FUNCTIONS for name in functions)
    if is_by_time and is_folded and frames <= {("Range", None), ("Row", None)}:
        return Over(kind="running", ranges=tuple(kind == "Range" for kind, _ in ranges), order=orders)
    if is_by_time and len(order) == 1 and len(frames) == 1:
        kind, preceding = next(iter(frames))
        if kind == "Range" and preceding is not None:
            return Over(kind="ranged", preceding=preceding, order=orders)
    if functions == ["RowNumber"] and order:
        return Over(kind="ranked", order=orders)
    raise InvalidQuery(text=f"{_spoken(tree)} OVER cannot be computed incrementally: {_ADVICE}")


def in_time(tree: Tree, flow: Flow) -> tuple[Flow, int]:
    """Return the flow of rows that wait until all rows ordered before or with them are complete.

    Also returns how much later than the time by which they are ordered the rows are complete, in microseconds.
    """
    order = tree.part("orderSpec")[0].children[0]
    order_time = time_of(order, flow.times)
    assert order_time is not None
    if order_time.span.upper == FOREVER:
        raise InvalidQuery(text="rows of a join without time bounds cannot be ordered by time")
    columns = tuple(reference(*column) for column in output(tree.children[0]))
    times = {
        column: time for column, time in after_group(columns, flow, order).items() if isinstance(time, Time)
    }
    slack, behind = order_time.span.upper - order_time.span.lower, int(order_time.span.upper)
    retention = {name: retention + slack for name, retention in flow.retention.items()}
    result = replace(
        flow,
        waits=True,
        times=times,
        maybe={},
        join_sides=(times,),
        retention=retention,
        period=order_time.period,
        phase=behind,
    )
    return result, behind


def _function(column: Tree) -> str:
    function = column.children[0].children[0]
    if function.kind != "AggregateExpression":
        return function.kind
    if function.fields["isDistinct"] or function.part("filter"):
        return "Distinct"
    return function.children[0].kind


def _frame(column: Tree) -> tuple[str, int | None]:
    """Return the kind of a frame, and how far back it reaches in microseconds; None for all preceding rows."""
    _, spec = column.children[0].children
    frame = spec.children[-1]
    kind = "Range" if "RangeFrame" in str(frame.fields["frameType"]) else "Row"
    lower, upper = frame.children
    if upper.kind == "CurrentRow" and lower.kind == "UnboundedPreceding":
        return kind, None
    back = constant(lower)
    if upper.kind == "CurrentRow" and kind == "Range" and back is not None and back <= 0:
        return kind, -back
    return "Other", 0


def _spoken(tree: Tree) -> str:
    return ", ".join(sorted({_function(column) for column in tree.part("windowExpressions")}))
