"""Forwards pushes to the ingest service. Calls may be repeated, because an idempotency key identifies each push."""

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

import grpc
import structlog

from odf_common.adapters.grpc.client import RemoteError, ServiceSilent, channel, error_of
from odf_common.adapters.grpc.peer_credentials import PeerCredentials
from odf_common.errors import OdfError, Unavailable, with_advice
from odf_common.proto.odf.node.v1 import push_pb2 as pb
from odf_common.proto.odf.node.v1.push_pb2_grpc import PushStub
from odf_sync.http.endpoints import FAILED, UNAVAILABLE

log = structlog.stdlib.get_logger(__name__)

SHORT_CALL_SECONDS: Final = 4.0  # with its repeats; clients get an answer within five
REPLY_SECONDS: Final = 2.0  # after what a call waits for
CALL_SECONDS: Final = 30.0  # of a call that reads the whole push
RESTART_TIMEOUT_SECONDS: Final = 4.0  # in which ingest may be restarted
PAUSE_SECONDS: Final = 0.2
Reply = TypeVar("Reply")
_STATUSES: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 503,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 503,
}
INSUFFICIENT_STORAGE: Final = 507
BUFFER_FULL: Final = 429
DISK_CODE: Final = "StorageUnavailable"
DISK_TEXT: Final = "the disk of the node takes no data now, for example because it is full"
REPEAT_HINT: Final = "repeat the push with its key"
SILENT_CODE: Final = "PartSilent"
SILENT_TEXT: Final = "ingest does not answer"
_OF_CODE: Final = {
    "BufferFull": BUFFER_FULL,
    "KeyReused": 409,
    "UnsupportedMediaType": 415,
    "NotFound": 404,
    DISK_CODE: INSUFFICIENT_STORAGE,
}


class PushRefused(OdfError):
    """A push was not accepted, or not committed; `status` is the HTTP status of the response."""

    status: int
    error: str
    """The name of the error."""
    text: str
    hint: str = ""


def status_of(code: str, default: int = 400) -> int:
    """Return the HTTP status for the name of an error, or the default."""
    return _OF_CODE.get(code, default)


def _refusal(error: OdfError, code: grpc.StatusCode) -> PushRefused:
    """Return the error for the client, without addresses and buckets of this node."""
    status = status_of(error.code, _STATUSES.get(code, 500))
    if status < 500 or code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return PushRefused(status=status, error=error.code, text=str(error), hint=error.advice())
    log.warning("ingest failed", code=error.code, why=with_advice(error))
    if status == INSUFFICIENT_STORAGE:
        return PushRefused(status=status, error=error.code, text=DISK_TEXT, hint=REPEAT_HINT)
    if isinstance(error, ServiceSilent):
        return PushRefused(status=status, error=error.code, text=SILENT_TEXT, hint=REPEAT_HINT)
    text = FAILED if code is grpc.StatusCode.DATA_LOSS else UNAVAILABLE
    return PushRefused(status=status, error=error.code, text=text)


class IngestClient:
    """A client of the ingest service for pushes; thread-safe."""

    def __init__(
        self,
        address: str,
        timeout: float = RESTART_TIMEOUT_SECONDS,
        *,
        credentials: PeerCredentials = None,
    ) -> None:
        """Connect on the first call; calls are retried for `timeout` seconds while ingest restarts."""
        self._address = address
        self._credentials = credentials
        self._stub = self._new_stub()
        self._timeout = timeout
        self._stopping = threading.Event()

    @property
    def is_stopping(self) -> bool:
        """Return whether this service is stopping."""
        return self._stopping.is_set()

    def end_waits(self, stop: threading.Event) -> None:
        """Block until `stop` is set, then end retries, because ingest may not restart before this process ends."""
        stop.wait()
        self._stopping.set()

    def check(self, request: pb.PushRequest) -> pb.PushTarget:
        """Return the push source that a push is for, after a check of its parameters; raises `PushRefused`."""
        target: pb.PushTarget = self._call(lambda stub: stub.Check, request, SHORT_CALL_SECONDS)
        return target

    def accept(self, request: pb.PushRequest) -> pb.PushReceipt:
        """Return the receipt of a push after it has been stored durably; raises `PushRefused`."""
        receipt: pb.PushReceipt = self._call(lambda stub: stub.Accept, request, CALL_SECONDS)
        return receipt

    def show(self, ref: str, receipt: str, wait_seconds: float = 0.0) -> pb.PushReceipt:
        """Return a receipt, after waiting up to `wait_seconds` until the push is settled; raises `PushRefused`."""
        request = pb.ShowPushRequest(ref=ref, receipt=receipt, wait_ms=int(wait_seconds * 1000))
        seconds = max(wait_seconds + REPLY_SECONDS, SHORT_CALL_SECONDS)
        answer: pb.PushReceipt = self._call(lambda stub: stub.Show, request, seconds)
        return answer

    def _new_stub(self) -> PushStub:
        """Return a stub with a connection of its own."""
        return PushStub(channel(self._address, self._credentials))

    def _call(
        self, method: Callable[[PushStub], Callable[..., Reply]], request: object, seconds: float
    ) -> Reply:
        """Call a method, with retries while ingest may be restarting, for at most `seconds` in total."""
        begun = time.monotonic()
        while True:
            stub, left = self._stub, begun + seconds - time.monotonic()
            try:
                return method(stub)(request, timeout=max(left, PAUSE_SECONDS))
            except grpc.RpcError as error:
                # Its connection may be dead, which gRPC notices later. Others may wait on it, so it is not closed.
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and stub is self._stub:
                    self._stub = self._new_stub()
                failure = error_of(error, "ingest")
                is_lost = isinstance(failure, Unavailable) and not isinstance(failure, RemoteError)
                is_over = time.monotonic() >= begun + min(self._timeout, seconds)
                if not is_lost or self.is_stopping or is_over:
                    raise _refusal(failure, error.code()) from error
            self._stopping.wait(PAUSE_SECONDS)
