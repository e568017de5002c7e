"""gRPC channels, and gRPC statuses as our errors."""

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import grpc

from odf_common.adapters.grpc.peer_secret import PeerCredentials, PeerSecret, SecretSender
from odf_common.adapters.grpc.peer_tls import PeerTls
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
)

# Shared with `server`, which clients do not import.
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024  # of one message
PING_EVERY_MS: Final = 10_000  # while a call is in flight
CODE_KEY: Final = "odf-code"
ADVICE_KEY: Final = "odf-advice-bin"

CALL_TIMEOUT_SECONDS: Final = 30.0  # for a short call
STREAM_TIMEOUT_SECONDS: Final = 24 * 3600.0  # for calls that report progress
RESTART_TIMEOUT_SECONDS: Final = 8.0  # in which the supervisor restarts a part
_CONNECT_POLL_SECONDS: Final = 0.1  # between connection attempts
_SEE_LOG: Final = "see its log"
Options = Sequence[tuple[str, int | str]]
# With its transparent retries, gRPC can lose a call that is made while the server closes the connection: the call never
# ends, neither by its deadline nor when it is canceled (seen in grpcio 1.50 to 1.85).
NO_RETRIES: Final = ("grpc.enable_retries", 0)
_OPTIONS: Final = (
    NO_RETRIES,
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(eq=False, kw_only=True)
class RemoteError(OdfError):
    """A service answered with an error; the message and the advice are its own."""

    text: str
    name: str = ""
    """The name of the service's error; empty if it sent none."""
    hint: str = ""

    def __str__(self) -> str:
        """Return the service's message."""
        return self.text

    @property
    def code(self) -> str:
        """Return the name of the service's error, so that it stays the same over several hops."""
        return self.name or super().code

    def advice(self) -> str:
        """Return the service's advice."""
        return self.hint


# One class per family, so that callers catch `NotFound` wherever it was raised.


@dataclass(eq=False, kw_only=True)
class RemoteInvalidInput(RemoteError, InvalidInput):
    """A service refused the input."""

    text: str


@dataclass(eq=False, kw_only=True)
class RemoteInvalidQuery(RemoteError, InvalidQuery):
    """The engine refused the SQL."""

    text: str


@dataclass(eq=False, kw_only=True)
class RemoteNotFound(RemoteError, NotFound):
    """A service did not find what was named."""

    what: str = ""


@dataclass(eq=False, kw_only=True)
class RemoteAlreadyExists(RemoteError, AlreadyExists):
    """A service reports that the name is taken."""

    what: str = ""


@dataclass(eq=False, kw_only=True)
class RemoteConflict(RemoteError, Conflict):
    """A service reports that another process changed it first."""


@dataclass(eq=False, kw_only=True)
class RemoteRefused(RemoteError, Refused):
    """A service refused; `reason` is the name of its error."""


@dataclass(eq=False, kw_only=True)
class RemoteVerificationFailed(RemoteError, VerificationFailed):
    """A service found that stored data does not match what the chain declares."""


@dataclass(eq=False, kw_only=True)
class RemoteUnavailable(RemoteError, Unavailable):
    """A service answered that it cannot reach what it needs."""


@dataclass(eq=False, kw_only=True)
class ServiceFailed(RemoteError, InternalError):
    """A service failed."""


@dataclass(eq=False, kw_only=True)
class ServiceSilent(Unavailable):
    """A call got no answer: the service does not respond, or the connection broke. It may have been executed."""

    def advice(self) -> str:
        """Return where to find the cause."""
        return f"`odf status` shows its state; {_SEE_LOG}"


@dataclass(eq=False, kw_only=True)
class ServiceUnreachable(ServiceSilent):
    """No server is listening at the service's address: no call was made."""


_FAMILIES: Final[Mapping[grpc.StatusCode, type[RemoteError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: RemoteInvalidInput,
    grpc.StatusCode.NOT_FOUND: RemoteNotFound,
    grpc.StatusCode.ALREADY_EXISTS: RemoteAlreadyExists,
    grpc.StatusCode.ABORTED: RemoteConflict,
    grpc.StatusCode.DATA_LOSS: RemoteVerificationFailed,
}


def channel(
    address: str, credentials: PeerCredentials = None, *, options: Options = _OPTIONS
) -> grpc.Channel:
    """Return a channel; it connects on the first call and reconnects automatically."""
    match credentials:
        case PeerTls():
            return grpc.secure_channel(address, credentials.for_client(), options=options)
        case PeerSecret():
            plain = grpc.insecure_channel(address, options=options)
            return grpc.intercept_channel(plain, SecretSender(credentials, address))
        case None:
            return grpc.insecure_channel(address, options=options)


def _watched(user_agent: str) -> Options:
    """Return options that fail calls to a frozen process: it keeps its connections, but answers no ping."""
    return (
        *_OPTIONS,
        ("grpc.primary_user_agent", user_agent),
        ("grpc.keepalive_time_ms", PING_EVERY_MS),
        ("grpc.http2.ping_timeout_ms", PING_EVERY_MS),  # keepalive_timeout_ms ends no call
        ("grpc.http2.max_pings_without_data", 0),  # no limit
        # Channels share their connections, and with them the pause after a failure: a new one would wait as well.
        ("grpc.use_local_subchannel_pool", 1),
    )


@contextmanager
def reached(
    what: str,
    address: str,
    timeout: float = RESTART_TIMEOUT_SECONDS,
    *,
    credentials: PeerCredentials = None,
    user_agent: str = "",
) -> Iterator[grpc.Channel]:
    """Open a channel, waiting up to `timeout` seconds for a server that the supervisor may be restarting.

    Raises `ServiceUnreachable`. The wait comes before the call: a call that fails on its way may have been executed,
    so it must not be repeated. A call to a frozen process fails as `UNAVAILABLE` after 20 s, however long it may take.
    """
    require_server(what, address, timeout)
    with watched_channel(address, credentials, user_agent) as open_channel:
        yield open_channel


def watched_channel(address: str, credentials: PeerCredentials = None, user_agent: str = "") -> grpc.Channel:
    """Return a channel on which calls to a frozen process fail."""
    return channel(address, credentials, options=_watched(user_agent))


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
    """Raise a failed call to `what` as the service's own error, or as `Unavailable`."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_of(error, what) from error


def error_of(error: grpc.RpcError, what: str) -> OdfError:
    """Return our error for a failed call."""
    text = error.details() or ""
    metadata = {str(key): value for key, value in cast("Any", error).trailing_metadata() or ()}
    name, hint = str(metadata.get(CODE_KEY, "")), bytes(metadata.get(ADVICE_KEY, b"")).decode()
    match error.code():
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.RESOURCE_EXHAUSTED if name:
            return RemoteUnavailable(what=what, why=text, text=text, name=name, hint=hint)
        case grpc.StatusCode.UNAVAILABLE:
            return ServiceSilent(what=what, why=text)
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
