"""Asks ingest to drain a dataset's sources."""

from collections.abc import Iterator
from dataclasses import dataclass, field

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
from odf_common.proto.odf.node.v1.ingest_pb2 import DrainRequest
from odf_common.proto.odf.node.v1.ingest_pb2_grpc import IngestStub


@dataclass(slots=True)
class IngestClient:
    """Client of ingest; waits once while ingest restarts, not again for each dataset if it stays away."""

    address: str | None
    patience: float = RESTART_TIMEOUT_SECONDS  # seconds
    _is_there: bool = field(default=True, init=False)

    def drain(self, dataset: DatasetId) -> Iterator[int]:
        """Iterate until all messages now in the dataset's sources are committed; yield the number still waiting."""
        if self.address is None:
            raise Unavailable(what="ingest", why="its address is not configured")
        patience = self.patience if self._is_there else 0
        try:
            with calling("ingest"), reached("ingest", self.address, patience) as channel:
                self._is_there = True
                for progress in IngestStub(channel).Drain(
                    DrainRequest(ref=str(dataset)), timeout=STREAM_TIMEOUT_SECONDS
                ):
                    yield progress.waiting
        except ServiceUnreachable:
            self._is_there = False
            raise
        except RemoteRefused as error:
            # A pull's result has only one text field, so the advice is appended.
            text = f"{error}. {error.advice()}" if error.advice() else str(error)
            raise Refused(reason=error.reason, text=text) from error
