"""Calls of aggregate functions in a plan, and the aggregates that implement them."""

from collections.abc import Iterable

import pyarrow as pa

from odf_common.errors import InvalidQuery
from odf_engine_spark.aggregates.functions import Aggregate
from odf_engine_spark.analysis.windowing import FUNCTIONS, Function
from odf_engine_spark.spark.jvm import Java
from odf_engine_spark.spark.logical_plans import items


def kind_of(expression: Java) -> str:
    """Return the class of an expression without its package."""
    return str(expression.getClass().getSimpleName())


def is_alias(expression: Java) -> bool:
    """Return whether an expression is an alias."""
    return kind_of(expression) == "Alias"


def aggregate_calls(expression: Java) -> list[Java]:
    """Return the aggregate functions in an expression; raises `InvalidQuery` for unsupported ones."""
    if kind_of(expression) == "AggregateExpression":
        function_of(expression)
        return [expression]
    return [call for child in items(expression.children()) for call in aggregate_calls(child)]


def function_of(call: Java) -> Function:
    """Return our name of an aggregate or window function."""
    if kind_of(call) == "RowNumber":
        return "count"
    function = kind_of(call.aggregateFunction())
    is_plain = not call.isDistinct() and not call.filter().isDefined()
    if function not in FUNCTIONS or not is_plain or call.aggregateFunction().children().size() != 1:
        raise InvalidQuery(
            text=f"{call.sql()} cannot be computed over records that may be retracted: supported are count, sum, avg, "
            "min and max; GROUP BY window(<event time>, '<size>') allows all others"
        )
    return FUNCTIONS[function]


def aggregate_of(call: Java, type_: pa.DataType) -> Aggregate:
    """Return the aggregate of a function whose result has a type."""
    return Aggregate(function_of(call), pa.int64() if kind_of(call) == "RowNumber" else type_)


def window_function(column: Java) -> Java:
    """Return the function of an OVER expression."""
    return column.child().windowFunction()


def unique(calls: Iterable[Java]) -> list[Java]:
    """Return the calls without semantic duplicates."""
    found: list[Java] = []
    for call in calls:
        if not any(call.semanticEquals(other) for other in found):
            found.append(call)
    return found
