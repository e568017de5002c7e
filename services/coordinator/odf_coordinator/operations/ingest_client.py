"""Calls ingest to drain the push sources of a dataset, and to poll its polling source."""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import grpc

from odf_common.adapters.grpc.client import (
    RESTART_TIMEOUT_SECONDS,
    STREAM_TIMEOUT_SECONDS,
    RemoteRefused,
    ServiceSilent,
    ServiceUnreachable,
    calling,
    channel,
    require_server,
)
from odf_common.adapters.grpc.peer_credentials import PeerCredentials
from odf_common.errors import Refused, Unavailable, with_advice
from odf_common.identity.dataset_refs import DatasetId
from odf_common.proto.odf.node.v1.ingest_pb2 import CountSourceRecordsRequest, DrainRequest, PollRequest
from odf_common.proto.odf.node.v1.ingest_pb2_grpc import IngestStub

T = TypeVar("T")
COUNT_TIMEOUT_SECONDS: Final = 10.0


class Ingest(Protocol):
    """Commits new data of a dataset's sources."""

    def poll(
        self, dataset: DatasetId, source: bytes = b"", consumers: Sequence[str] = ()
    ) -> Generator[str, None, None]:
        """Iterate until all new data of the polling source is committed; yield its progress.

        `source` is the document of a Source resource to read instead, and `consumers` are all datasets that it feeds.
        """

    def drain(self, dataset: DatasetId) -> Iterator[int]:
        """Wait until all current messages of the push sources are committed; yield the number that still wait."""


@dataclass(slots=True)
class IngestClient:
    """Client of ingest. It waits once while ingest restarts; if that fails, later calls do not wait.

    Calls share a connection. They are idempotent, so a call that fails on an old connection is repeated on a new one.
    """

    address: str | None
    timeout: float = RESTART_TIMEOUT_SECONDS  # seconds
    credentials: PeerCredentials = None
    _is_there: bool = field(default=True, init=False)
    _channel: grpc.Channel | None = field(default=None, init=False)

    def poll(
        self, dataset: DatasetId, source: bytes = b"", consumers: Sequence[str] = ()
    ) -> Generator[str, None, None]:
        """Iterate until all new data of the polling source is committed; yield its progress."""
        request = PollRequest(ref=str(dataset), source=source, consumers=consumers)
        for progress in self._stream(lambda stub: stub.Poll(request, timeout=STREAM_TIMEOUT_SECONDS)):
            yield progress.stage

    def count_records(self, source: bytes, datasets: Sequence[str]) -> Sequence[int]:
        """Return for each dataset the number of records of a pushed Source resource that it lacks."""
        if self.address is None:
            raise Unavailable(what="ingest", why="its address is not configured")
        request = CountSourceRecordsRequest(source=source, dataset_ids=datasets)
        connected = self._channel or channel(self.address, self.credentials)
        with calling("ingest"):
            reply = IngestStub(connected).CountSourceRecords(request, timeout=COUNT_TIMEOUT_SECONDS)
        self._channel = connected
        return [int(count) for count in reply.records]

    def drain(self, dataset: DatasetId) -> Iterator[int]:
        """Wait until all current messages of the push sources are committed; yield the number that still wait."""
        for progress in self._stream(
            lambda stub: stub.Drain(DrainRequest(ref=str(dataset)), timeout=STREAM_TIMEOUT_SECONDS)
        ):
            yield progress.waiting

    def _stream(self, call: Callable[[IngestStub], "grpc.CallIterator[T]"]) -> Iterator[T]:
        if self.address is None:
            raise Unavailable(what="ingest", why="its address is not configured")
        try:
            if self._channel is not None:
                try:
                    yield from _answers(call, self._channel)
                except ServiceSilent:
                    self._channel = None  # not closed, since other threads may use it too
                else:
                    return
            connected = self._connect(self.address)
            yield from _answers(call, connected)
            self._channel = connected
        except RemoteRefused as error:
            raise Refused(reason=error.reason, text=with_advice(error)) from error

    def _connect(self, address: str) -> grpc.Channel:
        """Return a new channel; raises `ServiceUnreachable`."""
        try:
            require_server("ingest", address, self.timeout if self._is_there else 0)
        except ServiceUnreachable:
            self._is_there = False
            raise
        self._is_there = True
        return channel(address, self.credentials)


def _answers(call: Callable[[IngestStub], "grpc.CallIterator[T]"], connected: grpc.Channel) -> Iterator[T]:
    """Yield the replies to a call. The call is canceled if the iterator is closed."""
    with calling("ingest"):
        answers = call(IngestStub(connected))
        try:
            yield from answers
        finally:
            answers.cancel()  # type: ignore[no-untyped-call]  # not typed by grpc
