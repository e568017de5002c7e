"""Refuses integers and decimals that are converted to a DOUBLE without a cast in the query.

If a BIGINT or DECIMAL is combined with a DOUBLE in a comparison, a condition, an array or a UNION ALL, Spark converts
it: 9007199254740993 becomes …992, so different keys are equal. Arithmetic with a DOUBLE is inexact anyway, and allowed.
"""

import re
from collections.abc import Iterator
from typing import Final

from odf_common.errors import InvalidQuery
from odf_engine_spark.spark.jvm import Java, Spark
from odf_engine_spark.spark.listed_functions import names_in
from odf_engine_spark.spark.logical_plans import all_expressions, items, json_type, types_in, with_children
from odf_engine_spark.spark.tree import Tree

_CAST: Final = "org.apache.spark.sql.catalyst.expressions.Cast"
_COMBINING: Final = names_in(
    "EqualTo EqualNullSafe LessThan LessThanOrEqual GreaterThan GreaterThanOrEqual In Coalesce CaseWhen If Greatest "
    "Least CreateArray CreateMap ArrayContains ArrayPosition ArrayRemove Concat ArrayUnion ArrayIntersect ArrayExcept "
    "MapConcat"
)
_WRITTEN: Final = names_in("SubqueryAlias Filter Join Generate")  # what a written SELECT stands on
_INEXACT: Final = ("double", "float")
_EXACT_DIGITS: Final = 15
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")


def check_doubles(spark: Spark, plan: Java, tree: Tree) -> None:
    """Raise `InvalidQuery` if an analysed plan implicitly converts a BIGINT or DECIMAL to a DOUBLE."""
    if not any(node.kind == "Cast" and _has_double(node.fields["dataType"]) for node in tree.walk()):
        return  # most queries, at no call into the JVM
    is_written = spark.singleton(_CAST).USER_SPECIFIED_CAST()
    for value in (*_operands(plan), *_union_columns(plan)):
        if _kind(value) != "Cast" or value.getTagValue(is_written).isDefined():
            continue
        exact = _exact_type(json_type(value.child().dataType()), json_type(value.dataType()))
        if exact and not _is_exact_constant(value.child()):
            name = value.child().sql()
            raise InvalidQuery(
                text=f"{name} becomes a DOUBLE where it is combined with one, which may change its digits: CAST the "
                f"other value AS {exact}, or write CAST({name} AS {value.dataType().sql()})"
            )


def _operands(plan: Java) -> Iterator[Java]:
    """Yield the operands of comparisons and conditions, and the elements of arrays and maps."""
    for expression in all_expressions(plan):
        if _kind(expression) in _COMBINING:
            yield from items(expression.children())


def _union_columns(plan: Java) -> Iterator[Java]:
    """Yield the columns that Spark converts to the types of other branches of a UNION ALL."""
    for node in with_children(plan):
        for branch in items(node.children()) if _kind(node) == "Union" else ():
            if _kind(branch) == "Project" and _kind(branch.child()) not in _WRITTEN:
                yield from (
                    column.child() for column in items(branch.expressions()) if _kind(column) == "Alias"
                )


def _kind(node: Java) -> str:
    return str(node.getClass().getSimpleName())


def _has_double(type_: object) -> bool:
    return type_ in _INEXACT or any(map(_has_double, types_in(type_)))


def _exact_type(source: object, target: object) -> str:
    """Return the exact type to use instead for a value that becomes a DOUBLE or FLOAT, also nested; empty if exact."""
    if target in _INEXACT:
        digits = _DECIMAL.fullmatch(str(source))
        if digits is not None and int(digits[1]) > _EXACT_DIGITS:
            return f"DECIMAL(38, {digits[2]})"
        return "BIGINT" if source == "long" else ""
    pairs = zip(types_in(source), types_in(target), strict=False)
    return next(filter(None, (_exact_type(before, after) for before, after in pairs)), "")


def _is_exact_constant(value: Java) -> bool:
    """Return whether a constant is exact as a DOUBLE, or is a fraction, for which the nearest DOUBLE is meant."""
    if not value.foldable():
        return False
    text = str(value.eval(None))
    return not text.lstrip("-").isdecimal() or int(float(text)) == int(text)
