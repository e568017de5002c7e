"""The coordinator's resources, as controllers of other services use them over gRPC."""

import json
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from odf_common.adapters.grpc.client import calling, channel
from odf_common.adapters.grpc.peer_credentials import PeerCredentials
from odf_common.proto.odf.node.v1 import resources_pb2 as pb
from odf_common.proto.odf.node.v1.resources_pb2_grpc import ResourcesStub
from odf_common.service.reconcile_loop import Json, Leased, Report, Work

SHORT_CALL_SECONDS: Final = 10.0
COORDINATOR: Final = "coordinator"


class RemoteResources:
    """A client of the coordinator's resources; thread-safe. Calls raise `OdfError`."""

    def __init__(self, service: str, address: str, credentials: PeerCredentials = None) -> None:
        """Connect on the first call; `service` names the holder of leases."""
        self._stub = ResourcesStub(channel(address, credentials))
        self._holder = f"{service}@{socket.gethostname()}"

    def due_ids(self, types: Sequence[str], is_wanted: Callable[[], bool]) -> Iterator[str]:
        """Return the ids of resources that have to be reconciled; raises `Unavailable` when the stream breaks."""
        with calling(COORDINATOR):
            call = self._stub.WatchDueResources(pb.WatchDueResourcesRequest(types=types))
            try:
                for due in call:
                    if not is_wanted():
                        return
                    if due.id:
                        yield due.id
            finally:
                call.cancel()

    def begin(self, ids: Sequence[str], *, lease_ms: int) -> Leased:
        """Lease resources."""
        request = pb.BeginAttemptsRequest(ids=ids, holder=self._holder, lease_ms=lease_ms)
        with calling(COORDINATOR):
            reply = self._stub.BeginAttempts(request, timeout=SHORT_CALL_SECONDS)
        works = [
            Work(resource=json.loads(one.json), token=one.token, is_deleting=one.is_deleting)
            for one in reply.begun
        ]
        return Leased(works=works, held=[*reply.held])

    def end(self, reports: Mapping[str, Report]) -> Mapping[str, int]:
        """Write outcomes."""
        outcomes = [
            pb.AttemptOutcome(
                id=id_,
                token=report.token,
                generation=report.generation,
                failure=report.failure,
                message=report.message,
                failure_class=report.failure_class.value,
                conditions=json.dumps(report.conditions).encode(),
                is_cleanup=report.is_cleanup,
            )
            for id_, report in reports.items()
        ]
        with calling(COORDINATOR):
            reply = self._stub.EndAttempts(
                pb.EndAttemptsRequest(outcomes=outcomes), timeout=SHORT_CALL_SECONDS
            )
        return dict(reply.retry_after)

    def read(self, schema: str, id: str, *, account: Json) -> Json:
        """Return the canonical document of a resource that an account, given by its handle, may use now.

        Raises `NotFound` for one that it may not use, as for a missing one.
        """
        subject = pb.ResourceSubject(did=account["did"], name=account["name"])
        request = pb.GetResourceRequest(subject=subject, type=schema, ref=id, for_use=True)
        with calling(COORDINATOR):
            reply = self._stub.GetResource(request, timeout=SHORT_CALL_SECONDS)
        document: Json = json.loads(reply.json)
        return document
