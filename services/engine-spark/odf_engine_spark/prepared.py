"""A transform made ready once and run often: checked, analysed, and rewritten so that records can be put in.

The user's text is never edited. Row-wise plans get one hidden column, the record's number in the request, added to
every projection of the *analysed* plan: order and operation come back by it. A run puts the records of a request
into the leaves and hands the plan to Spark.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from odf_common.errors import InvalidQuery
from odf_common.metadata.steps import SqlQueryStep, TransformSql
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_engine_spark.faults import FAULTS, query_fault
from odf_engine_spark.jvm import Java, Spark, tree_of
from odf_engine_spark.sandbox import check_transform, check_written
from odf_engine_spark.shape import Flow, InputColumns, outputs, shape_of
from odf_engine_spark.tree import Tree
from odf_engine_spark.types import output_schema_of, spark_schema_of

ROW: Final = "__odf_row"  # the hidden column
ENGINES: Final = ("spark",)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInput:
    """An input as a query sees it: `name` in SQL, all columns, and what the system's are called."""

    name: str
    schema: pa.Schema
    vocab: DatasetVocabulary


@dataclass(frozen=True, slots=True)
class Slot:
    """A node of the plan, or with `records` the place where an input's records go."""

    node: Java
    children: tuple["Slot", ...] = ()
    records: str | None = None
    columns: Java = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A transform that passed every check. `schema` is its output as stored, without system columns."""

    spark: Spark
    plan: Slot
    flow: Flow
    schema: pa.Schema
    dropped: frozenset[str]  # system columns that the query passes on; the engine writes its own
    inputs: Mapping[str, pa.Schema]  # by lower-case name, as Spark sees them

    @property
    def is_windowed(self) -> bool:
        """Tell whether records wait for their window to close."""
        return self.flow.is_windowed

    def run(self, records: Mapping[str, pa.Table], order_by: Sequence[str] = ()) -> pa.Table:
        """Return the query's result over these records, sorted by columns if told; `InvalidQuery` if it fails."""
        try:
            leaves = {name: self.spark.relation(table).data() for name, table in records.items()}
            frame = self.spark.frame(_filled(self.spark, self.plan, leaves))
            if order_by:
                ordered = DataFrame(frame, self.spark.session)
                columns = [ordered[f"`{name.replace('`', '``')}`"].asc_nulls_first() for name in order_by]
                return ordered.orderBy(*columns).toArrow()
            return self.spark.collect(frame)
        except FAULTS as error:
            raise query_fault(error) from error


def steps_of(transform: TransformSql) -> tuple[SqlQueryStep, ...]:
    """Return the steps, the last one without alias; raises `InvalidQuery` for what this engine cannot run."""
    if transform.engine.lower() not in ENGINES:
        raise InvalidQuery(text=f"this engine is spark, the query is for {transform.engine}")
    if transform.temporal_tables:
        raise InvalidQuery(text="temporal tables are not supported by this engine")
    steps = transform.queries or ()
    if transform.query is not None:
        steps = (*steps, SqlQueryStep(query=transform.query))
    if not steps or steps[-1].alias is not None or any(step.alias is None for step in steps[:-1]):
        raise InvalidQuery(text="the last query, and no other, has to be without alias")
    return steps


def parsed(spark: Spark, sql: str) -> tuple[Java, Tree]:
    """Return a query's plan as written; raises `InvalidQuery` with line and position, or for commands."""
    try:
        plan = spark.parse(sql)
    except FAULTS as error:
        raise query_fault(error) from error
    tree = tree_of(plan)
    check_written(tree)
    return plan, tree


def prepare(
    warm: Spark, transform: TransformSql, inputs: Sequence[PlannedInput], vocab: DatasetVocabulary
) -> Prepared:
    """Check a transform against its inputs; raises `InvalidQuery` or `InvalidInput`."""
    spark = warm.isolated()
    schemas = {each.name.lower(): spark_schema_of(each.schema) for each in inputs}
    try:
        analysed = _analysed(spark, transform, {each.name: schemas[each.name.lower()] for each in inputs})
    except FAULTS as error:
        raise query_fault(error) from error
    tree = tree_of(analysed)
    check_transform(tree)
    if not analysed.deterministic():
        raise InvalidQuery(text="the query would not give the same result again: it uses a random function")
    flow = shape_of(tree, {each.name.lower(): _meaning(each) for each in inputs})
    dropped = _passed_on(tree, flow)
    spark_schema = _schema_of(spark, analysed)
    names = [name for name in spark_schema.names if name not in dropped]
    _check_names(names, vocab)
    plan = _slots(spark, analysed, schemas, is_numbered=not flow.is_windowed)
    return Prepared(
        spark=spark,
        plan=plan,
        flow=flow,
        schema=output_schema_of(pa.schema([spark_schema.field(name) for name in names])),
        dropped=dropped,
        inputs=schemas,
    )


def _analysed(spark: Spark, transform: TransformSql, schemas: Mapping[str, pa.Schema]) -> Java:
    for name, schema in schemas.items():
        spark.frame(spark.relation(schema.empty_table())).createOrReplaceTempView(quoted(name))
    *named, last = steps_of(transform)
    for step in named:
        frame = spark.frame(_without_with(spark, spark.frame(parsed(spark, step.query)[0])))
        frame.createOrReplaceTempView(quoted(str(step.alias)))
    return _without_with(spark, spark.frame(parsed(spark, last.query)[0]))


def _without_with(spark: Spark, frame: Java) -> Java:
    """Return the analysed plan with the queries of WITH put where they are used."""
    is_inlined, keeps_others, keeps_names = True, False, False
    inline = spark.jvm.org.apache.spark.sql.catalyst.optimizer.InlineCTE(
        is_inlined, keeps_others, keeps_names
    )
    return inline.apply(frame.queryExecution().analyzed())


def _meaning(planned: PlannedInput) -> InputColumns:
    vocab = planned.vocab
    system = {vocab.offset_column, vocab.operation_type_column, vocab.system_time_column}
    return InputColumns(
        event_time=vocab.event_time_column, system=frozenset(system & set(planned.schema.names))
    )


def _schema_of(spark: Spark, plan: Java) -> pa.Schema:
    schema = DataFrame(spark.frame(plan), spark.session).schema
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except FAULTS as error:
        raise InvalidQuery(text=f"a column of the result cannot be stored: {error}") from error


def _passed_on(tree: Tree, flow: Flow) -> frozenset[str]:
    """Return the result columns that are an input's system columns; refuses row-wise queries that compute with them."""
    if flow.is_windowed:
        return frozenset()
    if flow.misused:
        raise InvalidQuery(
            text=f"column {min(flow.misused)} cannot be computed with: a retraction would not repeat the record"
        )
    return frozenset(name for name, passed in outputs(tree, flow.system) if passed)


def _check_names(names: Sequence[str], vocab: DatasetVocabulary) -> None:
    own = {vocab.offset_column, vocab.operation_type_column, vocab.system_time_column}
    for name in names:
        if name in own:
            raise InvalidQuery(text=f"column {name} is written by the engine: give yours another name")
        if names.count(name) > 1:
            raise InvalidQuery(text=f"the result has two columns {name}: give one another name")
    if vocab.event_time_column not in names:
        raise InvalidQuery(
            text=f"the result has no column {vocab.event_time_column}: add AS {vocab.event_time_column} to one"
        )


def quoted(name: str) -> str:
    """Return a name in backticks, as SQL takes any name."""
    return f"`{name.replace('`', '``')}`"


def _slots(spark: Spark, plan: Java, schemas: Mapping[str, pa.Schema], *, is_numbered: bool) -> Slot:
    """Return the plan with places for records, in row-wise plans with the hidden column in every projection."""
    kind = plan.getClass().getSimpleName()
    children = [plan.children().apply(at) for at in range(plan.children().size())]
    if kind == "View" and children[0].getClass().getSimpleName() == "LocalRelation":
        return _leaf(spark, plan, children[0], is_numbered=is_numbered)
    slots = tuple(_slots(spark, child, schemas, is_numbered=is_numbered) for child in children)
    if kind in ("View", "SubqueryAlias", "PipeOperator"):
        return slots[0]
    node = plan.withNewChildren(spark.seq(slot.node for slot in slots))
    if is_numbered and kind == "Project":
        hidden = _hidden(slots[0].node)
        project = spark.jvm.org.apache.spark.sql.catalyst.plans.logical.Project
        node = project(node.projectList().appended(hidden), slots[0].node)
    return Slot(node, slots)


def _leaf(spark: Spark, view: Java, relation: Java, *, is_numbered: bool) -> Slot:
    name = view.desc().identifier().table().lower()
    columns = relation.output()
    if is_numbered:
        numbers = spark.relation(pa.table({ROW: pa.array([], pa.int64())}))
        columns = columns.appended(numbers.output().apply(0))
    return Slot(_relation(spark, columns, relation.data()), records=name, columns=columns)


def _relation(spark: Spark, columns: Java, data: Java) -> Java:
    none = spark.jvm.scala.Option.empty()
    return spark.jvm.org.apache.spark.sql.catalyst.plans.logical.LocalRelation(columns, data, False, none)  # noqa: FBT003 - as above


def _hidden(node: Java) -> Java:
    output = node.output()
    for at in reversed(range(output.size())):
        if output.apply(at).name() == ROW:
            return output.apply(at)
    raise AssertionError("every leaf has the hidden column")


def _filled(spark: Spark, slot: Slot, leaves: Mapping[str, Java]) -> Java:
    if slot.records is not None:
        return _relation(spark, slot.columns, leaves[slot.records])
    return slot.node.withNewChildren(spark.seq(_filled(spark, child, leaves) for child in slot.children))
