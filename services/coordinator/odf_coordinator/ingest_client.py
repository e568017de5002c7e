"""Asking ingest to drain a dataset's sources."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc

from odf_common.adapters.grpc_client import LONG, calling, channel
from odf_common.errors import Unavailable
from odf_common.identity.did import DatasetId
from odf_common.proto.odf.node.v1.ingest_pb2 import DrainRequest
from odf_common.proto.odf.node.v1.ingest_pb2_grpc import IngestStub


@dataclass(slots=True)
class IngestClient:
    """Speaks to ingest over one channel, made with the first call."""

    address: str | None
    _channel: grpc.Channel | None = field(default=None, init=False)

    def drain(self, dataset: DatasetId) -> Iterator[int]:
        """Iterate until what is in the dataset's sources now is committed; yields how much still waits."""
        if self.address is None:
            raise Unavailable(what="ingest", why="its address was not told")
        if self._channel is None:
            self._channel = channel(self.address)
        with calling("ingest"):
            for progress in IngestStub(self._channel).Drain(DrainRequest(ref=str(dataset)), timeout=LONG):
                yield progress.waiting

    def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            self._channel.close()
