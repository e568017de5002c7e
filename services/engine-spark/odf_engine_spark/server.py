"""The Engine service: FlatBuffers in gRPC (specification: Engine Contract; wire-facts §7)."""

import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final, TypeVar

import grpc
import pyarrow as pa
import structlog

from odf_common.codec.flatbuffers import decode_event, decode_message, encode_message
from odf_common.errors import InvalidInput, InvalidQuery, OdfError
from odf_common.metadata.engine import (
    RawQueryRequest,
    RawQueryResponse,
    RawQueryResponseInternalError,
    RawQueryResponseInvalidQuery,
    RawQueryResponseProgress,
    RawQueryResponseRoot,
    TransformRequest,
    TransformResponse,
    TransformResponseInternalError,
    TransformResponseInvalidQuery,
    TransformResponseProgress,
    TransformResponseRoot,
)
from odf_common.metadata.events import SetTransform
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_common.ports.engine import MigrateInput, MigrateRequest, QueryTable
from odf_common.proto.engine import engine_pb2, engine_pb2_grpc
from odf_engine_spark.adhoc import run_query, run_raw, tables_in
from odf_engine_spark.jvm import Spark
from odf_engine_spark.migrate import migrate
from odf_engine_spark.prepared import PlannedInput, parsed, steps_of
from odf_engine_spark.sandbox import tables
from odf_engine_spark.transform import Transforms

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")
PROGRESS_SECONDS: Final = 1.0
CHUNK: Final = 1 << 20  # bytes
WORKERS: Final = 4  # requests inside Spark at once


class EngineServicer(engine_pb2_grpc.EngineServicer):
    """Answers for one warm session."""

    def __init__(self, spark: Spark, *, is_signed: bool) -> None:
        """Serve from a session that has run its first queries."""
        self._spark = spark
        self._transforms = Transforms(spark, is_signed=is_signed)
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="spark")

    def ExecuteTransform(  # noqa: N802 - gRPC's name
        self, request: engine_pb2.TransformRequest, context: grpc.ServicerContext
    ) -> Iterator[engine_pb2.TransformResponse]:
        """Perform one step of a transformation."""

        def answer(value: TransformResponse) -> engine_pb2.TransformResponse:
            return engine_pb2.TransformResponse(flatbuffer=encode_message(TransformResponseRoot(value=value)))

        def work() -> TransformResponse:
            try:
                return self._transforms.execute(decode_message(TransformRequest, request.flatbuffer))
            except InvalidQuery as error:
                return TransformResponseInvalidQuery(message=str(error))
            except (OdfError, RuntimeError, ValueError, OSError, pa.ArrowException) as error:
                return TransformResponseInternalError(
                    message=str(error), backtrace=_noted("transform", error)
                )

        for done in self._progress(self._pool.submit(work)):
            yield answer(TransformResponseProgress() if done is None else done)

    def ExecuteRawQuery(  # noqa: N802 - gRPC's name
        self, request: engine_pb2.RawQueryRequest, context: grpc.ServicerContext
    ) -> Iterator[engine_pb2.RawQueryResponse]:
        """Preprocess one batch."""

        def answer(value: RawQueryResponse) -> engine_pb2.RawQueryResponse:
            return engine_pb2.RawQueryResponse(flatbuffer=encode_message(RawQueryResponseRoot(value=value)))

        def work() -> RawQueryResponse:
            try:
                return run_raw(self._spark, decode_message(RawQueryRequest, request.flatbuffer))
            except InvalidQuery as error:
                return RawQueryResponseInvalidQuery(message=str(error))
            except (OdfError, RuntimeError, ValueError, OSError, pa.ArrowException) as error:
                return RawQueryResponseInternalError(message=str(error), backtrace=_noted("raw query", error))

        for done in self._progress(self._pool.submit(work)):
            yield answer(RawQueryResponseProgress() if done is None else done)

    def ValidateQuery(  # noqa: N802 - gRPC's name
        self, request: engine_pb2.ValidateQueryRequest, context: grpc.ServicerContext
    ) -> engine_pb2.ValidateQueryResponse:
        """Check a query without running it; raises `InvalidQuery`."""
        return self._pool.submit(self._validated, request).result()

    def MigrateQuery(  # noqa: N802 - gRPC's name
        self, request: engine_pb2.MigrateQueryRequest, context: grpc.ServicerContext
    ) -> engine_pb2.MigrateQueryResponse:
        """Carry a checkpoint over to a query's next version; raises `InvalidQuery`."""
        done = self._pool.submit(migrate, self._transforms, _migration(request)).result()
        interval, watermark = done.new_offset_interval, done.new_watermark
        return engine_pb2.MigrateQueryResponse(
            new_offset_interval=None
            if interval is None
            else engine_pb2.OffsetInterval(start=interval.start, end=interval.end),
            new_watermark=None if watermark is None else watermark.ns,
        )

    def Query(  # noqa: N802 - gRPC's name
        self, request: engine_pb2.QueryRequest, context: grpc.ServicerContext
    ) -> Iterator[engine_pb2.ArrowChunk]:
        """Answer an ad-hoc query as an Arrow IPC stream in chunks; raises `InvalidQuery`."""
        asked = [
            QueryTable(name=t.name, schema=_schema(t.schema), data_paths=tuple(t.data_paths))
            for t in request.tables
        ]
        result = self._pool.submit(run_query, self._spark, request.sql, asked).result()
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, result.schema) as stream:
            stream.write_table(result)
        raw = memoryview(sink.getvalue())
        for at in range(0, len(raw), CHUNK):
            yield engine_pb2.ArrowChunk(ipc=bytes(raw[at : at + CHUNK]))

    def _progress(self, work: Future[T]) -> Iterator[T | None]:
        """Yield None at once and every second until the work is done, then its result."""
        yield None
        while not wait([work], timeout=PROGRESS_SECONDS).done:
            yield None
        yield work.result()

    def _validated(self, request: engine_pb2.ValidateQueryRequest) -> engine_pb2.ValidateQueryResponse:
        if request.sql:
            return engine_pb2.ValidateQueryResponse(tables=tables_in(self._spark, request.sql))
        event = _set_transform(request.set_transform)
        steps = steps_of(event.transform)
        names = dict.fromkeys(name for step in steps for name in tables(parsed(self._spark, step.query)[1]))
        own = {str(step.alias).lower() for step in steps[:-1]}
        read = tuple(name for name in names if name.lower() not in own)
        if not request.inputs:
            return engine_pb2.ValidateQueryResponse(tables=read)
        inputs = [
            PlannedInput(name=each.name, schema=_schema(each.schema), vocab=_vocabulary(each.vocab))
            for each in request.inputs
        ]
        prepared = self._transforms.prepare(event.transform, inputs, _vocabulary(request.output_vocab))
        return engine_pb2.ValidateQueryResponse(
            tables=read,
            schema=prepared.schema.serialize().to_pybytes(),
            is_stateful=prepared.is_windowed,
        )


def register(spark: Spark, *, is_signed: bool) -> Callable[[grpc.Server], tuple[str, ...]]:
    """Return what puts the service on a server, and tells its full name."""

    def add(server: grpc.Server) -> tuple[str, ...]:
        engine_pb2_grpc.add_EngineServicer_to_server(EngineServicer(spark, is_signed=is_signed), server)
        return (engine_pb2.DESCRIPTOR.services_by_name["Engine"].full_name,)

    return add


def _noted(what: str, error: Exception) -> str:
    log.error("request failed", what=what, exc_info=error)
    return "".join(traceback.format_exception(error))


def _schema(raw: bytes) -> pa.Schema:
    try:
        return pa.ipc.read_schema(pa.BufferReader(raw))
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(text=f"not an Arrow schema: {error}") from error


def _set_transform(raw: bytes) -> SetTransform:
    event = decode_event(raw)
    if not isinstance(event, SetTransform):
        raise InvalidInput(text="expected a SetTransform")
    return event


def _migration(request: engine_pb2.MigrateQueryRequest) -> MigrateRequest:
    return MigrateRequest(
        old=_set_transform(request.old_set_transform),
        new=_set_transform(request.new_set_transform),
        inputs=tuple(
            MigrateInput(name=each.name, schema=_schema(each.schema), vocab=_vocabulary(each.vocab))
            for each in request.inputs
        ),
        vocab=_vocabulary(request.output_vocab),
        system_time=Timestamp(request.system_time),
        next_offset=request.next_offset,
        prev_checkpoint_path=request.prev_checkpoint_path or None,
        new_checkpoint_path=request.new_checkpoint_path,
        new_data_path=request.new_data_path,
    )


def _vocabulary(given: engine_pb2.Vocabulary) -> DatasetVocabulary:
    default = DatasetVocabulary()
    return DatasetVocabulary(
        offset_column=given.offset_column or default.offset_column,
        operation_type_column=given.operation_type_column or default.operation_type_column,
        system_time_column=given.system_time_column or default.system_time_column,
        event_time_column=given.event_time_column or default.event_time_column,
    )
