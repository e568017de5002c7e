"""gRPC channels, and conversion of gRPC statuses to errors of this project.

A channel is replaced when its calls find no server. After a failed DNS lookup gRPC waits longer and longer before the
next one, up to two minutes, and no option changes that. The name of a container does not resolve while the container is
stopped, so calls would keep failing long after its restart. A new channel resolves the name at once.
"""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self, cast

import grpc

from odf_common.adapters.grpc.peer_credentials import PeerCredentials, PeerSecret, PeerTls, SecretSender
from odf_common.errors import (
    AlreadyExists,
    Conflict,
    InternalError,
    InvalidInput,
    InvalidQuery,
    NotFound,
    OdfError,
    Refused,
    Unavailable,
    VerificationFailed,
    lacks_threads,
)

RENEW_SECONDS: Final = 2.0  # between two channels; more than a connection takes
# A channel that could not start the thread which ends its calls believes from then on that it has it: its calls never
# end, and closing it waits for them. So it is kept until the process ends.
_STUCK: Final[list[grpc.Channel]] = []


class RenewedChannel(grpc.Channel):
    """A channel that replaces its underlying channel when calls find no server; calls in flight end on the old one."""

    def __init__(
        self,
        open_: Callable[[], grpc.Channel],
        is_lost: Callable[[grpc.RpcError], bool],
        *,
        seconds: float = RENEW_SECONDS,
    ) -> None:
        """Open a channel with `open_`, and again after a call for whose error `is_lost` is true.

        The next channel is opened no sooner than `seconds` after the last one.
        """
        self._seconds = seconds
        self._open = open_
        self._is_lost = is_lost
        self._mutex = threading.Lock()
        self._opened = time.monotonic()
        self.newest = open_()

    def note(self, channel: grpc.Channel, error: object) -> None:
        """Replace `channel` if a call on it failed with `error` because it found no server or could start no thread."""
        is_stuck = _lacks_thread(error)
        if not is_stuck and not (isinstance(error, grpc.RpcError) and self._is_lost(error)):
            return
        with self._mutex:
            is_due = is_stuck or time.monotonic() >= self._opened + self._seconds
            if channel is self.newest and is_due:
                if is_stuck:
                    _STUCK.append(channel)
                self.newest, self._opened = self._open(), time.monotonic()

    def unary_unary(self, *words: Any, **options: Any) -> Any:
        return _Method(self, "unary_unary", words, options)

    def unary_stream(self, *words: Any, **options: Any) -> Any:
        return _Method(self, "unary_stream", words, options)

    def stream_unary(self, *words: Any, **options: Any) -> Any:
        return _Method(self, "stream_unary", words, options)

    def stream_stream(self, *words: Any, **options: Any) -> Any:
        return _Method(self, "stream_stream", words, options)

    def subscribe(self, callback: Any, try_to_connect: bool = False) -> None:  # noqa: FBT001, FBT002 - of gRPC
        self.newest.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Any) -> None:
        self.newest.unsubscribe(callback)

    def close(self) -> None:
        self.newest.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Method:
    """A method that is called on the newest channel; failed calls are reported to `RenewedChannel.note`."""

    def __init__(
        self, owner: RenewedChannel, kind: str, words: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        self._owner = owner
        self._kind, self._words, self._options = kind, words, options
        self._bound: tuple[grpc.Channel | None, Any] = None, None

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._call_newest("__call__", arguments, options)

    def with_call(self, *arguments: Any, **options: Any) -> Any:
        return self._call_newest("with_call", arguments, options)

    def future(self, *arguments: Any, **options: Any) -> Any:
        return self._call_newest("future", arguments, options)

    def _call_newest(self, way: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        channel, method = self._bound
        if channel is None or channel is not self._owner.newest:
            channel = self._owner.newest
            method = getattr(channel, self._kind)(*self._words, **self._options)
            self._bound = channel, method
        try:
            answer = getattr(method, way)(*arguments, **options)
        except (grpc.RpcError, RuntimeError) as error:
            self._owner.note(channel, error)
            raise
        if isinstance(answer, grpc.Future):  # in flight
            answer.add_done_callback(lambda call: self._owner.note(channel, call))
        return answer


def _lacks_thread(error: object) -> bool:
    """Return whether a failed call, or the error that it raised, is due to a thread that could not be started."""
    try:
        # Interceptors return a call that has failed already.
        cause = error.exception() if isinstance(error, grpc.Future) else error
    except grpc.FutureCancelledError:
        return False
    return isinstance(cause, BaseException) and lacks_threads(cause)


# Shared with `server`, which clients do not import.
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024  # of one message
# A peer that answers no ping is gone or frozen: its connection ends with all its calls, in less than ten seconds.
PING_EVERY_MS: Final = 3000  # without a byte from the peer
PING_TIMEOUT_MS: Final = 6000
CONNECT_MS: Final = 5000  # for an attempt; after it, the name is resolved again
CODE_KEY: Final = "odf-code"
ADVICE_KEY: Final = "odf-advice-bin"

CALL_TIMEOUT_SECONDS: Final = 30.0  # for a short call
STREAM_TIMEOUT_SECONDS: Final = 24 * 3600.0  # for calls that report progress
RESTART_TIMEOUT_SECONDS: Final = 8.0  # in which the supervisor restarts a part
_CONNECT_POLL_SECONDS: Final = 0.1  # between connection attempts
# gRPC's words for a peer whose pings, or whose greeting, are missing.
_OF_DEAD_PEERS: Final = ("ping timeout", "before receiving SETTINGS frame")
_NO_SIGN_OF_LIFE: Final = "its process is stopped, or the network to it is broken"
_SEE_LOG: Final = "see its log"
# With its transparent retries, gRPC can lose a call that is made while the server closes the connection: the call never
# ends, neither by its deadline nor when it is canceled (seen in grpcio 1.50 to 1.85).
_NO_RETRIES: Final = ("grpc.enable_retries", 0)


class RemoteError(OdfError):
    """A service answered with an error; message and advice are those of the service."""

    MESSAGE = "{text}"
    ADVICE = "{hint}"

    text: str
    name: str = ""
    """Name of the error class in the service; empty if the service sent none."""
    hint: str = ""

    @property
    def code(self) -> str:
        """Return the name of the service's error, so that it stays the same when services pass the error on."""
        return self.name or super().code


# One class per family, so that callers catch `NotFound` wherever it was raised.


class RemoteInvalidInput(RemoteError, InvalidInput):
    """A service refused the input."""

    text: str


class RemoteInvalidQuery(RemoteError, InvalidQuery):
    """The engine refused the SQL."""

    text: str


class RemoteNotFound(RemoteError, NotFound):
    """A service did not find what the request names."""

    what: str = ""


class RemoteAlreadyExists(RemoteError, AlreadyExists):
    """A service reports that the name is already taken."""

    what: str = ""


class RemoteConflict(RemoteError, Conflict):
    """A service reports that another process has changed the same data first."""


class RemoteRefused(RemoteError, Refused):
    """A service refused the request; `reason` is the name of its error."""


class RemoteVerificationFailed(RemoteError, VerificationFailed):
    """A service found that stored data does not match what the chain declares."""


class RemoteUnavailable(RemoteError, Unavailable):
    """A service answered that a part of the node that it needs is unavailable."""


class ServiceFailed(RemoteError, InternalError):
    """A service failed because of an internal error."""


class ServiceSilent(Unavailable):
    """A call got no answer, or its connection broke; the service may have executed it."""

    has_gone: bool = False
    """Whether the peer answered no pings either: it has not just restarted, which would have closed the connection."""

    def advice(self) -> str:
        """Return the command that shows the state of the service."""
        return "`odf status` shows its state, and what to do"


class ServiceUnreachable(ServiceSilent):
    """No server is listening at the service's address, so the call was not made."""


_FAMILIES: Final[Mapping[grpc.StatusCode, type[RemoteError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: RemoteInvalidInput,
    grpc.StatusCode.NOT_FOUND: RemoteNotFound,
    grpc.StatusCode.ALREADY_EXISTS: RemoteAlreadyExists,
    grpc.StatusCode.ABORTED: RemoteConflict,
    grpc.StatusCode.DATA_LOSS: RemoteVerificationFailed,
}


def _options(user_agent: str = "") -> tuple[tuple[str, int | str], ...]:
    return (
        _NO_RETRIES,
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        *((("grpc.primary_user_agent", user_agent),) if user_agent else ()),
        ("grpc.enable_http_proxy", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.min_reconnect_backoff_ms", CONNECT_MS),  # how long an attempt may take
        (
            "grpc.dns_min_time_between_resolutions_ms",
            1000,
        ),  # by default a server's new address is seen after 30 s
        ("grpc.keepalive_time_ms", PING_EVERY_MS),
        ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),  # for data in the kernel's buffers, too
        ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),  # else the next call meets the dead connection
        ("grpc.http2.max_pings_without_data", 0),  # no limit
        # Channels share their connections, and with them the pause after a failure: a new one would wait as well.
        ("grpc.use_local_subchannel_pool", 1),
    )


class _DefaultDeadline(grpc.UnaryUnaryClientInterceptor):  # type: ignore[type-arg]
    """Sets a deadline for unary calls that have none; a stream without a deadline ends only if its pings fail."""

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        if client_call_details.timeout is None:
            client_call_details = client_call_details._replace(timeout=CALL_TIMEOUT_SECONDS)
        return continuation(client_call_details, request)


def channel(address: str, credentials: PeerCredentials = None, *, user_agent: str = "") -> grpc.Channel:
    """Return a channel that connects on the first call and reconnects automatically.

    If the peer has gone or is frozen, calls fail with `UNAVAILABLE` within ten seconds, however long their deadline is.
    The next call resolves the host name again and opens a new connection.
    """
    options = _options(user_agent)

    def open_plain() -> grpc.Channel:
        if isinstance(credentials, PeerTls):
            plain = grpc.secure_channel(address, credentials.for_client(), options=options)
        else:
            plain = grpc.insecure_channel(address, options=options)
        if isinstance(credentials, PeerSecret):
            plain = grpc.intercept_channel(plain, SecretSender(credentials, address))
        return grpc.intercept_channel(plain, _DefaultDeadline())

    return RenewedChannel(open_plain, _found_no_server)


def _found_no_server(error: grpc.RpcError) -> bool:
    """Return whether a call failed because there was no server: a service that answers always names its error."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and not isinstance(
        error_of(error, "the server"), RemoteError
    )


def asyncio_channel(address: str, credentials: PeerCredentials = None) -> grpc.aio.Channel:
    """Return an asyncio channel with the options of `channel`, but without the secret and the default deadline."""
    if isinstance(credentials, PeerTls):
        return grpc.aio.secure_channel(address, credentials.for_client(), options=_options())
    return grpc.aio.insecure_channel(address, options=_options())


@contextmanager
def await_channel(
    what: str,
    address: str,
    timeout: float = RESTART_TIMEOUT_SECONDS,
    *,
    credentials: PeerCredentials = None,
    user_agent: str = "",
) -> Iterator[grpc.Channel]:
    """Open a channel after waiting up to `timeout` seconds for the server, which may be restarting.

    Raises `ServiceUnreachable`. The wait is before the call, because a call that has failed must not be repeated: the
    service may have executed it.
    """
    require_server(what, address, timeout)
    with channel(address, credentials, user_agent=user_agent) as open_channel:
        yield open_channel


def require_server(what: str, address: str, timeout: float) -> None:
    """Raise `ServiceUnreachable` unless a server listens at the address within `timeout` seconds."""
    host, _, port = address.rpartition(":")
    until = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection(
                (host.strip("[]"), int(port)), timeout=max(timeout, _CONNECT_POLL_SECONDS)
            ).close()
            break
        except OSError as error:
            if time.monotonic() >= until:
                raise ServiceUnreachable(what=what, why=f"no server answers at {address}") from error
            time.sleep(_CONNECT_POLL_SECONDS)


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Convert the error of a failed call to service `what`: to the service's own error, or to `Unavailable`."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_of(error, what) from error


def error_of(error: grpc.RpcError, what: str) -> OdfError:
    """Return the error of this project for a failed call to service `what`."""
    text = error.details() or ""
    metadata = {str(key): value for key, value in cast("Any", error).trailing_metadata() or ()}
    name, hint = str(metadata.get(CODE_KEY, "")), bytes(metadata.get(ADVICE_KEY, b"")).decode()
    match error.code():
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.RESOURCE_EXHAUSTED if name:
            return RemoteUnavailable(what=what, why=text, text=text, name=name, hint=hint)
        case grpc.StatusCode.UNAVAILABLE:
            is_dead = any(words in text for words in _OF_DEAD_PEERS)
            return ServiceSilent(what=what, why=_NO_SIGN_OF_LIFE if is_dead else text, has_gone=is_dead)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServiceSilent(what=what, why="no answer in time")
        case grpc.StatusCode.INVALID_ARGUMENT if name == InvalidQuery.__name__:
            return RemoteInvalidQuery(text=text, name=name, hint=hint)
        case grpc.StatusCode.FAILED_PRECONDITION | grpc.StatusCode.UNAUTHENTICATED:
            return RemoteRefused(reason=name, text=text, name=name, hint=hint)
        case code if code in _FAMILIES:
            return _FAMILIES[code](text=text, name=name, hint=hint)
        case _:
            return ServiceFailed(text=f"{what} failed: {text}", hint=_SEE_LOG)
