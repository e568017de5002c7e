"""Calls of aggregate functions in a plan: the engine's aggregates for them, and DISTINCT in Spark's own.

With a DISTINCT, Spark computes partial results for each distinct value, and merges them in the order of a hash table.
If the DISTINCT has a filter, it does not: it then computes the other functions over the rows in their order.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa

from odf_common.errors import InvalidQuery
from odf_engine_spark.aggregates.functions import Aggregate
from odf_engine_spark.analysis.windowing import FUNCTIONS, Function
from odf_engine_spark.spark.jvm import Java
from odf_engine_spark.spark.logical_plans import Plans, items

# Functions whose result over distinct values does not depend on the order in which Spark merges them: these for values
# of any type, those below for exact ones only, since a sum of doubles depends on the order.
_OF_ANY: Final = ("Count", "CountIf", "Min", "Max", "BoolAnd", "BoolOr")
_OF_EXACT: Final = ("Sum", "Average")
_INEXACT: Final = ("float", "double")


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
    """Return the engine's name of an aggregate or window function; raises `InvalidQuery` for unsupported ones."""
    if kind_of(call) == "RowNumber":
        return "count"
    function = kind_of(call.aggregateFunction())
    is_plain = not call.isDistinct() and not call.filter().isDefined()
    if function not in FUNCTIONS or not is_plain or call.aggregateFunction().children().size() != 1:
        raise InvalidQuery(
            text=f"{call.sql()} cannot be computed over records that may be retracted: supported are count, sum, avg, "
            "min and max; GROUP BY window(<event time>, '<size>') without the hint CHANGES allows all others"
        )
    return FUNCTIONS[function]


def aggregate_of(call: Java, type_: pa.DataType) -> Aggregate:
    """Return the engine's aggregate for a call with this result type."""
    return Aggregate(function_of(call), pa.int64() if kind_of(call) == "RowNumber" else type_)


def window_function(column: Java) -> Java:
    """Return the function of an OVER expression."""
    return column.child().windowFunction()


def unique(calls: Iterable[Java]) -> list[Java]:
    """Return the calls without those that are semantically equal to an earlier one."""
    result: list[Java] = []
    for call in calls:
        if not any(call.semanticEquals(other) for other in result):
            result.append(call)
    return result


def in_order_of_rows(plans: Plans, columns: Sequence[Java], never_null: Java) -> list[Java]:
    """Return the columns of an aggregate with an always-true filter added to each DISTINCT.

    Raises `InvalidQuery` for functions of distinct values whose result depends on the order of the values.
    """

    def with_true_filter(expression: Java) -> Java | None:
        if kind_of(expression) != "AggregateExpression" or not expression.isDistinct():
            return None
        _require_exact(expression)
        # The user's own filter has the same effect.
        if expression.filter().isDefined():
            return expression
        return plans.with_filter(expression, never_null)

    return [plans.rebuild(column, with_true_filter) for column in columns]


def _require_exact(call: Java) -> None:
    function = call.aggregateFunction()
    types = {str(child.dataType().typeName()) for child in items(function.children())}
    is_exact = kind_of(function) in _OF_EXACT and not types & set(_INEXACT)
    if kind_of(function) not in _OF_ANY and not is_exact:
        raise InvalidQuery(
            text=f"{call.sql()} depends on the order of the values: use DISTINCT of DECIMAL, or in count, min or max"
        )
