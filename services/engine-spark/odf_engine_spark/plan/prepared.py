"""Prepares a transform: checks, analyses and compiles it once, so that records can be bound to it many times."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from odf_common.errors import InvalidQuery
from odf_common.metadata.events import DatasetVocabulary, SqlQueryStep, TransformSql
from odf_common.ports.engine import PlannedInput, QueryOutOfMemory, ResultsChanged
from odf_engine_spark.analysis.columns import AsOf, InputColumns, check_system_columns, output
from odf_engine_spark.analysis.decimal_places import check_decimals
from odf_engine_spark.analysis.dialect import (
    check_moments,
    check_steps,
    check_text,
    check_windows,
    emits_changes,
    lateness,
    read_text,
)
from odf_engine_spark.analysis.emission_fingerprint import Fingerprint, fingerprint_of
from odf_engine_spark.analysis.final_inputs import FinalStep, final_steps
from odf_engine_spark.analysis.inexact_doubles import check_doubles
from odf_engine_spark.analysis.plan_shape import Node, shape_of
from odf_engine_spark.analysis.plan_size import check_size, table_size
from odf_engine_spark.analysis.sandbox import check_transform, check_written
from odf_engine_spark.analysis.semantic_changes import AnalysedQuery, SemanticChange, changes_of, kinds_since
from odf_engine_spark.analysis.times import Time
from odf_engine_spark.plan.compiler import Compiler
from odf_engine_spark.plan.late_corrections import check_late, keys_of
from odf_engine_spark.plan.segments import Segment
from odf_engine_spark.plan.stages import Stage
from odf_engine_spark.plan.stateful_steps import add_stage
from odf_engine_spark.spark.error_messages import FAULTS, no_table, query_fault
from odf_engine_spark.spark.jvm import OPTIMIZER, Java, Spark, tree_of
from odf_engine_spark.spark.logical_plans import EXPANDING_RECORDS_PER_BATCH, RECORDS_PER_BATCH, Plans
from odf_engine_spark.spark.times_of_day import check_nested_times, without_today
from odf_engine_spark.spark.tree import Tree
from odf_engine_spark.values.spark_types import output_schema_of, spark_schema_of

ENGINES: Final = ("spark",)
RESERVED: Final = "__odf_"  # prefix of hidden columns


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTransform:
    """A transform that has passed all checks and is ready to run."""

    stages: tuple[Stage, ...]
    last: Segment
    event_time: Time | None
    """What is known of the output's event time, which determines the watermark of the output."""
    schema: pa.Schema
    """The columns of the output as stored, without system columns."""
    keys: tuple[int, ...]
    """The positions of the columns that identify the rows of a window, for corrections by late records."""
    fingerprint: Fingerprint
    """The fingerprint of what determines when rows are emitted."""
    final_steps: Mapping[str, FinalStep]
    """The inputs that may never retract, in lower case, each with the step that requires this."""
    changes: tuple[SemanticChange, ...]
    """The changes of the engine's results that concern the query."""
    loss: InvalidQuery | None
    """The error for decimals that lose digits.

    It refuses new queries, but queries in existing chains are still analysed.
    """
    refusal: InvalidQuery | None
    """The error for anything else that only new queries are refused for; queries in existing chains continue."""

    @property
    def is_stateful(self) -> bool:
        """Return whether the transform keeps more than watermarks between requests."""
        return bool(self.stages) or self.last.waits

    def can_retract(self, inputs: Collection[str]) -> bool:
        """Return whether rows of the output may be retracted later if records of these inputs (lower case) may be."""
        last = self.last
        if last.flow.is_retractable or last.late:
            return True
        return not last.waits and not last.flow.streams.isdisjoint(inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _AnalysedPlan:
    plan: Java
    tree: Tree
    as_of: Mapping[str, AsOf]
    late: int | None
    emits_changes: bool


def steps_of(transform: TransformSql) -> tuple[SqlQueryStep, ...]:
    """Return the steps of a transform, of which only the last has no alias; raises `InvalidQuery` for invalid steps."""
    if transform.engine.lower() not in ENGINES:
        raise InvalidQuery(text=f"the query is for engine {transform.engine}, but this engine is spark")
    steps = transform.queries or ()
    if transform.query is not None:
        steps = (*steps, SqlQueryStep(query=transform.query))
    if not steps or steps[-1].alias is not None or any(step.alias is None for step in steps[:-1]):
        raise InvalidQuery(text="exactly the last query has to be without an alias")
    return steps


def parse_query(spark: Spark, sql: str) -> tuple[Java, Tree]:
    """Return the parsed plan of a query, and its tree; raises `InvalidQuery` for commands and syntax errors."""
    check_text(sql, spark.limits)
    try:
        plan = spark.parse(sql)
        tree = tree_of(plan)
    except FAULTS as error:
        raise query_fault(error) from error
    check_written(tree)
    return plan, tree


def prepare(
    warm: Spark, transform: TransformSql, inputs: Sequence[PlannedInput], vocab: DatasetVocabulary
) -> PreparedTransform:
    """Check a transform against its inputs, and compile it; raises `InvalidQuery` or `InvalidInput`."""
    _check_inputs(inputs)
    spark = warm.new_session()
    try:
        schemas = {input_.name: spark_schema_of(input_.schema) for input_ in inputs}
        analysed = _analyse(spark, transform, schemas)
        return _compile(spark, analysed, inputs, vocab)
    except FAULTS as error:
        raise query_fault(error) from error


def require_same_results(prepared: PreparedTransform, transform: TransformSql, number: int) -> None:
    """Raise `ResultsChanged` if results may differ from those of the engine with the semantics `number`.

    Raises `InvalidQuery` if the transform names a version whose results are the same, but loses digits of decimals.
    """
    if kinds := kinds_since(prepared.changes, number):
        raise ResultsChanged(engine=f"{transform.engine} {transform.version}", kinds="; ".join(kinds))
    if prepared.loss is not None and transform.version is not None:
        raise prepared.loss


def _check_inputs(inputs: Sequence[PlannedInput]) -> None:
    for input_ in inputs:
        for name in input_.schema.names:
            if name.lower().startswith(RESERVED):
                raise InvalidQuery(
                    text=f"{input_.name} has a column {name}: the prefix {RESERVED} is reserved for the engine"
                )
    names = [input_.name.lower() for input_ in inputs]
    for name in names:
        if names.count(name) > 1:
            raise InvalidQuery(text=f"two inputs are called {name}: names in SQL are not case-sensitive")


def _compile(
    spark: Spark, analysed: _AnalysedPlan, inputs: Sequence[PlannedInput], vocab: DatasetVocabulary
) -> PreparedTransform:
    """Check the analysed plan, and compile it to stages that keep state and a last segment, which Spark runs."""
    tree = analysed.tree
    _check_repeatable(spark, analysed.plan)
    meanings = {input_.name.lower(): _meaning(input_) for input_ in inputs}
    node = shape_of(tree, meanings, analysed.as_of, emits_changes=analysed.emits_changes)
    check_system_columns(node.flow)
    columns = [(name, column) for name, column in output(tree) if column not in node.flow.system]
    _check_names([name for name, _ in columns], vocab)
    _check_late(analysed, node)
    event_time = dict(columns)[vocab.event_time_column]
    output_time = node.flow.times.get(event_time)
    loss = _find_decimal_loss(spark, analysed)
    schemas = tuple(input_.schema for input_ in inputs)
    query = AnalysedQuery(tree, node.flow.times, event_time, schemas, loss)
    compiler = Compiler(Plans(spark, spark.arrow_session(), _records_per_batch(tree)), add_stage)
    plan = without_today(spark, analysed.plan, tree)
    last = compiler.last(node, plan, [column for _, column in columns], vocab.event_time_column)
    last = replace(last, late=analysed.late or 0)
    prepared = PreparedTransform(
        stages=tuple(compiler.stages),
        last=last,
        event_time=output_time if isinstance(output_time, Time) else None,
        schema=output_schema_of(last.schema),
        keys=keys_of(node, [column for _, column in columns]),
        fingerprint=fingerprint_of(node),
        final_steps=final_steps(node),
        changes=changes_of(query),
        loss=loss,
        refusal=_error_of(lambda: _check_new(spark, analysed)),
    )
    _check_event_time(prepared, vocab.event_time_column)
    return prepared


def _check_late(analysed: _AnalysedPlan, node: Node) -> None:
    """Raise `InvalidQuery` if the query has the hint LATE where it is not allowed."""
    if analysed.late is None:
        return
    if analysed.emits_changes:
        raise InvalidQuery(
            text="the hints LATE and CHANGES exclude each other: with CHANGES no record is late"
        )
    check_late(node)


def _records_per_batch(tree: Tree) -> int:
    is_expanding = any(part.kind == "Generate" for part in tree.walk())
    return EXPANDING_RECORDS_PER_BATCH if is_expanding else RECORDS_PER_BATCH


def _check_repeatable(spark: Spark, plan: Java) -> None:
    """Raise `InvalidQuery` if a query may give another result when it is run again."""
    if not plan.deterministic():
        raise InvalidQuery(text="the query would not give the same result again: it uses a random function")
    if spark.asks_present(plan):
        raise InvalidQuery(
            text="a string becomes the current time: write a fixed one, such as DATE '2026-01-31', or use event time"
        )


def _find_decimal_loss(spark: Spark, analysed: _AnalysedPlan) -> InvalidQuery | None:
    return _error_of(lambda: check_decimals(spark, analysed.plan, analysed.tree))


def _check_new(spark: Spark, analysed: _AnalysedPlan) -> None:
    """Raise `InvalidQuery` for what is refused in new queries only."""
    check_nested_times(analysed.plan, analysed.tree)
    check_doubles(spark, analysed.plan, analysed.tree)


def _error_of(check: Callable[[], None]) -> InvalidQuery | None:
    """Return the error that a check raises, or None."""
    try:
        check()
    except InvalidQuery as error:
        return error
    return None


def _analyse(spark: Spark, transform: TransformSql, schemas: Mapping[str, pa.Schema]) -> _AnalysedPlan:
    """Return the analysed plan of the last step; all steps are checked."""
    tables: dict[str, Java] = {}
    as_of: dict[str, AsOf] = {}
    late: int | None = None
    has_changes = False
    sizes = {name.lower(): table_size(schema) for name, schema in schemas.items()}
    check_steps([step.query for step in steps_of(transform)], spark.limits)
    for name, schema in schemas.items():
        # Analysis needs columns only; records are bound to the compiled plan with each request.
        tables[name.lower()] = spark.frame(spark.relation(schema.empty_table()))
        tables[name.lower()].createOrReplaceTempView(quote_name(name))
    for step in steps_of(transform):
        with _in_step(step, transform):
            text = read_text(step.query, transform.temporal_tables or ())
            for view, table in text.tables.items():
                if table.table.lower() not in tables:
                    raise InvalidQuery(text=f"AS OF {table.time}: {no_table(table.table)}")
                tables[table.table.lower()].createOrReplaceTempView(quote_name(view))
                sizes[view] = sizes[table.table.lower()]
            as_of.update(text.tables)
            plan, tree = parse_query(spark, text.sql)
            size = check_size(tree, sizes, spark.limits)
            check_moments(text.sql)
            check_windows(tree)
            late = lateness(tree) or late
            has_changes |= emits_changes(tree)
            frame = spark.frame(_without_with(spark, spark.frame(plan)))
            analysed = frame.queryExecution().analyzed()
            whole = tree_of(analysed)
            check_transform(whole)
        if step.alias is None:
            return _AnalysedPlan(plan=analysed, tree=whole, as_of=as_of, late=late, emits_changes=has_changes)
        tables[step.alias.lower()], sizes[step.alias.lower()] = frame, size
        frame.createOrReplaceTempView(quote_name(step.alias))
    raise AssertionError("the last step has no alias")


@contextmanager
def _in_step(step: SqlQueryStep, transform: TransformSql) -> Iterator[None]:
    """Add the name of the step to errors, if there are several steps."""
    try:
        yield
    except (InvalidQuery, *FAULTS) as error:
        fault = error if isinstance(error, InvalidQuery) else query_fault(error)
        if len(steps_of(transform)) == 1:
            raise fault from error
        where = "in the last step" if step.alias is None else f"in step {step.alias}"
        kind = QueryOutOfMemory if isinstance(fault, QueryOutOfMemory) else InvalidQuery
        raise kind(text=str(fault), where=where) from error


def _without_with(spark: Spark, frame: Java) -> Java:
    """Return an analysed plan with the queries of WITH inlined."""
    is_inlined, keeps_others, keeps_names = True, False, False
    inline = spark.classes(OPTIMIZER).InlineCTE(is_inlined, keeps_others, keeps_names)
    return inline.apply(frame.queryExecution().analyzed())


def _meaning(planned: PlannedInput) -> InputColumns:
    vocab = planned.vocab
    system = {vocab.offset_column, vocab.operation_type_column, vocab.system_time_column}
    return InputColumns(
        event_time=vocab.event_time_column, system=frozenset(system & set(planned.schema.names))
    )


def _check_names(names: Sequence[str], vocab: DatasetVocabulary) -> None:
    own = {vocab.offset_column, vocab.operation_type_column, vocab.system_time_column}
    lower = [name.lower() for name in names]
    for name in names:
        if name.lower() in {other.lower() for other in own}:
            raise InvalidQuery(text=f"column {name} is written by the engine: rename yours")
        if lower.count(name.lower()) > 1:
            raise InvalidQuery(
                text=f"the result has two columns {name}: rename one; names are not case-sensitive"
            )
    if vocab.event_time_column not in names:
        raise InvalidQuery(
            text=f"the result has no column {vocab.event_time_column}: add AS {vocab.event_time_column} to one"
        )


def _check_event_time(prepared: PreparedTransform, column: str) -> None:
    """Raise `InvalidQuery` for windows and joins if the watermark of the output cannot be determined."""
    is_plain = not prepared.is_stateful or prepared.last.flow.is_retractable
    if not is_plain and prepared.event_time is None:
        raise InvalidQuery(
            text=f"{column} of windows, joins and running values has to be computed from the inputs' event time: use "
            "window.start, window.end, the event time of a joined table, or greatest(…) of both"
        )


def quote_name(name: str) -> str:
    """Return a name quoted with backticks."""
    return f"`{name.replace('`', '``')}`"
