"""Client of an engine: FlatBuffers inside gRPC messages, and one terminal message per request (wire-facts §7)."""

import math
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any, Final

import grpc
import pyarrow as pa
from grpc_health.v1 import health_pb2, health_pb2_grpc

from odf_common.adapters.grpc.client import (
    CALL_TIMEOUT_SECONDS,
    RESTART_TIMEOUT_SECONDS,
    STREAM_TIMEOUT_SECONDS,
    RemoteRefused,
    ServiceFailed,
    ServiceSilent,
    calling,
    channel,
    require_server,
)
from odf_common.adapters.grpc.peer_credentials import PeerCredentials
from odf_common.codec.flatbuffers import decode_message, encode_event, encode_message
from odf_common.codec.times import time_message, time_of
from odf_common.errors import InvalidQuery, OdfError
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.engine_messages import (
    RawQueryRequest,
    RawQueryResponse,
    RawQueryResponseInternalError,
    RawQueryResponseInvalidQuery,
    RawQueryResponseRoot,
    RawQueryResponseSuccess,
    TransformRequest,
    TransformResponse,
    TransformResponseInternalError,
    TransformResponseInvalidQuery,
    TransformResponseRoot,
    TransformResponseSuccess,
)
from odf_common.metadata.events import (
    DatasetVocabulary,
    OffsetInterval,
    SetTransform,
    Transform,
    TransformInput,
)
from odf_common.metadata.scalars import Strings
from odf_common.ports.engine import (
    PREPROCESS_INPUT,
    EngineNotAvailable,
    EngineProgress,
    EngineSilent,
    FailingRecord,
    IsWanted,
    MigrateRequest,
    OnProgress,
    Past,
    QueryFailed,
    QueryNotWanted,
    QueryOutOfMemory,
    QueryTable,
    QueryTooSlow,
    ResultsChanged,
    ValidatedQuery,
    always,
)
from odf_common.proto.engine import engine_pb2, engine_pb2_grpc

_WHAT: Final = "the engine"
# Without a message until a call is cancelled; the engine sends one every second.
SILENCE_TIMEOUT_SECONDS: Final = 120.0
REFUSE_AFTER_SILENCE_SECONDS: Final = 10.0  # of silence after which new calls are refused
PREPROCESSING_TIMEOUT_SECONDS: Final = 300.0  # for a source's query over one batch; it keeps others waiting
_MIGRATION_TIMEOUT_SECONDS: Final = 1200.0
# A query new to the engine is analysed by a JVM that may be busy.
_ANALYSIS_TIMEOUT_SECONDS: Final = 4 * CALL_TIMEOUT_SECONDS
_RECONNECT_SECONDS: Final = 2.0  # more than gRPC pauses after a failed connection

# Of responses InvalidQuery; one that an engine omits, or that is not known here, says as little as the response.
_FAILURES: Final[Mapping[int, type[InvalidQuery]]] = {
    engine_pb2.QUERY_FAILURE_WHILE_RUNNING: QueryFailed,
    engine_pb2.QUERY_FAILURE_OUT_OF_MEMORY: QueryOutOfMemory,
}


class Watchdog:
    """A timer that calls `give_up` once, from its own thread, unless it is reset within `seconds`."""

    def __init__(self, seconds: float, give_up: Callable[[], object]) -> None:
        self._seconds = seconds
        self._give_up = give_up
        self._until = time.monotonic() + seconds
        self._ended = threading.Event()
        self.has_expired = False
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def reset(self) -> None:
        """Restart the timer."""
        self._until = time.monotonic() + self._seconds

    def pause(self) -> None:
        """Stop the timer until the next `reset`."""
        self._until = math.inf

    def cancel(self) -> None:
        """Stop the timer for good."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(min(max(self._until - time.monotonic(), 0), self._seconds)):
            if time.monotonic() >= self._until:
                self.has_expired = True
                self._give_up()
                return


class Attention:
    """Detects that a peer which should send messages regularly during calls has gone silent; thread-safe."""

    def __init__(self, seconds: float) -> None:
        """Count the peer as silent after `seconds` without a message while a call is in flight."""
        self._seconds = seconds
        self._questions = 0
        self._heard = 0.0
        self._mutex = threading.Lock()

    def begin(self) -> None:
        """Record the start of a call."""
        with self._mutex:
            if self._questions == 0:
                self._heard = time.monotonic()
            self._questions += 1

    def hear(self) -> None:
        """Record that a message has arrived."""
        self._heard = time.monotonic()

    def end(self) -> None:
        """Record the end of a call."""
        with self._mutex:
            self._questions -= 1

    @property
    def is_silent(self) -> bool:
        """Return whether a call is in flight and no message has arrived for too long."""
        return self._questions > 0 and time.monotonic() - self._heard > self._seconds


class EngineClient:
    """Implements `ports.engine.Engine`; connects on the first call."""

    def __init__(
        self,
        address: str,
        *,
        silence: float = SILENCE_TIMEOUT_SECONDS,
        quiet: float = REFUSE_AFTER_SILENCE_SECONDS,
        preprocessing: float = PREPROCESSING_TIMEOUT_SECONDS,
        restart: float = RESTART_TIMEOUT_SECONDS,
        credentials: PeerCredentials = None,
    ) -> None:
        """Use the engine at `host:port`; a call is canceled after `silence` seconds without a message.

        A preprocessing query may run for `preprocessing` seconds. While calls in flight have received nothing for
        `quiet` seconds, new calls are refused at once, because each would only block another thread. An ad-hoc query
        fails after 1.5 × `quiet` seconds without a heartbeat. A call that has no heartbeats fails when the engine stops
        answering health checks. Ad-hoc queries and calls without heartbeats first wait up to `restart` seconds for an
        engine that is restarting.
        """
        self._address = address
        self._restart = restart
        self._silence = silence
        self._preprocessing = preprocessing
        self._quiet = quiet
        self._attention = Attention(quiet)
        self._channel = channel(address, credentials)
        self._stub: Any = engine_pb2_grpc.EngineStub(self._channel)
        self._health = health_pb2_grpc.HealthStub(self._channel)

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    @property
    def is_silent(self) -> bool:
        """Return whether calls are in flight but the engine sends no messages."""
        return self._attention.is_silent

    def execute_transform(
        self, request: TransformRequest, on_progress: OnProgress | None = None
    ) -> TransformResponseSuccess:
        message = engine_pb2.TransformRequest(flatbuffer=encode_message(request))
        with self._asking():
            call = self._stub.ExecuteTransform(message, timeout=STREAM_TIMEOUT_SECONDS)
            with closing(self._heard(call)) as heard:  # what `on_progress` raises cancels the call at once
                last = _last_response(heard, on_progress)
        match decode_message(TransformResponseRoot, last.flatbuffer).value:
            case TransformResponseSuccess() as success:
                return success
            case failed:
                error = _error_of(failed, _FAILURES.get(last.failure, InvalidQuery))
                if isinstance(error, QueryFailed):
                    error.records = tuple(map(_failing_record, last.failing_records))
                    error.instead = last.instead
                raise error

    def execute_raw_query(
        self, request: RawQueryRequest, is_wanted: IsWanted = always
    ) -> RawQueryResponseSuccess:
        message = engine_pb2.RawQueryRequest(flatbuffer=encode_message(request))
        with self._asking():
            call = self._stub.ExecuteRawQuery(message, timeout=STREAM_TIMEOUT_SECONDS)
            last = _last_response(self._heard(call, is_wanted, most=self._preprocessing))
        match decode_message(RawQueryResponseRoot, last.flatbuffer).value:
            case RawQueryResponseSuccess() as success:
                return success
            case failed:
                raise _error_of(failed)

    def validate(  # noqa: PLR0913 - the fields of the request
        self,
        transform: Transform,
        inputs: Mapping[str, pa.Schema],
        vocabs: Mapping[str, DatasetVocabulary],
        output_vocab: DatasetVocabulary,
        past: Past | None = None,
        *,
        is_new: bool = False,
        retracting: Mapping[str, str] | None = None,
    ) -> ValidatedQuery:
        past, reasons = past or Past(), retracting or {}
        named = tuple(TransformInput(dataset_ref=name, alias=name) for name in inputs)
        request = engine_pb2.ValidateQueryRequest(
            set_transform=encode_event(SetTransform(inputs=named, transform=transform)),
            inputs=[
                _input(name, schema, vocabs.get(name, DatasetVocabulary()), reasons.get(name, ""))
                for name, schema in inputs.items()
            ],
            output_vocab=_vocabulary(output_vocab),
            previous_schema=b"" if past.schema is None else past.schema.serialize().to_pybytes(),
            previous_set_transform=b""
            if past.transform is None
            else encode_event(SetTransform(inputs=named, transform=past.transform)),
            is_new=is_new,
            is_restarted=past.is_restarted,
        )
        with self._asking():
            answer = self._answer(self._stub.ValidateQuery, request, _ANALYSIS_TIMEOUT_SECONDS)
        schema = pa.ipc.read_schema(pa.BufferReader(answer.schema)) if answer.schema else None
        return ValidatedQuery(
            tables=tuple(answer.tables),
            schema=schema,
            is_stateful=answer.is_stateful,
            version=answer.engine_version or None,
            can_retract=answer.can_retract,
            retraction_refusal=answer.retraction_refusal,
            changes=tuple(answer.changes),
        )

    def validate_preprocess(self, transform: Transform, schema: pa.Schema | None) -> None:
        request = engine_pb2.ValidateQueryRequest(
            set_transform=encode_event(SetTransform(inputs=(), transform=transform)),
            inputs=[] if schema is None else [_input(PREPROCESS_INPUT, schema, DatasetVocabulary())],
            is_preprocess=True,
            is_new=True,
        )
        with self._asking():
            self._answer(self._stub.ValidateQuery, request, _ANALYSIS_TIMEOUT_SECONDS)

    def migrate(self, request: MigrateRequest) -> TransformResponseSuccess:
        message = engine_pb2.MigrateQueryRequest(
            old_set_transform=encode_event(request.old),
            new_set_transform=encode_event(request.new),
            inputs=[_input(input_.name, input_.schema, input_.vocab) for input_ in request.inputs],
            output_vocab=_vocabulary(request.vocab),
            system_time=time_message(request.system_time),
            next_offset=request.next_offset,
            prev_checkpoint_path=request.prev_checkpoint_path or "",
            new_checkpoint_path=request.new_checkpoint_path,
            new_data_path=request.new_data_path,
        )
        with self._asking():
            answer = self._answer(self._stub.MigrateQuery, message, _MIGRATION_TIMEOUT_SECONDS)
        interval = answer.new_offset_interval if answer.HasField("new_offset_interval") else None
        return TransformResponseSuccess(
            new_offset_interval=None
            if interval is None
            else OffsetInterval(start=interval.start, end=interval.end),
            new_watermark=time_of(answer.new_watermark) if answer.HasField("new_watermark") else None,
        )

    def tables_of(self, sql: str) -> Strings:
        with self._asking():
            request = engine_pb2.ValidateQueryRequest(sql=sql)
            answer = self._answer(self._stub.ValidateQuery, request, _ANALYSIS_TIMEOUT_SECONDS)
        return tuple(answer.tables)

    def query(self, sql: str, tables: tuple[QueryTable, ...]) -> pa.Table:
        raw = b"".join(self.query_stream(sql, tables))
        with pa.ipc.open_stream(pa.BufferReader(raw)) as stream:
            return stream.read_all()

    def query_stream(
        self, sql: str, tables: tuple[QueryTable, ...], is_wanted: IsWanted = always
    ) -> Iterator[bytes]:
        request = engine_pb2.QueryRequest(
            sql=sql,
            tables=[
                engine_pb2.QueryTable(
                    name=table.name, schema=table.schema.serialize().to_pybytes(), data_paths=table.data_paths
                )
                for table in tables
            ],
        )
        with self._asking():
            self._await_server()
            call = self._stub.Query(request, timeout=STREAM_TIMEOUT_SECONDS)
            # A person waits for it, and it can be repeated: there is no reason to wait for a recovery.
            for chunk in self._heard(call, is_wanted, silence=1.5 * self._quiet):
                if chunk.ipc:
                    yield chunk.ipc

    def _heard(
        self, call: Any, is_wanted: IsWanted = always, *, most: float = math.inf, silence: float | None = None
    ) -> Generator[Any]:
        """Iterate over the messages of a call; raises `EngineSilent` after `silence` seconds without a message.

        Raises `QueryNotWanted` once `is_wanted` returns False, and `QueryTooSlow` if the query is still running
        `most` seconds after the engine started it. A healthy engine sends a message every second, so a silent one is
        stuck or gone.
        """
        silence = self._silence if silence is None else silence
        watchdog = Watchdog(silence, call.cancel)
        self._attention.begin()
        try:
            until = math.inf
            for message in call:
                self._attention.hear()
                if not is_wanted():
                    raise QueryNotWanted
                if time.monotonic() > until:
                    raise QueryTooSlow(text=f"the query did not finish within {most:g} s")
                if until == math.inf and most < math.inf and message.progress.stage:
                    until = time.monotonic() + most
                with self._not_waiting(watchdog):
                    yield message
        except grpc.RpcError as error:
            if watchdog.has_expired:
                raise EngineSilent(why=f"no heartbeat for {silence:g} s") from error
            raise
        finally:
            self._attention.end()
            watchdog.cancel()
            call.cancel()  # no effect on a finished call

    @contextmanager
    def _not_waiting(self, watchdog: Watchdog) -> Iterator[None]:
        """Pause the timeouts while the caller processes a message, since it may be a slow reader of a large result."""
        watchdog.pause()
        self._attention.end()
        try:
            yield
        finally:
            self._attention.begin()
            watchdog.reset()

    def _await_server(self) -> None:
        """Wait for an engine that is restarting or being replaced by its standby; raises `ServiceUnreachable`."""
        require_server(_WHAT, self._address, self._restart)
        with suppress(grpc.RpcError):  # the call itself will say why
            timeout = min(self._quiet, _RECONNECT_SECONDS)
            self._health.Check(health_pb2.HealthCheckRequest(), timeout=timeout, wait_for_ready=True)

    def _answer(self, method: Any, request: Any, timeout: float) -> Any:
        """Return the response of a call without heartbeats; raises `EngineSilent`, `ServiceUnreachable`."""
        self._await_server()
        call = method.future(request, timeout=timeout)
        try:
            while True:
                try:
                    return call.result(timeout=self._quiet)
                except grpc.FutureTimeoutError:
                    self._require_health()
        finally:
            call.cancel()  # no effect on a finished call

    def _require_health(self) -> None:
        """Raise `EngineSilent` unless the engine answers a health check, with whatever status."""
        try:
            self._health.Check(health_pb2.HealthCheckRequest(), timeout=self._quiet / 2)
        except grpc.RpcError as error:
            # With any other status it has answered, or the call that is in flight fails with the same one.
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                raise EngineSilent(why=f"no answer for {1.5 * self._quiet:g} s") from error

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Convert the error of a failed call to the engine's own error, or to `Unavailable`.

        Raises `EngineSilent` at once, without a call, while the engine is silent.
        """
        if self.is_silent:
            raise EngineSilent
        try:
            with calling(_WHAT):
                yield
        except ServiceSilent as error:
            if error.has_gone:
                raise EngineSilent(why=str(error.why)) from error
            raise
        except RemoteRefused as error:
            for kind in (EngineNotAvailable, ResultsChanged):
                if error.reason == kind.__name__:
                    raise kind(text=error.text) from error
            raise


def _last_response(responses: Iterable[Any], on_progress: OnProgress | None = None) -> Any:
    """Return the terminal message, which is the last one; earlier ones are passed to `on_progress`."""
    response = None
    for response in responses:
        if on_progress is not None:
            progress = response.progress
            on_progress(
                EngineProgress(
                    stage=progress.stage,
                    rows=progress.rows,
                    total=progress.total,
                    late=progress.late,
                    held=progress.held,
                    held_until=progress.held_until if progress.HasField("held_until") else None,
                    held_by=progress.held_by,
                )
            )
    if response is None or not response.flatbuffer:
        raise ServiceFailed(text="the engine ended without an answer")
    return response


def _error_of(
    response: TransformResponse | RawQueryResponse, invalid: type[InvalidQuery] = InvalidQuery
) -> OdfError:
    """Return the error that an unsuccessful response describes."""
    match response:
        case TransformResponseInvalidQuery(message=text) | RawQueryResponseInvalidQuery(message=text):
            return invalid(text=text)
        case TransformResponseInternalError(message=text) | RawQueryResponseInternalError(message=text):
            return ServiceFailed(text=f"the engine failed: {text}")
        case _:
            return ServiceFailed(text="the engine ended without an answer")


def _failing_record(record: engine_pb2.FailingRecord) -> FailingRecord:
    return FailingRecord(dataset=DatasetId.parse(record.dataset_id), first=record.first, last=record.last)


def _input(name: str, schema: pa.Schema, vocab: DatasetVocabulary, why_retracted: str = "") -> Any:
    return engine_pb2.ValidateQueryInput(
        name=name,
        schema=schema.serialize().to_pybytes(),
        vocab=_vocabulary(vocab),
        why_retracted=why_retracted,
    )


def _vocabulary(vocab: DatasetVocabulary) -> Any:
    return engine_pb2.Vocabulary(
        offset_column=vocab.offset_column,
        operation_type_column=vocab.operation_type_column,
        system_time_column=vocab.system_time_column,
        event_time_column=vocab.event_time_column,
    )
