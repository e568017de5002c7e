"""Construction of Spark's logical plans: leaves for records, hidden columns, projections, sort orders.

The user's SQL is never rewritten as text. Its *analysed* plan is taken apart, and reassembled around the places where
state is kept. Rows have hidden columns: `ROW`, the number of the record within the request; `COMPLETE`, the watermark
at which the row is complete (microseconds); `LATE`, the watermark at or before which windows ignore the row as late;
and `ARRIVED`, its position in the stream.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from odf_engine_spark.spark.jvm import Java, Spark
from odf_engine_spark.values.spark_types import arrow_schema_of

ROW: Final = "__odf_row"
COMPLETE: Final = "__odf_complete"
LATE: Final = "__odf_late"
ARRIVED: Final = "__odf_arrived"
RECORDS: Final = (ROW,)  # hidden in plans that process records one by one
HIDDEN: Final = (COMPLETE, LATE)  # stored with records that are kept
WAITING: Final = (*HIDDEN, ARRIVED)  # hidden in plans whose rows are emitted when they are complete
RECORDS_PER_BATCH: Final = 1024  # records per batch: Spark checks for cancellation between batches
EXPANDING_RECORDS_PER_BATCH: Final = 8  # the same if one record may become millions of rows
EXPRESSIONS: Final = "org.apache.spark.sql.catalyst.expressions"


@dataclass(frozen=True, slots=True)
class PlanPart:
    """A plan and the names of its hidden columns, by their kinds."""

    plan: Java
    hidden: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Slot:
    """A node of a plan. If `stream` is set, it is the leaf for the records of that stream."""

    node: Java
    children: tuple["Slot", ...] = ()
    stream: str | None = None
    columns: Java = None

    def leaves(self) -> tuple[str, ...]:
        """Return the streams of the leaves, from left to right."""
        if self.stream is not None:
            return (self.stream,)
        return tuple(leaf for child in self.children for leaf in child.leaves())


@dataclass(frozen=True, slots=True)
class Plans:
    """Builds logical plans in one isolated session."""

    spark: Spark
    feeding: Spark
    batch: int = RECORDS_PER_BATCH
    leaves: dict[int, tuple[str, Java]] = field(default_factory=dict)
    _numbers: "count[int]" = field(default_factory=count)

    @property
    def _logical(self) -> Java:
        return self.spark.classes("org.apache.spark.sql.catalyst.plans.logical")

    @property
    def _expressions(self) -> Java:
        return self.spark.classes(EXPRESSIONS)

    @property
    def _aggregates(self) -> Java:
        return self.spark.classes(f"{EXPRESSIONS}.aggregate")

    @property
    def _none(self) -> Java:
        return self.spark.singleton("scala.None")

    def fresh(self, kind: str) -> str:
        """Return a column name that is not used yet."""
        return f"{kind}{next(self._numbers)}"

    def leaf(self, stream: str, columns: Sequence[Java], hidden: Sequence[str]) -> PlanPart:
        """Return a leaf for the records of a stream; the columns keep their expression ids."""
        names = {kind: self.fresh(kind) for kind in hidden}
        empty = pa.table({name: pa.array([], pa.int64()) for name in names.values()})
        relation = self.spark.relation(empty)
        more = items(relation.output())
        together = self.spark.seq([*columns, *more])
        # By this id `slots` finds the leaf again in the finished plan: it belongs to no other column.
        self.leaves[more[-1].exprId().id()] = (stream, together)
        return PlanPart(self._logical.LocalRelation(together, relation.data(), False, self._none), names)  # noqa: FBT003 - Scala's

    def columns_for(self, schema: pa.Schema) -> list[Java]:
        """Return new columns with the types of a schema."""
        return items(self.spark.relation(schema.empty_table()).output())

    def project(self, columns: Sequence[Java], below: Java) -> Java:
        """Return a plan with a projection to these columns."""
        return self._logical.Project(self.spark.seq(columns), below)

    def alias(self, value: Java, name: str, like: Java = None) -> Java:
        """Return a value under a name; with the expression id of `like` if plans above refer to that id."""
        identity = (
            self.spark.method(f"{EXPRESSIONS}.NamedExpression.newExprId")() if like is None else like.exprId()
        )
        qualifier = self.spark.seq([])
        return self._expressions.Alias(value, name, identity, qualifier, self._none, self.spark.seq([]))

    def aggregate(self, keys: Sequence[Java], columns: Sequence[Java], below: Java) -> Java:
        """Return a plan with an aggregation."""
        seq = self.spark.seq
        return self._logical.Aggregate(seq(keys), seq(columns), below, self._none)

    def expand(self, projections: Sequence[Java], columns: Sequence[Java], below: Java) -> Java:
        """Return a plan that expands each row to several rows."""
        return self._logical.Expand(self.spark.seq(projections), self.spark.seq(columns), below)

    def with_key(self, below: Java, key: Java, name: str) -> Java:
        """Return a plan with an additional hidden column that has the value of `key`."""
        return self.project([*items(below.output()), self.alias(key, name)], below)

    def window(self, plan: Java, below: Java, ties: Sequence[Java], tied: Sequence[str]) -> Java:
        """Return the window functions of `plan` over another input, with a total order for functions that need it.

        `ties` are the sort orders that break ties, and `tied` the names of the functions that need a total order.
        """
        seq = self.spark.seq
        specs = plan.orderSpec()
        columns = [self._break_ties(column, ties, tied) for column in items(plan.windowExpressions())]
        if any(column[1] for column in columns):
            specs = seq([*items(specs), *ties])
        return self._logical.Window(
            seq([column for column, _ in columns]), plan.partitionSpec(), specs, below, self._none
        )

    def _break_ties(self, column: Java, ties: Sequence[Java], tied: Sequence[str]) -> tuple[Java, bool]:
        """Return a window function with a total order, and whether its order was changed for that."""
        call = column.child()
        function, spec = call.windowFunction(), call.windowSpec()
        kind = function.getClass().getSimpleName()
        if kind == "AggregateExpression":
            kind = function.aggregateFunction().getClass().getSimpleName()
        if kind not in tied:
            return column, False
        order = self.spark.seq([*items(spec.orderSpec()), *ties])
        package = self._expressions
        untied = package.WindowSpecDefinition(spec.partitionSpec(), order, spec.frameSpecification())
        return self.alias(package.WindowExpression(function, untied), column.name(), like=column), True

    def one(self) -> Java:
        """Return the literal 1, which is never null."""
        return self._expressions.Literal(1, self.spark.singleton("org.apache.spark.sql.types.IntegerType"))

    def with_filter(self, call: Java, never_null: Java) -> Java:
        """Return an aggregate function restricted to the rows in which a column is not null."""
        option = self.spark.method("scala.Option.apply")(self._expressions.IsNotNull(never_null))
        aggregate = self._aggregates.AggregateExpression
        return aggregate(call.aggregateFunction(), call.mode(), call.isDistinct(), option, call.resultId())

    def collect_list(self, column: Java) -> Java:
        """Return an aggregate function that collects the values of a column in a list."""
        return self._aggregates.CollectList(column).toAggregateExpression()

    def null_of(self, column: Java) -> Java:
        """Return a null with the type of a column."""
        return self._expressions.Literal(None, column.dataType())

    def sort(self, orders: Sequence[Java], below: Java) -> Java:
        """Return a plan with its rows sorted."""
        return self._logical.Sort(self.spark.seq(orders), True, below, self._none)  # noqa: FBT003 - Scala's

    def ascending(self, column: Java) -> Java:
        """Return the ascending sort order of a column, with nulls first."""
        up, first = (self.spark.singleton(f"{EXPRESSIONS}.{name}") for name in ("Ascending", "NullsFirst"))
        return self._expressions.SortOrder(column, up, first, self.spark.seq([]))

    def with_column(self, below: Java, name: str, text: str) -> Java:
        """Return a plan with an additional column, computed from hidden columns by a SQL expression."""
        expression = self.spark.method("org.apache.spark.sql.functions.expr")(text)
        return self.spark.frame(below).withColumn(name, expression).queryExecution().analyzed()

    def where(self, below: Java, text: str) -> Java:
        """Return a plan restricted to the rows that satisfy a SQL condition on hidden columns."""
        return self.spark.frame(below).filter(text).queryExecution().analyzed()

    def column(self, plan: Java, name: str) -> Java:
        """Return a hidden column of a plan, which must exist."""
        columns = plan.output()
        for index in reversed(range(columns.size())):  # hidden columns are among the last
            attribute = columns.apply(index)
            if attribute.name() == name:
                return attribute
        raise AssertionError(f"the plan has the hidden column {name}")

    def rebuild(self, expression: Java, replacement: Callable[[Java], Java | None]) -> Java:
        """Return an expression with each part replaced for which `replacement` returns another one, outermost first."""
        other = replacement(expression)
        if other is not None:
            return other
        children = items(expression.children())
        if not children:
            return expression
        return expression.withNewChildren(
            self.spark.seq([self.rebuild(child, replacement) for child in children])
        )

    def schema(self, plan: Java) -> pa.Schema:
        """Return the columns of a plan as an Arrow schema; raises `InvalidQuery` for types that Arrow does not have."""
        return arrow_schema_of(DataFrame(self.spark.frame(plan), self.spark.session).schema)

    def slots(self, plan: Java) -> Slot:
        """Return a plan as a tree of slots, in which the leaves for records are marked."""
        children = items(plan.children())
        if not children and plan.getClass().getSimpleName() == "LocalRelation":
            columns = items(plan.output())
            stream, together = self.leaves[columns[-1].exprId().id()]
            return Slot(plan, stream=stream, columns=together)
        return Slot(plan, tuple(self.slots(child) for child in children))

    def over(self, slot: Slot, records: Mapping[str, pa.Table]) -> Java:
        """Return a plan in which each leaf is bound to the records of its stream."""
        return self._bind_leaves(slot, {name: self._rows(table) for name, table in records.items()})

    def _rows(self, records: pa.Table) -> Java:
        """Return records as an RDD with one partition; by default, each batch would become a partition."""
        return self.feeding.relation(records.combine_chunks(), self.batch).rdd().toJavaRDD().coalesce(1).rdd()

    def _bind_leaves(self, slot: Slot, leaves: Mapping[str, Java]) -> Java:
        if slot.stream is not None:
            return self._leaf(slot.columns, leaves[slot.stream])
        return slot.node.withNewChildren(
            self.spark.seq([self._bind_leaves(child, leaves) for child in slot.children])
        )

    def _leaf(self, columns: Java, records: Java) -> Java:
        """Return a leaf with these columns and records.

        It declares its single partition, so that Spark plans no exchange.
        """
        none = self._none
        partition = self.spark.singleton("org.apache.spark.sql.catalyst.plans.physical.SinglePartition")
        rows = self.spark.classes("org.apache.spark.sql.execution").LogicalRDD
        no, unordered = False, self.spark.seq([])
        return rows(columns, records, partition, unordered, no, none, self.spark.java, none, none, no)


def items(sequence: Java) -> list[Java]:
    """Return the elements of a Scala sequence."""
    return [sequence.apply(index) for index in range(sequence.size())]


def with_children(node: Java) -> Iterator[Java]:
    """Yield the nodes of a plan or expression, children before their parents."""
    for child in items(node.children()):
        yield from with_children(child)
    yield node


def all_expressions(plan: Java) -> Iterator[Java]:
    """Yield the expressions of a plan and of its sub-queries, operands before the expressions that use them."""
    for root in (plan, *items(plan.subqueriesAll())):
        for node in with_children(root):
            for expression in items(node.expressions()):
                yield from with_children(expression)


def json_type(type_: Java) -> object:
    """Return a Spark type as JSON: a name, or a mapping for a nested type."""
    return json.loads(type_.json())


def types_in(type_: object) -> Sequence[object]:
    """Return the types within a nested type, both as JSON, in order."""
    if not isinstance(type_, Mapping):
        return ()
    fields = [column["type"] for column in type_.get("fields", ())]
    return [*fields, *(type_[name] for name in ("elementType", "keyType", "valueType") if name in type_)]
