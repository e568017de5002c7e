"""DISTINCT in aggregates of windows, so that other sums in the same aggregate still run in the order of the records.

Next to a DISTINCT, Spark computes partial sums for each of its values and merges them in the order of a hash table. If
the DISTINCT has a filter, Spark does not: it then computes all other functions over the rows in their order.
"""

from collections.abc import Sequence
from typing import Final

from odf_common.errors import InvalidQuery
from odf_engine_spark.plan.aggregate_calls import kind_of
from odf_engine_spark.spark.jvm import Java
from odf_engine_spark.spark.logical_plans import Plans, items

_OF_ANY: Final = ("Count", "CountIf", "Min", "Max", "BoolAnd", "BoolOr")
_OF_EXACT: Final = ("Sum", "Average")
_INEXACT: Final = ("float", "double")


def in_order_of_rows(plans: Plans, columns: Sequence[Java], never_null: Java) -> list[Java]:
    """Return an aggregate's columns, with an always-true filter added to each DISTINCT.

    Raises `InvalidQuery` for functions of distinct values whose result depends on the order of the values.
    """

    def filtered(expression: Java) -> Java | None:
        if kind_of(expression) != "AggregateExpression" or not expression.isDistinct():
            return None
        _check(expression)
        if expression.filter().isDefined():
            return expression
        return plans.with_filter(expression, never_null)

    return [plans.rebuilt(column, filtered) for column in columns]


def _check(call: Java) -> None:
    function = call.aggregateFunction()
    types = {str(each.dataType().typeName()) for each in items(function.children())}
    is_exact = kind_of(function) in _OF_EXACT and not types & set(_INEXACT)
    if kind_of(function) not in _OF_ANY and not is_exact:
        raise InvalidQuery(
            text=f"{call.sql()} depends on the order of the values: use DISTINCT of DECIMAL, or in count, min or max"
        )
