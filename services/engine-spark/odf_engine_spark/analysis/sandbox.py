"""What SQL may do: read the given tables, and compute (layer 1 of the sandbox).

Plans are checked twice: after parsing, before Spark analyses them, so that no command runs; and after analysis, when
every name has become a class. Only listed plan nodes pass; expressions are Spark's own, except those that access the
environment, call code, or are not deterministic.
"""

from collections.abc import Iterable
from typing import Final

from odf_common.errors import InvalidQuery
from odf_engine_spark.analysis.dialect import check_moment
from odf_engine_spark.spark.tree import Tree


def _names_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PLAN_PACKAGES: Final = (
    "org.apache.spark.sql.catalyst.plans.logical.",
    "org.apache.spark.sql.catalyst.analysis.",
)
_EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions."
_WRITTEN: Final = _names_in(
    "Project Filter Aggregate Union Join SubqueryAlias UnresolvedRelation UnresolvedWith "
    "UnresolvedHaving Generate UnresolvedSubqueryColumnAliases OneRowRelation UnresolvedInlineTable "
    "ResolvedInlineTable PipeOperator Sort GlobalLimit LocalLimit Offset Distinct WithWindowDefinition "
    "Except Intersect LateralJoin Unpivot Pivot UnresolvedTableValuedFunction UnresolvedTVFAliases "
    "UnresolvedHint Sample LimitAll LocalRelation"
)
_ROWS_AND_WINDOWS: Final = _names_in(
    "Project Filter Aggregate Union Join SubqueryAlias View LocalRelation Generate PipeOperator Expand Window Distinct"
)
_ANYTHING_READ_ONLY: Final = _ROWS_AND_WINDOWS | _names_in(
    "LogicalRelation OneRowRelation Sort GlobalLimit LocalLimit LimitAll Offset Distinct Deduplicate Window Expand "
    "Except Intersect LateralJoin Range ResolvedHint Sample WithCTE CTERelationDef CTERelationRef "
    "Unpivot LogicalRDD"
)
_SUBQUERIES: Final = _names_in("ScalarSubquery Exists ListQuery InSubquery LateralSubquery")
_CALLS_CODE: Final = _names_in(
    "CallMethodViaReflection TryReflect ReflectExpression PythonUDF PythonUDAF PythonUDTF ScalaUDF "
    "ScalaUDAF ScalaAggregator SQLScalarFunction HiveGenericUDF HiveSimpleUDF UserDefinedPythonFunction "
    "AvroDataToCatalyst ApplyFunctionExpression"
)
_LOOKS_OUTSIDE: Final = _names_in(
    "InputFileName InputFileBlockStart InputFileBlockLength CurrentDatabase CurrentCatalog "
    "CurrentSchema CurrentUser CurrentPath SparkVersion VariableReference GetVariable CurrentTimeZone "
    "SparkPartitionID"
)
_CHANGES: Final = {  # not deterministic, and the advice
    "CurrentTimestamp CurrentDate CurrentTime Now LocalTimestamp CurrentBatchTimestamp UnixTimestampNow": (
        "use the event time, or another time that the records have"
    ),
    "Rand Randn RandStr Uniform Uuid Shuffle MonotonicallyIncreasingID AesEncrypt": (
        "use a function of the records, such as xxhash64(…)"
    ),
    "First Last AnyValue": "use min_by(…, <event time>) or max_by(…, <event time>)",
    "CollectList CollectSet ListAgg": "use count, min or max, or keep the rows as they are",
    "KllSketchAggBigint KllSketchAggFloat KllSketchAggDouble KllMergeAggBigint KllMergeAggFloat KllMergeAggDouble": (
        "use percentile(…, 0.5)"
    ),
}
_TIME_TYPES: Final = ("timestamp", "timestamp_ntz", "date")
_PARSED: Final = _names_in("ParseToTimestamp ParseToDate TryToTimestampExpressionBuilder ParseToTimestampNTZ")
_LIMIT: Final = "LIMIT (use row_number() OVER (ORDER BY …) in a sub-query and WHERE <its name> <= 10)"
_SAID: Final = {
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
    """Raise `InvalidQuery` unless a parsed plan is a query: no commands, scripts or shell calls."""
    for node in _plan_nodes(tree):
        if node.kind not in _WRITTEN:
            words = _SAID.get(node.kind) or node.kind.removesuffix("Command").removesuffix("Statement")
            raise InvalidQuery(text=f"only SELECT queries are allowed, not {words}")


def check_transform(tree: Tree) -> None:
    """Raise `InvalidQuery` unless an analysed plan uses only what a transform may use."""
    for node in _plan_nodes(tree):
        if node.kind not in _ROWS_AND_WINDOWS:
            raise InvalidQuery(
                text=f"{_SAID.get(node.kind, node.kind)} cannot be used in a transform: {SUPPORTED}"
            )
    _check_expressions(
        tree, refused=_SUBQUERIES, why="sub-queries cannot be used in a transform: join instead"
    )
    for kinds, advice in _CHANGES.items():
        _check_expressions(
            tree, refused=_names_in(kinds), why=f"would not give the same result again: {advice}"
        )
    _check_fixed(tree)
    _check_plain(tree)
    _check_safe(tree)


def _check_fixed(tree: Tree) -> None:
    """Refuse strings that become the current time when Spark converts them, such as `CAST('now' AS DATE)`."""
    for node in tree.walk():
        is_cast = node.kind == "Cast" and str(node.fields["dataType"]) in _TIME_TYPES
        if not is_cast and not (node.kind in _PARSED and len(node.children) == 1):
            continue
        text = node.children[0]
        if text.kind == "Literal" and text.fields["dataType"] == "string":
            check_moment(str(text.fields["value"]))


def _check_plain(tree: Tree) -> None:
    """Refuse strings that are compared by other rules than their bytes: folds compare bytes."""
    for node in tree.walk():
        if node.kind == "Collate" or "collate" in str(node.fields.get("dataType", "")).lower():
            raise InvalidQuery(
                text="COLLATE cannot be used in a transform: compare lower(…) of strings instead"
            )


def check_query(tree: Tree) -> None:
    """Raise `InvalidQuery` unless an analysed ad-hoc plan only reads and computes."""
    for node in _plan_nodes(tree):
        if node.kind not in _ANYTHING_READ_ONLY:
            raise InvalidQuery(text=f"{_SAID.get(node.kind, node.kind)} cannot be used in a query")
    _check_safe(tree)


def tables(tree: Tree) -> tuple[str, ...]:
    """Return the tables that a parsed plan reads, in order, without the names defined by its WITH."""
    own = {str(node.fields["identifier"]["name"]).lower() for node in _with_parts(tree)}
    names: dict[str, None] = {}
    for node in tree.walk():
        if node.kind == "UnresolvedRelation":
            name = _names(node)
            if name.lower() not in own:
                names[name] = None
    return tuple(names)


def _names(relation: Tree) -> str:
    """Return a relation's name; a part in brackets is a single name, as in backticks."""
    return str(relation.fields["multipartIdentifier"]).removeprefix("[").removesuffix("]").replace(", ", ".")


def _with_parts(tree: Tree) -> Iterable[Tree]:
    for node in tree.walk():
        if node.kind == "UnresolvedWith":
            yield from (child for child in node.children[1:] if child.kind == "SubqueryAlias")


def _plan_nodes(tree: Tree) -> Iterable[Tree]:
    """Yield the nodes that are plans: those that are not expressions and are named like a plan."""
    yield tree
    yield from (node for node in tree.walk() if node is not tree and _is_plan(node))


def _is_plan(node: Tree) -> bool:
    if node.name.startswith(_EXPRESSIONS):
        return False
    if node.name.startswith(_PLAN_PACKAGES[0]):
        return True
    return not node.name.startswith(_PLAN_PACKAGES[1]) or "Relation" in node.kind or "Table" in node.kind


def _check_safe(tree: Tree) -> None:
    _check_expressions(tree, refused=_CALLS_CODE, why="calls code outside the query")
    _check_expressions(tree, refused=_LOOKS_OUTSIDE, why="depends on more than the records")


def _check_expressions(tree: Tree, *, refused: frozenset[str], why: str) -> None:
    for node in tree.walk():
        if node.kind in refused:
            raise InvalidQuery(text=f"{_spoken(node)}: {why}")


def _spoken(node: Tree) -> str:
    name = node.fields.get("funcName") or node.fields.get("prettyName")
    return str(name) if isinstance(name, str) else _snake(node.kind)


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
