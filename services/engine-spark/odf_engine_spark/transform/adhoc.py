"""Queries without state: preprocessing of one batch, and ad-hoc queries over whole datasets."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kind
import structlog
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import NumericType

from odf_common.data.columns import as_stored
from odf_common.data.slices import read_slice, slice_schema
from odf_common.errors import InvalidQuery
from odf_common.metadata.engine_messages import RawQueryRequest, RawQueryResponseSuccess
from odf_common.metadata.events import TransformSql
from odf_common.ports.engine import PREPROCESS_INPUT, QueryTable
from odf_engine_spark.analysis.decimal_places import check_decimals
from odf_engine_spark.analysis.dialect import check_moments, check_steps
from odf_engine_spark.analysis.inexact_doubles import check_doubles
from odf_engine_spark.analysis.plan_size import check_size, table_size
from odf_engine_spark.analysis.row_wise import check_row_wise, check_row_wise_text
from odf_engine_spark.analysis.sandbox import check_query
from odf_engine_spark.analysis.sandbox import tables as tables_of
from odf_engine_spark.plan.prepared import parse_query, quote_name, steps_of
from odf_engine_spark.spark.error_messages import FAULTS, query_fault
from odf_engine_spark.spark.jvm import Java, Spark, tree_of
from odf_engine_spark.spark.progress import Progress, ms_since
from odf_engine_spark.spark.stored_result import StoredResult, ended_on, run_into_files, time_limit
from odf_engine_spark.spark.times_of_day import check_nested_times, without_today
from odf_engine_spark.spark.tree import Tree
from odf_engine_spark.values.spark_types import arrow_schema_of, output_schema_of, spark_schema_of
from odf_engine_spark.values.spark_values import in_spark

log = structlog.stdlib.get_logger(__name__)

OFFSET: Final = "offset"
BIGINT_MAX: Final = 2**63 - 1
UINT64_MAX: Final = 2**64 - 1
MAX_BYTES_IN_MEMORY: Final = 32 * 1024 * 1024  # bytes of slices; larger tables are scanned by Spark


def run_raw(warm: Spark, request: RawQueryRequest) -> RawQueryResponseSuccess:
    """Preprocess a batch, and write the result; records keep their order. Raises `InvalidQuery` or `InvalidInput`."""
    begun = time.monotonic()
    files = [Path(file) for file in request.input_data_paths]
    schema = spark_schema_of(slice_schema(files[0]))
    batch = pa.concat_tables([in_spark(read_slice(file), schema) for file in files])
    spark = warm.new_session()
    try:
        plan, tree = _preprocessing(spark, request.transform, batch)
        result = spark.collect(spark.frame(without_today(spark, plan, tree)))
    except FAULTS as error:
        raise query_fault(error) from error
    stored = result.cast(output_schema_of(result.schema))
    # Not a slice yet: it has no offsets, and its columns may come in any order.
    pq.write_table(as_stored(stored), request.output_data_path, version="2.6", store_schema=False)
    log.debug("batch preprocessed", records=len(batch), result=len(stored), ms=ms_since(begun))
    return RawQueryResponseSuccess(num_records=len(stored))


def run_query(
    warm: Spark, sql: str, tables: Sequence[QueryTable], progress: Progress | None = None
) -> pa.RecordBatchReader:
    """Return the result of an ad-hoc query; without ORDER BY, sorted by the column `offset` if the result has it."""
    spark, begun, progress = warm.new_session(), time.monotonic(), progress or Progress()
    # From the analysis on: Spark evaluates constants there.
    with ended_on(time_limit(spark.limits), progress.stop):
        result = _result(spark, sql, tables, progress)
    slices = sum(len(table.data_paths) for table in tables)
    log.debug("query executed", tables=len(tables), slices=slices, ms=ms_since(begun))
    return result.reader()


def tables_in(warm: Spark, sql: str) -> tuple[str, ...]:
    """Return the tables that an ad-hoc query reads; raises `InvalidQuery` with the line and position of an error."""
    return tables_of(parse_query(warm, sql)[1])


def _result(spark: Spark, sql: str, tables: Sequence[QueryTable], progress: Progress) -> StoredResult:
    plan, written = parse_query(spark, sql)
    names = {table.name.lower() for table in tables}
    for name in tables_of(written):
        if name.lower() not in names:
            raise InvalidQuery(text=f"dataset {name} does not exist")
    check_size(written, {table.name.lower(): table_size(table.schema) for table in tables}, spark.limits)
    with tempfile.TemporaryDirectory(prefix="odf-engine-") as scratch:
        for number, table in enumerate(tables):
            _view(spark, table, Path(scratch) / str(number))
        try:
            frame, tree = _checked_frame(spark, plan)
            check_decimals(spark, frame.queryExecution().analyzed(), tree)
            if not any(node.kind == "Sort" for node in written.walk()):
                frame = _sorted_by_offset(spark, frame)
            return run_into_files(spark, frame, progress.stop)
        except FAULTS as error:
            raise query_fault(error) from error


def _sorted_by_offset(spark: Spark, frame: Java) -> Java:
    """Return the data frame, sorted if exactly one column is named `offset` and it is numeric."""
    data = DataFrame(frame, spark.session)
    own = [column for column in data.schema if column.name.lower() == OFFSET]
    if len(own) != 1 or not isinstance(own[0].dataType, NumericType):
        return frame
    # In one partition: a global sort would run the query twice, to sample the ranges of its partitions.
    ordered = data.repartition(1).sortWithinPartitions(data[OFFSET].asc_nulls_last())
    return ordered._jdf  # noqa: SLF001 - plans are objects of the JVM


def check_preprocess(warm: Spark, transform: TransformSql, schema: pa.Schema | None) -> None:
    """Raise `InvalidQuery` unless a preprocess query computes each record alone, and preserves the scale of decimals.

    Without the columns of the source, the query is not analysed, and only its text is checked.
    """
    spark = warm.new_session()
    for step in steps_of(transform):
        check_row_wise_text(parse_query(spark, step.query)[1], is_analysed_later=schema is not None)
        check_moments(step.query)
    if schema is None:
        return
    try:
        analysed, tree = _preprocessing(spark, transform, spark_schema_of(schema).empty_table())
    except FAULTS as error:
        raise query_fault(error) from error
    check_row_wise(spark, analysed, tree)
    check_decimals(spark, analysed, tree)
    check_nested_times(analysed, tree)
    check_doubles(spark, analysed, tree)


def _preprocessing(spark: Spark, transform: TransformSql, batch: pa.Table) -> tuple[Java, Tree]:
    """Return the checked and analysed plan of a preprocess query over a batch, and its tree."""
    steps = steps_of(transform)
    check_steps([step.query for step in steps], spark.limits)
    spark.frame(spark.relation(batch)).createOrReplaceTempView(PREPROCESS_INPUT)
    sizes = {PREPROCESS_INPUT: table_size(batch.schema)}
    *named, last = steps
    for step in named:
        alias = str(step.alias)
        plan, written = parse_query(spark, step.query)
        sizes[alias.lower()] = check_size(written, sizes, spark.limits)
        spark.frame(plan).createOrReplaceTempView(quote_name(alias))
    plan, written = parse_query(spark, last.query)
    check_size(written, sizes, spark.limits)
    frame, tree = _checked_frame(spark, plan)
    return frame.queryExecution().analyzed(), tree


def _checked_frame(spark: Spark, plan: Java) -> tuple[Java, Tree]:
    """Return a query's data frame and the tree of its plan; raises `InvalidQuery` for types that Arrow lacks."""
    frame = spark.frame(plan)
    tree = tree_of(frame.queryExecution().analyzed())
    check_query(tree)
    arrow_schema_of(DataFrame(frame, spark.session).schema)
    return frame, tree


def _view(spark: Spark, table: QueryTable, scratch: Path) -> None:
    files = [Path(file) for file in table.data_paths]
    inside = spark_schema_of(table.schema)
    integers = _integers(table.schema, files)
    if sum(file.stat().st_size for file in files) <= MAX_BYTES_IN_MEMORY:
        schema = _plain_integers(inside, integers)
        parts = [in_spark(read_slice(file), schema) for file in files]
        records = pa.concat_tables([schema.empty_table(), *parts])
        spark.frame(spark.relation(records)).createOrReplaceTempView(quote_name(table.name))
        return
    if not all(_is_scanned(column.type) for column in table.schema):
        files = _rewritten(files, inside, scratch)
    reader = spark.session.read.schema(from_arrow_schema(inside))
    frame = reader.parquet(*(str(file) for file in files))
    _cast_integers(frame, integers).createOrReplaceTempView(quote_name(table.name))


def _is_scanned(type_: pa.DataType) -> bool:
    """Return whether Spark can read columns of a type from Parquet files directly."""
    inner = [type_.field(index).type for index in range(type_.num_fields)]
    is_finest = kind.is_timestamp(type_) and type_.unit == "ns"
    is_known = not (kind.is_time(type_) or isinstance(type_, pa.BaseExtensionType) or is_finest)
    return is_known and all(_is_scanned(part) for part in inner)


def _rewritten(files: Sequence[Path], schema: pa.Schema, folder: Path) -> list[Path]:
    """Write the records to new files in Spark's types, one slice at a time."""
    folder.mkdir()
    written = [folder / file.name for file in files]
    for file, new in zip(files, written, strict=True):
        pq.write_table(in_spark(read_slice(file), schema), new, store_schema=False)
    return written


def _integers(schema: pa.Schema, files: Sequence[Path]) -> frozenset[str]:
    """Return the unsigned 64-bit columns whose values all fit BIGINT, by the statistics of the files."""
    footers = [pq.read_metadata(file) for file in files]
    unsigned = [column.name for column in schema if kind.is_uint64(column.type)]
    return frozenset(name for name in unsigned if all(_highest(file, name) <= BIGINT_MAX for file in footers))


def _highest(footer: pq.FileMetaData, name: str) -> int:
    """Return the highest value of a column by the file's statistics; without statistics, the maximum of the type."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    own = [column.statistics for column in columns if column.path_in_schema == name and column.num_values]
    highest = [
        statistics.max if statistics is not None and statistics.has_min_max else UINT64_MAX
        for statistics in own
    ]
    return max(highest, default=0)


def _cast_integers(frame: DataFrame, integers: frozenset[str]) -> DataFrame:
    columns = [
        frame[quote_name(name)].cast("bigint").alias(name) if name in integers else frame[quote_name(name)]
        for name in frame.columns
    ]
    return frame.select(*columns)


def _plain_integers(target: pa.Schema, integers: frozenset[str]) -> pa.Schema:
    """Return the schema with BIGINT for these unsigned columns, which transforms read as decimals."""
    return pa.schema(
        [column.with_type(pa.int64()) if column.name in integers else column for column in target]
    )
