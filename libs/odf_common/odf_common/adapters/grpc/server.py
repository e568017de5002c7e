"""gRPC servers: threads, health checks, reflection, and conversion of errors to gRPC statuses.

Servicers raise `OdfError`; on the caller's side, `client.calling` converts the status back to the error.
"""

import hmac
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, cast

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from odf_common.adapters.grpc.calls import (
    MAX_WORKERS,
    Bulkheads,
    Busy,
    Call,
    address_of,
    certificate_name,
    dataset_in,
    ref_of,
    subject_in,
    user_agent,
)
from odf_common.adapters.grpc.client import (
    ADVICE_KEY,
    CODE_KEY,
    MAX_MESSAGE_BYTES,
    PING_EVERY_MS,
    PING_TIMEOUT_MS,
)
from odf_common.adapters.grpc.peer_credentials import (
    KEY,
    CallerUnknown,
    PeerCredentials,
    PeerSecret,
    PeerTls,
    hash_of_header,
)
from odf_common.adapters.local.faults import waiting_helps
from odf_common.adapters.threads import SteadyThreadPool
from odf_common.errors import (
    AlreadyExists,
    ChainRuleViolated,
    Conflict,
    InvalidInput,
    NotFound,
    OdfError,
    Refused,
    Unavailable,
    VerificationFailed,
    name_dataset,
)

log = structlog.stdlib.get_logger(__name__)

Register = Callable[[grpc.Server], tuple[str, ...]]
OnCall = Callable[[Call], None]
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    # No limit: else the third ping of a client breaks its connection.
    ("grpc.http2.max_ping_strikes", 0),
    # A client that has gone frees its thread in some ten seconds; one that is stopped, as by Ctrl-Z, may come back.
    ("grpc.keepalive_time_ms", PING_EVERY_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", 60_000),
    ("grpc.http2.max_pings_without_data", 0),
)
TEXT_LIMIT: Final = 4000  # characters; a status is sent in a header
# The first match counts, so subclasses come before their bases.
STATUSES: Final[tuple[tuple[type[OdfError], grpc.StatusCode], ...]] = (
    (CallerUnknown, grpc.StatusCode.UNAUTHENTICATED),
    (InvalidInput, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (Conflict, grpc.StatusCode.ABORTED),
    (ChainRuleViolated, grpc.StatusCode.FAILED_PRECONDITION),
    (Refused, grpc.StatusCode.FAILED_PRECONDITION),
    (VerificationFailed, grpc.StatusCode.DATA_LOSS),
    (Busy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcServer:
    """A gRPC server that is listening."""

    server: grpc.Server
    port: int
    health: health.HealthServicer
    services: tuple[str, ...]

    def set_ready(self) -> None:
        """Answer health checks with SERVING from now on."""
        for name in ("", *self.services):
            self.health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def stop(self, grace: float = 5.0) -> None:
        """Refuse new calls; cancel calls that are still in flight after `grace` seconds."""
        self.health.enter_graceful_shutdown()
        self.server.stop(grace).wait()


def serve(
    address: str,
    register: Register,
    *,
    credentials: PeerCredentials = None,
    bulkheads: Bulkheads | None = None,
    is_ready: bool = True,
    on_call: OnCall = lambda _: None,
) -> GrpcServer:
    """Start a server at `host:port` (port 0: any free one); raises `Unavailable` if the address is in use.

    Only clients with the credentials are accepted. `on_call` is called with each finished call, and must not block.
    """
    guard = _Guard(Bulkheads() if bulkheads is None else bulkheads, on_call)
    server = grpc.server(
        SteadyThreadPool(MAX_WORKERS, "grpc"),
        interceptors=[_SecretCheck(credentials), guard] if isinstance(credentials, PeerSecret) else [guard],
        options=OPTIONS,
    )
    services = register(server)
    state = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(state, server)
    reflection.enable_server_reflection((*services, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        port = (
            server.add_secure_port(address, credentials.for_server())
            if isinstance(credentials, PeerTls)
            else server.add_insecure_port(address)
        )
    except RuntimeError as error:
        raise Unavailable(what=f"address {address}", why=str(error)) from error
    started = GrpcServer(server=server, port=port, health=state, services=services)
    for name in ("", *services):
        state.set(name, health_pb2.HealthCheckResponse.NOT_SERVING)
    server.start()
    if is_ready:
        started.set_ready()
    return started


def status_of(error: OdfError) -> grpc.StatusCode:
    """Return the gRPC status for an error."""
    for family, status in STATUSES:
        if isinstance(error, family):
            return status
    return grpc.StatusCode.INTERNAL


# Any: requests and responses are messages of generated code.
Single = Callable[[Any, grpc.ServicerContext], Any]
Streaming = Callable[[Any, grpc.ServicerContext], Iterator[Any]]


class _SecretCheck(grpc.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses calls without the secret before their request is read, even health checks and reflection."""

    def __init__(self, secret: PeerSecret) -> None:
        _, value = secret.header()
        self._expected = hash_of_header(value)

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        values = [value for key, value in details.invocation_metadata or () if key == KEY]
        if len(values) == 1 and hmac.compare_digest(hash_of_header(values[0]), self._expected):
            return continuation(details)
        # A handler of streams reads no message before it answers, whatever the client sends.
        return grpc.stream_stream_rpc_method_handler(_refuse)


def _refuse(_requests: Any, context: grpc.ServicerContext) -> Any:
    _abort(context, CallerUnknown())


class _Guard(grpc.ServerInterceptor):  # type: ignore[type-arg]
    """Limits concurrent calls; converts `OdfError` to its status, any other error to INTERNAL without its message."""

    def __init__(self, bulkheads: Bulkheads, on_call: OnCall) -> None:
        self._bulkheads = bulkheads
        self._on_call = on_call

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None or details.method.startswith(_OF_GRPC):
            return handler
        make = _MAKERS[handler.request_streaming, handler.response_streaming]
        if handler.response_streaming:
            behavior = self._streaming(handler.stream_stream or handler.unary_stream, details.method)
        else:
            behavior = self._single(handler.stream_unary or handler.unary_unary, details.method)
        return make(
            behavior,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _single(self, call: Single, method: str) -> Single:
        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            with self._admit(request, context, method) as admitted:
                admitted.reply = call(admitted.request, context)
                return admitted.reply

        return handle

    def _streaming(self, call: Streaming, method: str) -> Streaming:
        def handle(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with self._admit(request, context, method) as admitted:
                yield from call(admitted.request, context)

        return handle

    @contextmanager
    def _admit(self, request: Any, context: grpc.ServicerContext, method: str) -> Iterator["_CallInFlight"]:
        """Yield the call once the limits allow it.

        The dataset of a stream of requests is that of its first message.
        """
        admitted = _CallInFlight(request)
        with (
            _translate_errors(context, method, admitted),
            self._report_call(admitted, context, method),
            self._bulkheads.method(method),
        ):
            parts = iter(request) if hasattr(request, "__next__") else None
            admitted.first = next(parts, None) if parts is not None else request
            if parts is not None:
                admitted.request = chain(() if admitted.first is None else (admitted.first,), parts)
            with self._bulkheads.dataset(method, ref_of(admitted.first)):
                yield admitted

    @contextmanager
    def _report_call(
        self, admitted: "_CallInFlight", context: grpc.ServicerContext, method: str
    ) -> Iterator[None]:
        """Pass the facts of the call to `on_call` when the call has ended."""
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            try:
                self._on_call(_ended_call(admitted, error, context, method))
            except Exception:  # the caller gets its answer: the work is done
                log.exception("cannot record a call", method=method)


def _ended_call(
    admitted: "_CallInFlight", error: BaseException | None, context: grpc.ServicerContext, method: str
) -> Call:
    status = _status_of(error, context)
    return Call(
        method=method,
        dataset=dataset_in(admitted.first, admitted.reply),
        subject=subject_in(admitted.first),
        status=status,
        error=_name_of(error) if isinstance(error, OdfError) else _plain(status),
        address=address_of(context),
        certificate_name=certificate_name(context),
        user_agent=user_agent(context),
    )


@dataclass(slots=True)
class _CallInFlight:
    """A call in flight."""

    request: Any
    first: Any = None
    """The request, or the first message of a stream of requests."""
    reply: Any = None


_OF_GRPC: Final = "/grpc."  # health and reflection are not limited
_MAKERS: Final[Mapping[tuple[bool, bool], Callable[..., Any]]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


@contextmanager
def _translate_errors(
    context: grpc.ServicerContext, method: str, admitted: "_CallInFlight"
) -> Iterator[None]:
    try:
        with waiting_helps():
            yield
    except OdfError as error:
        _abort(context, error, ref_of(admitted.first))
    except Exception as error:
        # No status can be sent if the caller has gone or the servicer has aborted the call.
        if not context.is_active() or cast("Any", context).code() is not None:
            raise
        log.exception("call failed: a bug", method=method)
        context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__} in the service; see its log")


def _abort(context: grpc.ServicerContext, error: OdfError, ref: str = "") -> None:
    """End a call with an error; advice with a placeholder for the dataset gets the name in `ref`."""
    code = _name_of(error)
    name = "" if "," in ref else ref.partition("@")[0]
    advice = name_dataset(error.advice(), name)
    # Metadata is ASCII unless its key ends in -bin.
    context.set_trailing_metadata(((CODE_KEY, code), (ADVICE_KEY, advice.encode())))
    context.abort(status_of(error), name_dataset(str(error), name)[:TEXT_LIMIT])


def _name_of(error: OdfError) -> str:
    return error.reason if isinstance(error, Refused) else error.code


def _status_of(error: BaseException | None, context: grpc.ServicerContext) -> grpc.StatusCode:
    """Return the status with which a call has ended."""
    match error:
        case None:
            return grpc.StatusCode.OK
        case OdfError():
            return status_of(error)
        case GeneratorExit():  # its caller has gone
            return grpc.StatusCode.CANCELLED
        case _:
            aborted = cast("Any", context).code()
            return aborted if isinstance(aborted, grpc.StatusCode) else grpc.StatusCode.INTERNAL


def _plain(status: grpc.StatusCode) -> str:
    return "" if status is grpc.StatusCode.OK else status.name
