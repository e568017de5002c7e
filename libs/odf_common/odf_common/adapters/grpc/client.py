"""gRPC channels, and statuses turned back into our errors."""

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

import grpc

from odf_common.adapters.grpc.limits import ADVICE_KEY, CODE_KEY, LIMIT
from odf_common.errors import (
    AlreadyExists,
    Conflict,
    InvalidInput,
    InvalidQuery,
    NotFound,
    OdfError,
    Refused,
    Unavailable,
    VerificationFailed,
)

DEADLINE: Final = 30.0  # seconds, for a question that wants an answer now
LONG: Final = 24 * 3600.0  # seconds, for calls that report progress
RESTART: Final = 8.0  # seconds in which a part that has ended is there again
_PAUSE: Final = 0.1  # seconds
_SEE_LOG: Final = "its log, in the folder `logs` of the node's home, says why"
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", LIMIT),
    ("grpc.max_send_message_length", LIMIT),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
)


@dataclass(eq=False, kw_only=True)
class _Hinted(OdfError):
    """Carries a service's own advice."""

    hint: str = ""

    def advice(self) -> str:
        """Return the hint."""
        return self.hint


@dataclass(eq=False, kw_only=True)
class _Said(_Hinted):
    """Carries a service's own words."""

    text: str

    def __str__(self) -> str:
        """Return them."""
        return self.text


@dataclass(eq=False, kw_only=True)
class InputRefused(_Hinted, InvalidInput):
    """A service refused the input."""


@dataclass(eq=False, kw_only=True)
class QueryRefused(_Hinted, InvalidQuery):
    """The engine refused the SQL."""


@dataclass(eq=False, kw_only=True)
class Missing(_Said, NotFound):
    """A service does not find it."""

    what: str = ""


@dataclass(eq=False, kw_only=True)
class Taken(_Said, AlreadyExists):
    """A service says that the name is taken."""

    what: str = ""


@dataclass(eq=False, kw_only=True)
class Conflicted(_Said, Conflict):
    """Somebody else changed it first."""


@dataclass(eq=False, kw_only=True)
class Declined(_Hinted, Refused):
    """A service refused; `reason` is the name of its error."""


@dataclass(eq=False, kw_only=True)
class Damaged(_Said, VerificationFailed):
    """A service found that what is stored is not what the chain declares."""


@dataclass(eq=False, kw_only=True)
class OutOfReach(_Said, Unavailable):
    """A service that did answer cannot reach what it needs."""


@dataclass(eq=False, kw_only=True)
class ServiceFailed(_Said):
    """A service failed."""


@dataclass(eq=False, kw_only=True)
class NobodyThere(Unavailable):
    """Nobody listens where a service should be."""

    def advice(self) -> str:
        """Return where to look."""
        return f"`odf status` shows how it is; {_SEE_LOG}"


_FAMILIES: Final[Mapping[grpc.StatusCode, type[_Said]]] = {
    grpc.StatusCode.NOT_FOUND: Missing,
    grpc.StatusCode.ALREADY_EXISTS: Taken,
    grpc.StatusCode.ABORTED: Conflicted,
    grpc.StatusCode.DATA_LOSS: Damaged,
}


def channel(address: str) -> grpc.Channel:
    """Return a channel; it connects with the first call, and again by itself."""
    return grpc.insecure_channel(address, options=_OPTIONS)


@contextmanager
def reached(what: str, address: str, patience: float = RESTART) -> Iterator[grpc.Channel]:
    """Open a channel to who listens there, after at most `patience` seconds, as the supervisor restarts what has ended.

    Raises `NobodyThere`. It waits before any call, since one that was lost on its way may have been done.
    """
    host, _, port = address.rpartition(":")
    until = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=max(patience, _PAUSE)).close()
            break
        except OSError as error:
            if time.monotonic() >= until:
                raise NobodyThere(what=what, why=f"nobody answers at {address}") from error
            time.sleep(_PAUSE)
    with channel(address) as open_channel:
        yield open_channel


@contextmanager
def calling(what: str) -> Iterator[None]:
    """Turn a failed call to `what` into the error that the service raised, or `Unavailable`."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_of(error, what) from error


def error_of(error: grpc.RpcError, what: str) -> OdfError:
    """Return our error for a failed call."""
    text = error.details() or ""
    metadata = {str(key): value for key, value in cast("Any", error).trailing_metadata() or ()}
    reason, hint = str(metadata.get(CODE_KEY, "")), bytes(metadata.get(ADVICE_KEY, b"")).decode()
    match error.code():
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.RESOURCE_EXHAUSTED if reason:
            return OutOfReach(what=what, why=text, text=text, hint=hint)
        case grpc.StatusCode.UNAVAILABLE:
            return Unavailable(what=what, why=text)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unavailable(what=what, why="no answer in time")
        case grpc.StatusCode.INVALID_ARGUMENT if reason == "InvalidQuery":
            return QueryRefused(text=text, hint=hint)
        case grpc.StatusCode.INVALID_ARGUMENT:
            return InputRefused(text=text, hint=hint)
        case grpc.StatusCode.FAILED_PRECONDITION:
            return Declined(reason=reason, text=text, hint=hint)
        case code if code in _FAMILIES:
            return _FAMILIES[code](text=text, hint=hint)
        case _:
            return ServiceFailed(text=f"{what} failed: {text}", hint=_SEE_LOG)
