"""Computes the size that a parsed plan will have after Spark's analysis, and limits it.

A short text can describe a huge plan. Each query of a WITH that reads the previous one twice doubles the plan, and so
does each `SELECT *` over a join. CUBE of twenty columns groups a million times. A window of an hour that slides by a
second repeats each row 3,600 times. The analysis takes seconds for tens of thousands of expressions, and cannot be
interrupted, so the size is computed before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from odf_common.errors import InvalidQuery
from odf_engine_spark.analysis.intervals import interval_of
from odf_engine_spark.analysis.sandbox import called_function
from odf_engine_spark.spark.query_limits import QueryLimits
from odf_engine_spark.spark.tree import Tree

_LISTS: Final = {"Project": ("projectList",), "Aggregate": ("aggregateExpressions",)}
_FIRST_ONLY: Final = ("Union", "Except", "Intersect")
# Spark compares the items of a list with each other: a list of this length counts twice, longer ones more.
_LONG_LIST: Final = 5_000
# Parts of each of overlapping windows, besides the columns of a row: of six columns, a day may slide by a minute.
_WINDOW_PARTS: Final = 4
_SLIDING_ARGUMENTS: Final = 3  # time, length, slide
_SUBQUERIES: Final = ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery")


@dataclass(frozen=True, slots=True)
class PlanSize:
    """The number of columns that a query returns, and the number of expressions and columns in its whole plan."""

    columns: int
    total: int


def table_size(schema: pa.Schema) -> PlanSize:
    """Return the size of a plan that reads a table."""
    return PlanSize(len(schema), len(schema))


def check_size(tree: Tree, tables: Mapping[str, PlanSize], limits: QueryLimits) -> PlanSize:
    """Return the size of a parsed plan; raises `InvalidQuery` if it is too large.

    `tables` are the sizes of the tables that it may read, by lower-case name.
    """
    size = _Measuring(tables, _named_queries(tree)).plan(tree)
    if size.columns > limits.result_columns:
        raise InvalidQuery(
            text=f"the query returns {size.columns:,} columns, more than {limits.result_columns:,}: name those that "
            "you need, or put them into an array or a map"
        )
    if size.total > limits.plan_size:
        raise InvalidQuery(
            text="the query is too large: with every WITH, `*`, CUBE and overlapping window written out it has "
            f"{size.total:,} expressions and columns, more than {limits.plan_size:,}; select fewer columns, read "
            "values from a dataset by a join instead of listing them, slide windows by more, or split it into datasets"
        )
    return size


@dataclass(slots=True)
class _Measuring:
    """Measures plans; a named query of a WITH counts each time it is read."""

    tables: Mapping[str, PlanSize]
    named: Mapping[str, Sequence[Tree]]
    """The queries with each name; of several queries with the same name, the largest counts."""
    _sizes: dict[str, PlanSize] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)

    def plan(self, node: Tree) -> PlanSize:
        if node.kind == "UnresolvedRelation":
            return self._table(str(node.fields["multipartIdentifier"]).strip("[]").replace(", ", ".").lower())
        inputs = [self.plan(child) for child in _children(node)]
        below = sum(input_.columns for input_ in inputs)
        expressions = stars = windows = subqueries = lateral = 0
        for tree in node.inner():
            for part in _expressions(tree):
                expressions += 1 + len(part.children) ** 2 // _LONG_LIST
                stars += "Star" in part.kind and part is not tree  # the columns count such an item of SELECT
                windows += _overlapping_windows(part)
                if part.kind in _SUBQUERIES:
                    inner = [self.plan(plan) for plan in part.part("plan")]
                    subqueries += sum(size.total for size in inner)
                    lateral += sum(size.columns for size in inner) if part.kind == "LateralSubquery" else 0
        columns = self._columns(node, inputs) + len(node.part("output")) + lateral
        own = columns + expressions + stars * below + windows * (_WINDOW_PARTS + below)
        if node.kind == "Aggregate":
            own = _grouping_sets(node) * (own + below)
        return PlanSize(columns, own + subqueries + sum(input_.total for input_ in inputs))

    def _table(self, name: str) -> PlanSize:
        """Return the size of a named query or table; within the query of that name, the name is that of a table."""
        if name in self._open and len(self.named[name]) > 1:
            raise InvalidQuery(text=f"WITH names {name} again inside of its own query: use another name")
        if name not in self.named or name in self._open:
            return self.tables.get(name, PlanSize(0, 0))
        if name not in self._sizes:
            self._open.add(name)
            sizes = [self.plan(tree) for tree in self.named[name]]
            self._open.remove(name)
            self._sizes[name] = PlanSize(max(it.columns for it in sizes), max(it.total for it in sizes))
        return self._sizes[name]

    def _columns(self, node: Tree, inputs: list[PlanSize]) -> int:
        below = sum(input_.columns for input_ in inputs)
        if node.kind in _LISTS:
            items = [item for name in _LISTS[node.kind] for item in node.part(name)]
            return sum(below if "Star" in item.kind else 1 for item in items)
        if node.kind in _FIRST_ONLY and inputs:
            return inputs[0].columns
        if node.kind == "Generate":
            return below + max(len(node.part("generatorOutput")), 1)
        if node.kind == "Pivot":
            return below + len(node.part("pivotValues")) * len(node.part("aggregates"))
        return below


def _children(node: Tree) -> tuple[Tree, ...]:
    """Return the children of a node without the named queries that `tree_of` adds."""
    return node.children[: int(str(node.fields["num-children"]))]


def _named_queries(tree: Tree) -> Mapping[str, Sequence[Tree]]:
    named: dict[str, list[Tree]] = {}
    for node in tree.walk():
        for query in node.children[len(_children(node)) :]:
            named.setdefault(str(query.fields["identifier"]["name"]).lower(), []).append(query)
    return named


def _expressions(tree: Tree) -> Iterator[Tree]:
    """Yield the expressions of a tree, without those in the plans of sub-queries."""
    yield tree
    if tree.kind not in _SUBQUERIES:
        for part in (*tree.inner(), *tree.children):
            yield from _expressions(part)


def _grouping_sets(node: Tree) -> int:
    """Return the maximum number of column sets by which an aggregate groups."""
    sets = 1
    for item in node.part("groupingExpressions"):
        match item.kind:
            case "Cube":
                sets *= 2 ** min(len(item.children), 64)
            case "Rollup":
                sets *= len(item.children) + 1
            case "GroupingSets":
                sets *= max(len(item.children), 1)
            case _:
                pass
    return sets


def _overlapping_windows(part: Tree) -> int:
    """Return the number of overlapping windows of a call of `window` that a row is in; 0 for anything else."""
    arguments = part.children
    if called_function(part) != "window" or len(arguments) < _SLIDING_ARGUMENTS:
        return 0
    length, slide = (_microseconds(argument) for argument in arguments[1:_SLIDING_ARGUMENTS])
    if not length or not slide:
        raise InvalidQuery(
            text="window: write its length and slide as positive whole numbers with units, such as '1 hour'"
        )
    return -(-length // slide)


def _microseconds(argument: Tree) -> int | None:
    """Return the length of a literal interval in microseconds; None for anything else, or if it is not fixed."""
    if argument.kind != "Literal":
        return None
    text = str(argument.fields["value"])
    length = int(text) if text.isdecimal() else interval_of(text)
    return length if length is not None and length > 0 else None
