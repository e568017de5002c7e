"""Checks that preprocess queries compute each record alone, so that results do not depend on the batches.

A batch is what arrived within milliseconds, or one file, or the records around an invalid one. A query that groups,
orders or limits would see parts of groups, and return other rows for other batches.
"""

from typing import Final

from odf_common.errors import InvalidQuery
from odf_engine_spark.analysis.sandbox import (
    NODE_NAMES,
    SUBQUERIES,
    called_function,
    check_fixed,
    plan_nodes,
)
from odf_engine_spark.spark.jvm import Java, Spark
from odf_engine_spark.spark.listed_functions import (
    NOT_ROW_WISE_CLASSES,
    NOT_ROW_WISE_FUNCTIONS,
    Restriction,
    names_in,
)
from odf_engine_spark.spark.tree import Tree

_ROW_WISE: Final = names_in("Project Filter Union SubqueryAlias Generate PipeOperator")
_WRITTEN: Final = _ROW_WISE | names_in(
    "UnresolvedRelation UnresolvedWith UnresolvedSubqueryColumnAliases Unpivot"
)
# LocalRelation is the batch: other ones are VALUES, which are refused as they are written.
_ANALYSED: Final = _ROW_WISE | names_in(
    "View LocalRelation LogicalRDD Expand WithCTE CTERelationDef CTERelationRef"
)
_NAMES: Final = {
    "GlobalLimit": "LIMIT",
    "LocalLimit": "LIMIT",
    "LimitAll": "LIMIT",
    "Aggregate": "GROUP BY",
    "UnresolvedHaving": "HAVING",
    "Join": "a join",
    "LateralJoin": "a LATERAL join",
    "OneRowRelation": "SELECT without FROM input",
    "Pivot": "PIVOT",
    "UnresolvedHint": "a hint",
    "UnresolvedInlineTable": "VALUES",
    "ResolvedInlineTable": "VALUES",
    "LocalRelation": "VALUES",
    "UnresolvedTableValuedFunction": "a table function",
    "WithWindowDefinition": "WINDOW",
}
_OTHERWISE: Final = {
    "LateralJoin": "write LATERAL VIEW explode(…)",
    "UnresolvedHint": "remove it",
    "Sort": "remove it, records keep their order",
    "Offset": "remove it",
    "Sample": "remove it",
    "OneRowRelation": "each row has to come from a record",
    "UnresolvedTableValuedFunction": "each row has to come from a record",
}
_WITHOUT_PARENTHESES: Final = (
    "current_date",
    "current_time",
    "current_timestamp",
    "localtime",
    "localtimestamp",
)
_IN_DERIVATIVE: Final = "do that in a derivative of the dataset"
_WHY: Final = "preprocess computes each record alone, since records arrive in batches of any size"


def check_row_wise_text(tree: Tree, *, is_analysed_later: bool) -> None:
    """Raise `InvalidQuery` if the text of a query shows that it does not compute each record alone.

    Unless the query is analysed later with its columns, words such as `current_date` count as functions.
    """
    _check_plan(tree, _WRITTEN)
    for node in tree.walk():
        function = called_function(node)
        if function == "unix_timestamp" and not node.children:
            raise _refusal(function, NOT_ROW_WISE_FUNCTIONS["now"])
        if node.kind == "UnresolvedAttribute" and not is_analysed_later:
            word = str(node.fields["nameParts"]).strip("[]").lower()
            function = word if word in _WITHOUT_PARENTHESES else ""
        if function in NOT_ROW_WISE_FUNCTIONS:
            raise _refusal(function, NOT_ROW_WISE_FUNCTIONS[function])
    _check_classes(tree)


def check_row_wise(spark: Spark, plan: Java, tree: Tree) -> None:
    """Raise `InvalidQuery` unless an analysed query, whose text has been checked, computes each record alone."""
    _check_plan(tree, _ANALYSED)
    _check_classes(tree)
    check_fixed(tree)
    if not plan.deterministic() or spark.asks_present(plan):
        raise InvalidQuery(text=f"the query would not give the same result again: {_WHY}")


def _check_plan(tree: Tree, allowed: frozenset[str]) -> None:
    for node in plan_nodes(tree):
        if node.kind not in allowed:
            name = _NAMES.get(node.kind) or NODE_NAMES.get(node.kind, node.kind)
            advice = _OTHERWISE.get(node.kind, _IN_DERIVATIVE)
            raise InvalidQuery(text=f"{name} cannot be used in preprocess: {advice}; {_WHY}")
    if any(node.kind in SUBQUERIES for node in tree.walk()):
        raise InvalidQuery(text=f"a sub-query cannot be used in preprocess: {_IN_DERIVATIVE}; {_WHY}")


def _check_classes(tree: Tree) -> None:
    kinds = [node.kind for node in tree.walk() if node.kind in NOT_ROW_WISE_CLASSES]
    # A call of an aggregate has a node around the function, which has the name.
    for function, restriction in sorted(
        (NOT_ROW_WISE_CLASSES[kind] for kind in kinds), key=lambda it: not it[0]
    ):
        raise _refusal(function or "a function of several rows", restriction)


def _refusal(function: str, restriction: Restriction) -> InvalidQuery:
    advice = restriction.instead or _IN_DERIVATIVE
    return InvalidQuery(
        text=f"{function} cannot be used in preprocess: it {restriction.why}: {advice}; {_WHY}"
    )
