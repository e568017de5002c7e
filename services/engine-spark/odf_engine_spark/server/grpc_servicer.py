"""The gRPC service of the engine, with FlatBuffers messages (specification: Engine Contract; wire-facts §7)."""

import traceback
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, TypeVar

import grpc
import pyarrow as pa
import structlog

from odf_common.adapters.local.faults import waiting_helps
from odf_common.codec.flatbuffers import decode_message, encode_message
from odf_common.errors import InvalidQuery, OdfError, StorageUnavailable
from odf_common.metadata.engine_messages import (
    RawQueryRequest,
    RawQueryResponse,
    RawQueryResponseInternalError,
    RawQueryResponseInvalidQuery,
    RawQueryResponseProgress,
    RawQueryResponseRoot,
    TransformResponseInternalError,
    TransformResponseProgress,
)
from odf_common.metadata.events import TransformSql
from odf_common.ports.engine import EngineNotAvailable, PlannedInput
from odf_common.proto.engine import engine_pb2, engine_pb2_grpc
from odf_engine_spark.analysis.dialect import check_hints, check_steps, read_text
from odf_engine_spark.analysis.final_inputs import retraction_refusal
from odf_engine_spark.analysis.sandbox import tables
from odf_engine_spark.plan.prepared import parse_query, require_same_results, steps_of
from odf_engine_spark.server.identity import identity_of
from odf_engine_spark.server.messages import (
    invalid_transform,
    ipc_chunks,
    migration_of,
    migration_response,
    progress,
    schema_of,
    set_transform_of,
    tables_of,
    transform_of,
    transform_response,
    vocabulary_of,
)
from odf_engine_spark.server.requests import MemoryRetry, Requests
from odf_engine_spark.spark.heap_watch import HeapWatch
from odf_engine_spark.spark.jvm import Spark
from odf_engine_spark.spark.progress import Progress
from odf_engine_spark.transform.adhoc import check_preprocess, run_query, run_raw, tables_in
from odf_engine_spark.transform.evolution import require_columns, require_migratable
from odf_engine_spark.transform.execute_transform import Transforms
from odf_engine_spark.transform.migration import migrate

log = structlog.stdlib.get_logger(__name__)

R = TypeVar("R")
CHUNK_BYTES: Final = 1 << 20


class EngineServicer(engine_pb2_grpc.EngineServicer):
    """Serves requests on one warmed-up Spark session."""

    def __init__(self, spark: Spark, *, is_signed: bool, requests: Callable[[], Requests]) -> None:
        """Use a session that has already run its first queries; `is_signed` selects signed types for system columns."""
        self._spark = spark
        self._identity = identity_of(spark)
        self._transforms = Transforms(spark, is_signed=is_signed)
        # A pool per kind of request: long transforms delay neither preprocessing nor ad-hoc queries.
        self._steps, self._batches, self._queries = requests(), requests(), requests()
        # Requests that only analyse SQL do not queue behind those that run it.
        self._questions = requests()
        self._memory = MemoryRetry()

    def ExecuteTransform(
        self, request: engine_pb2.TransformRequest, context: grpc.ServicerContext
    ) -> Iterator[engine_pb2.TransformResponse]:
        """Execute one step of a transform, and stream the progress and the response."""

        def work(reports: Progress) -> engine_pb2.TransformResponse:
            def execute() -> engine_pb2.TransformResponse:
                transform_request = transform_of(request.flatbuffer)
                self._identity.require(transform_request.transform)
                number = self._identity.number_of(transform_request.transform)
                return transform_response(
                    self._memory.run(
                        lambda: self._transforms.execute(transform_request, reports, number), reports
                    )
                )

            def failed(message: str, backtrace: str) -> engine_pb2.TransformResponse:
                return transform_response(
                    TransformResponseInternalError(message=message, backtrace=backtrace)
                )

            return _response("transform", execute, reports, invalid=invalid_transform, failed=failed)

        for report in self._steps.reports(context, work):
            done = report.done
            response = transform_response(TransformResponseProgress()) if done is None else done.result()
            response.progress.CopyFrom(progress(report.now))
            yield response

    def ExecuteRawQuery(
        self, request: engine_pb2.RawQueryRequest, context: grpc.ServicerContext
    ) -> Iterator[engine_pb2.RawQueryResponse]:
        """Run a preprocess query over one batch, and stream the progress and the response."""

        def work(reports: Progress) -> RawQueryResponse:
            def execute() -> RawQueryResponse:
                raw_request = decode_message(RawQueryRequest, request.flatbuffer)
                self._identity.require(raw_request.transform)
                return self._memory.run(lambda: run_raw(self._spark, raw_request), reports)

            return _response(
                "raw query",
                execute,
                reports,
                invalid=lambda error: RawQueryResponseInvalidQuery(message=str(error)),
                failed=lambda text, trace: RawQueryResponseInternalError(message=text, backtrace=trace),
            )

        for report in self._batches.reports(context, work):
            value = RawQueryResponseProgress() if report.done is None else report.done.result()
            raw = encode_message(RawQueryResponseRoot(value=value))
            yield engine_pb2.RawQueryResponse(flatbuffer=raw, progress=progress(report.now))

    def ValidateQuery(
        self, request: engine_pb2.ValidateQueryRequest, context: grpc.ServicerContext
    ) -> engine_pb2.ValidateQueryResponse:
        """Check a query, or the change of a query, without running it; raises `InvalidQuery`."""
        return self._questions.result(
            context, lambda progress: self._memory.run(lambda: self._validate(request), progress)
        )

    def MigrateQuery(
        self, request: engine_pb2.MigrateQueryRequest, context: grpc.ServicerContext
    ) -> engine_pb2.MigrateQueryResponse:
        """Migrate the checkpoint of a query to the query's next version; raises `InvalidQuery`."""
        migration = migration_of(request)
        self._identity.require(migration.new.transform)
        number = self._identity.number_of(migration.old.transform)
        return migration_response(
            self._queries.result(
                context,
                lambda progress: self._memory.run(
                    lambda: migrate(self._transforms, migration, number), progress
                ),
            )
        )

    def Query(
        self, request: engine_pb2.QueryRequest, context: grpc.ServicerContext
    ) -> Iterator[engine_pb2.ArrowChunk]:
        """Run an ad-hoc query, and stream its result as an Arrow IPC stream in chunks; raises `InvalidQuery`."""
        query_tables = tables_of(request)

        def work(progress: Progress) -> pa.RecordBatchReader:
            return self._memory.run(
                lambda: run_query(self._spark, request.sql, query_tables, progress), progress
            )

        for report in self._queries.reports(context, work):
            if report.done is None:
                yield engine_pb2.ArrowChunk()
                continue
            for chunk in ipc_chunks(report.done.result(), CHUNK_BYTES):
                yield engine_pb2.ArrowChunk(ipc=chunk)

    def _validate(self, request: engine_pb2.ValidateQueryRequest) -> engine_pb2.ValidateQueryResponse:
        if request.sql:
            return engine_pb2.ValidateQueryResponse(tables=tables_in(self._spark, request.sql))
        event = set_transform_of(request.set_transform)
        read = _tables_read(self._spark, event.transform)
        if request.is_new and not request.is_preprocess:
            _check_hints(self._spark, event.transform)
        self._identity.require(event.transform)
        if request.is_preprocess:
            schema = schema_of(request.inputs[0].schema) if request.inputs else None
            check_preprocess(self._spark, event.transform, schema)
            return engine_pb2.ValidateQueryResponse(tables=read, engine_version=self._identity.version)
        if not request.inputs:
            return engine_pb2.ValidateQueryResponse(tables=read, engine_version=self._identity.version)
        inputs, vocab = _read_inputs(request.inputs), vocabulary_of(request.output_vocab)
        prepared = self._transforms.prepare(event.transform, inputs, vocab)
        retracting = {input_.name: input_.why_retracted for input_ in request.inputs if input_.why_retracted}
        require_same_results(prepared, event.transform, self._identity.number_of(event.transform))
        if request.is_new and (refusal := prepared.loss or prepared.refusal) is not None:
            raise refusal
        if request.previous_schema:
            require_columns(schema_of(request.previous_schema), prepared.schema, vocab)
        changes: tuple[str, ...] = ()
        if request.previous_set_transform:
            old = set_transform_of(request.previous_set_transform)
            changes = self._identity.differences(old.transform, prepared.changes)
            if not request.is_restarted:
                number = self._identity.number_of(old.transform)
                require_migratable(self._transforms, old, event, inputs, vocab, number=number)
        return engine_pb2.ValidateQueryResponse(
            tables=read,
            engine_version=self._identity.version,
            schema=prepared.schema.serialize().to_pybytes(),
            is_stateful=prepared.is_stateful,
            can_retract=prepared.can_retract({name.lower() for name in retracting}),
            retraction_refusal=retraction_refusal(prepared.final_steps, retracting),
            changes=changes,
        )


def _read_inputs(inputs: Iterable[engine_pb2.ValidateQueryInput]) -> tuple[PlannedInput, ...]:
    return tuple(
        PlannedInput(name=input_.name, schema=schema_of(input_.schema), vocab=vocabulary_of(input_.vocab))
        for input_ in inputs
    )


def _tables_read(spark: Spark, transform: TransformSql) -> tuple[str, ...]:
    """Return the tables that a transform reads, in order of first use, except those that its own steps define."""
    steps = steps_of(transform)
    own = {str(step.alias).lower() for step in steps[:-1]}
    read: dict[str, None] = {}
    check_steps([step.query for step in steps], spark.limits)
    for step in steps:
        text = read_text(step.query, transform.temporal_tables or ())
        for name in tables(parse_query(spark, text.sql)[1]):
            as_of = text.tables.get(name.lower())
            read[as_of.table if as_of else name] = None
    return tuple(name for name in read if name.lower() not in own)


def _check_hints(spark: Spark, transform: TransformSql) -> None:
    for step in steps_of(transform):
        check_hints(parse_query(spark, read_text(step.query, ()).sql)[1])


def register(
    spark: Spark,
    *,
    is_signed: bool,
    is_well: Callable[[], bool] = lambda: True,
    on_stuck: Callable[[], None] = lambda: None,
) -> Callable[[grpc.Server], tuple[str, ...]]:
    """Return a function that adds the service to a server, and returns the service's full name.

    Clients get heartbeats while `is_well` returns True. `on_stuck` is called if a cancelled request does not end.
    """

    def add(server: grpc.Server) -> tuple[str, ...]:
        requests = partial(Requests, spark, is_well=is_well, on_stuck=on_stuck, heap=HeapWatch(spark))
        servicer = EngineServicer(spark, is_signed=is_signed, requests=requests)
        engine_pb2_grpc.add_EngineServicer_to_server(servicer, server)
        return (engine_pb2.DESCRIPTOR.services_by_name["Engine"].full_name,)

    return add


def _response(
    what: str,
    execute: Callable[[], R],
    reports: Progress,
    *,
    invalid: Callable[[InvalidQuery], R],
    failed: Callable[[str, str], R],
) -> R:
    """Return the result of `execute`, or the response for its error.

    Still raises `EngineNotAvailable`, the error of a full disk or of too many open files (which must not count as the
    result of a request), and bugs.
    """
    try:
        with waiting_helps():
            return execute()
    except (EngineNotAvailable, StorageUnavailable):
        raise
    except InvalidQuery as error:
        return invalid(error)
    except (OdfError, RuntimeError, ValueError, ArithmeticError, OSError, pa.ArrowException) as error:
        return failed(str(error), _log_failure(what, error, reports))


def _log_failure(what: str, error: Exception, reports: Progress) -> str:
    if reports.is_cancelled:
        return ""  # no caller reads it
    log.error("request failed", what=what, exc_info=error)
    return "".join(traceback.format_exception(error))
