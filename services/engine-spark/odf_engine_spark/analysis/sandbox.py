"""Restricts SQL to reading the given tables and computing (layer 1 of the sandbox).

Plans are checked twice: after parsing, before Spark's analysis, so that no command runs; and after the analysis, when
each name has become a class. Only listed plan nodes and expressions are allowed. In addition, functions that are not
listed do not exist for Spark (`spark.function_registry`), however a query writes their names.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from odf_common.errors import InvalidQuery
from odf_engine_spark.analysis.dialect import check_moment
from odf_engine_spark.spark.listed_functions import (
    AD_HOC_CLASSES,
    ALLOWED_CLASSES,
    OPTIONS,
    REFUSED_CLASSES,
    REFUSED_FUNCTIONS,
    Restriction,
    names_in,
)
from odf_engine_spark.spark.tree import Tree

_PLAN_PACKAGES: Final = (
    "org.apache.spark.sql.catalyst.plans.logical.",
    "org.apache.spark.sql.catalyst.analysis.",
)
_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions."
_WRITTEN: Final = names_in(
    "Project Filter Aggregate Union Join SubqueryAlias UnresolvedRelation UnresolvedWith "
    "UnresolvedHaving Generate UnresolvedSubqueryColumnAliases OneRowRelation UnresolvedInlineTable "
    "ResolvedInlineTable PipeOperator Sort GlobalLimit LocalLimit Offset Distinct WithWindowDefinition "
    "Except Intersect LateralJoin Unpivot Pivot UnresolvedTableValuedFunction UnresolvedTVFAliases "
    "UnresolvedHint Sample LimitAll LocalRelation"
)
_ROWS_AND_WINDOWS: Final = names_in(
    "Project Filter Aggregate Union Join SubqueryAlias View LocalRelation Generate PipeOperator Expand Window Distinct"
)
_ANYTHING_READ_ONLY: Final = _ROWS_AND_WINDOWS | names_in(
    "LogicalRelation OneRowRelation Sort GlobalLimit LocalLimit LimitAll Offset Distinct Deduplicate Window Expand "
    "Except Intersect LateralJoin Range ResolvedHint Sample WithCTE CTERelationDef CTERelationRef "
    "Unpivot LogicalRDD"
)
SUBQUERIES: Final = names_in("ScalarSubquery Exists ListQuery InSubquery LateralSubquery")
_CALLS: Final = {  # by kind of node, the field with the function's name
    "UnresolvedFunction": "nameParts",
    "UnresolvedTableValuedFunction": "name",
    "UnresolvedGenerator": "name",
}
_WITH_SCHEMA: Final = ("from_json", "from_csv")
_SCHEMA_OF: Final = ("schema_of_json", "schema_of_csv")
_RANGE_ARGUMENTS: Final = 3  # start, end, step
_STACKED_ROWS: Final = 5_000  # Spark makes code for each, and nothing interrupts that
# Columns, functions and tables of IDENTIFIER(…): their names become known by the analysis, after these checks.
_NAMED_BY_VALUE: Final = ("ExpressionWithUnresolvedIdentifier", "PlanWithUnresolvedIdentifier")
_TIME_TYPES: Final = ("timestamp", "timestamp_ntz", "date")
_PARSED: Final = names_in("ParseToTimestamp ParseToDate TryToTimestampExpressionBuilder ParseToTimestampNTZ")
_LIMIT: Final = "LIMIT (use row_number() OVER (ORDER BY …) in a sub-query and WHERE <its name> <= 10)"
NODE_NAMES: Final = {
    "Aggregate": "aggregates",
    "Deduplicate": "DISTINCT",
    "Distinct": "DISTINCT",
    "Except": "EXCEPT",
    "Expand": "grouping sets",
    "GlobalLimit": _LIMIT,
    "Intersect": "INTERSECT",
    "LateralJoin": "LATERAL joins (use LATERAL VIEW)",
    "LocalLimit": _LIMIT,
    "Offset": "OFFSET",
    "OneRowRelation": "SELECT without FROM",
    "Range": "table functions",
    "ResolvedHint": "hints",
    "RelationTimeTravel": "tables as of a version (use JOIN … FOR SYSTEM_TIME AS OF a column)",
    "Sample": "TABLESAMPLE",
    "ScriptTransformation": "TRANSFORM",
    "Sort": "ORDER BY",
    "UpdateEventTimeWatermarkColumn": "WATERMARK",
    "UnresolvedQualify": "QUALIFY (put the OVER into a sub-query and filter above it)",
    "Window": "OVER",
}
SUPPORTED: Final = (
    "supported are SELECT, WHERE, UNION ALL, explode, GROUP BY, DISTINCT, joins with time bounds or AS OF a "
    "time, and OVER in order of event time"
)


def check_written(tree: Tree) -> None:
    """Raise `InvalidQuery` unless a parsed plan is a query, without commands, scripts and refused functions."""
    for node in plan_nodes(tree):
        if node.kind not in _WRITTEN:
            words = NODE_NAMES.get(node.kind) or node.kind.removesuffix("Command").removesuffix("Statement")
            raise InvalidQuery(text=f"only SELECT queries are allowed, not {words}")
    for node in tree.walk():
        if node.kind in _NAMED_BY_VALUE:
            raise InvalidQuery(text="IDENTIFIER(…) cannot be used: write the name itself")
        if function := called_function(node):
            _check_call(function, node)


def called_function(node: Tree) -> str:
    """Return the name of the function that a node of a parsed plan calls; empty if it is not a call."""
    return _function_name(node.fields[_CALLS[node.kind]]) if node.kind in _CALLS else ""


def _check_call(function: str, call: Tree) -> None:
    """Raise `InvalidQuery` for a refused function, an unlisted option, or an argument that Spark cannot process."""
    if function == "range" and len(_arguments(call)) > _RANGE_ARGUMENTS:
        raise InvalidQuery(text="range: leave out the number of partitions, the fourth argument")
    if function == "stack":
        _check_stacked_rows(_arguments(call))
    if restriction := REFUSED_FUNCTIONS.get(function):
        raise InvalidQuery(text=f"{function}: {restriction}")
    if function in _WITH_SCHEMA:
        _check_schema(function, _arguments(call))
    if (listed := OPTIONS.get(function)) is None:
        return
    names = {name.lower() for name in listed}
    for option in _option_names(call):
        if option is None:
            raise InvalidQuery(text=f"{function}: write its options as map('name', 'value')")
        if option.lower() not in names:
            raise InvalidQuery(text=f"{function}: option {option} is not one of {', '.join(sorted(listed))}")


def _check_schema(function: str, arguments: Sequence[Tree]) -> None:
    """Raise `InvalidQuery` for a schema that is computed or in JSON.

    JSON schemas can name classes to load, and contain expressions that no check sees.
    """
    if len(arguments) <= 1:
        return
    schema = arguments[1].children[0] if arguments[1].kind == "NamedArgumentExpression" else arguments[1]
    text = str(schema.fields["value"]).strip() if schema.kind == "Literal" else "{"
    if called_function(schema) not in _SCHEMA_OF and ("{" in text or text.startswith('"')):
        raise InvalidQuery(text=f"{function}: write its schema as a string such as 'id BIGINT, name STRING'")


def _check_stacked_rows(arguments: Sequence[Tree]) -> None:
    """Raise `InvalidQuery` unless the number of rows of `stack` is a small literal."""
    rows = str(arguments[0].fields["value"]) if arguments and arguments[0].kind == "Literal" else ""
    if not rows.isdecimal() or int(rows) > _STACKED_ROWS:
        raise InvalidQuery(text=f"stack: write its number of rows as a number of at most {_STACKED_ROWS:,}")


def _function_name(name: object) -> str:
    """Return the name of a function without its schema, from an identifier or a list of parts as text."""
    text = name["funcName"] if isinstance(name, dict) else name
    return str(text).removeprefix("[").removesuffix("]").rpartition(", ")[2].lower()


def _option_names(call: Tree) -> Iterable[str | None]:
    """Yield the names of the options in the last argument of a call; None for a name that is not a literal."""
    arguments = _arguments(call)
    last = arguments[-1] if len(arguments) > 1 else call  # the first one is what is converted
    if last.kind == "NamedArgumentExpression":
        last = last.children[0]
    if last.kind == "UnresolvedFunction" and _function_name(last.fields["nameParts"]) == "map":
        for name in _arguments(last)[::2]:
            yield str(name.fields["value"]) if name.kind == "Literal" else None


def _arguments(call: Tree) -> tuple[Tree, ...]:
    return call.children or call.part("arguments") or call.part("functionArgs")


def check_transform(tree: Tree) -> None:
    """Raise `InvalidQuery` unless an analysed plan has only what transforms may use."""
    for node in plan_nodes(tree):
        if node.kind not in _ROWS_AND_WINDOWS:
            raise InvalidQuery(
                text=f"{NODE_NAMES.get(node.kind, node.kind)} cannot be used in a transform: {SUPPORTED}"
            )
    if any(node.kind in SUBQUERIES for node in tree.walk()):
        raise InvalidQuery(text="sub-queries cannot be used in a transform: join instead")
    _check_expressions(tree, {**REFUSED_CLASSES, **AD_HOC_CLASSES})
    check_fixed(tree)
    _check_plain(tree)


def check_fixed(tree: Tree) -> None:
    """Raise `InvalidQuery` for strings that Spark converts to the current time, such as `CAST('now' AS DATE)`."""
    for node in tree.walk():
        is_cast = node.kind == "Cast" and str(node.fields["dataType"]) in _TIME_TYPES
        if not is_cast and not (node.kind in _PARSED and len(node.children) == 1):
            continue
        text = node.children[0]
        if text.kind == "Literal" and text.fields["dataType"] == "string":
            check_moment(str(text.fields["value"]))


def _check_plain(tree: Tree) -> None:
    """Raise `InvalidQuery` for strings with a collation, because the engine compares strings by their bytes."""
    for node in tree.walk():
        if node.kind == "Collate" or "collate" in str(node.fields.get("dataType", "")).lower():
            raise InvalidQuery(
                text="COLLATE cannot be used in a transform: compare lower(…) of strings instead"
            )


def check_query(tree: Tree) -> None:
    """Raise `InvalidQuery` unless the analysed plan of an ad-hoc query only reads and computes."""
    for node in plan_nodes(tree):
        if node.kind not in _ANYTHING_READ_ONLY:
            raise InvalidQuery(text=f"{NODE_NAMES.get(node.kind, node.kind)} cannot be used in a query")
    _check_expressions(tree, REFUSED_CLASSES)


def tables(tree: Tree) -> tuple[str, ...]:
    """Return the tables that a parsed plan reads, in order, without the queries that its WITH defines."""
    own = {str(node.fields["identifier"]["name"]).lower() for node in _with_parts(tree)}
    names: dict[str, None] = {}
    for node in tree.walk():
        if node.kind == "UnresolvedRelation":
            name = _names(node)
            if name.lower() not in own:
                names[name] = None
    return tuple(names)


def _names(relation: Tree) -> str:
    """Return the name of a relation; parts in brackets form a single name, as in backticks."""
    return str(relation.fields["multipartIdentifier"]).removeprefix("[").removesuffix("]").replace(", ", ".")


def _with_parts(tree: Tree) -> Iterable[Tree]:
    for node in tree.walk():
        if node.kind == "UnresolvedWith":
            yield from (child for child in node.children[1:] if child.kind == "SubqueryAlias")


def plan_nodes(tree: Tree) -> Iterable[Tree]:
    """Yield the nodes of a tree that are plans and not expressions."""
    yield tree
    yield from (node for node in tree.walk() if node is not tree and _is_plan(node))


def _is_plan(node: Tree) -> bool:
    if node.name.startswith(_EXPRESSIONS):
        return False
    if node.name.startswith(_PLAN_PACKAGES[0]):
        return True
    return not node.name.startswith(_PLAN_PACKAGES[1]) or "Relation" in node.kind or "Table" in node.kind


def _check_expressions(tree: Tree, refused: Mapping[str, tuple[str, Restriction]]) -> None:
    """Raise `InvalidQuery` for expressions whose class is refused or not listed."""
    for node in tree.walk():
        if node.kind in refused:
            function, restriction = refused[node.kind]
            raise InvalidQuery(text=f"{function or _spoken(node)}: {restriction}")
        if not _is_plan(node) and not (node.name.startswith(_EXPRESSIONS) and node.kind in ALLOWED_CLASSES):
            raise InvalidQuery(text=f"{_spoken(node)}: is not one of the functions that SQL may call here")


def _spoken(node: Tree) -> str:
    name = node.fields.get("funcName") or node.fields.get("prettyName")
    return str(name) if isinstance(name, str) else _snake(node.kind)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
