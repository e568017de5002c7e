"""Asks ingest to drain a dataset's push sources, and to poll its polling source."""

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from odf_common.adapters.grpc.client import (
    RESTART_TIMEOUT_SECONDS,
    STREAM_TIMEOUT_SECONDS,
    RemoteRefused,
    ServiceUnreachable,
    calling,
    reached,
)
from odf_common.errors import Refused, Unavailable
from odf_common.identity.did import DatasetId
from odf_common.proto.odf.node.v1.ingest_pb2 import DrainRequest, PollRequest
from odf_common.proto.odf.node.v1.ingest_pb2_grpc import IngestStub

T = TypeVar("T")


@dataclass(slots=True)
class IngestClient:
    """Client of ingest; waits once while ingest restarts, not again for each dataset if it stays away."""

    address: str | None
    patience: float = RESTART_TIMEOUT_SECONDS  # seconds
    _is_there: bool = field(default=True, init=False)

    def poll(self, dataset: DatasetId) -> Generator[str, None, None]:
        """Iterate until all that is new at the polling source is committed; yield what is going on."""
        for progress in self._stream(
            lambda stub: stub.Poll(PollRequest(ref=str(dataset)), timeout=STREAM_TIMEOUT_SECONDS)
        ):
            yield progress.stage

    def drain(self, dataset: DatasetId) -> Iterator[int]:
        """Iterate until all messages now in the dataset's sources are committed; yield the number still waiting."""
        for progress in self._stream(
            lambda stub: stub.Drain(DrainRequest(ref=str(dataset)), timeout=STREAM_TIMEOUT_SECONDS)
        ):
            yield progress.waiting

    def _stream(self, call: Callable[[IngestStub], Iterable[T]]) -> Iterator[T]:
        if self.address is None:
            raise Unavailable(what="ingest", why="its address is not configured")
        patience = self.patience if self._is_there else 0
        try:
            with calling("ingest"), reached("ingest", self.address, patience) as channel:
                self._is_there = True
                yield from call(IngestStub(channel))
        except ServiceUnreachable:
            self._is_there = False
            raise
        except RemoteRefused as error:
            # A pull's result has only one text field, so the advice is appended.
            text = f"{error}; {error.advice()}" if error.advice() else str(error)
            raise Refused(reason=error.reason, text=text) from error
