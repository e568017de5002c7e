"""Calls the coordinator for resources, and turns its errors into answers (RFC 9457)."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
from aiohttp import web

from odf_common.adapters.grpc.client import channel, error_of
from odf_common.adapters.grpc.peer_credentials import PeerCredentials
from odf_common.errors import OdfError
from odf_common.proto.odf.node.v1 import resources_pb2 as pb
from odf_common.proto.odf.node.v1.resources_pb2_grpc import FlowsStub, ResourcesStub
from odf_sync.http.endpoints import UNAVAILABLE

CALL_SECONDS: Final = 30.0
PROBLEM_TYPE: Final = "application/problem+json"
JSON_MERGE_PATCH: Final = "application/merge-patch+json"
Json = dict[str, Any]
# By the code of an error; every other code of a manifest's error is 422.
STATUSES: Final = {
    "InvalidYaml": 400,
    "Unauthenticated": 401,
    "Forbidden": 403,
    "NotGrantable": 403,
    "NotFound": 404,
    "ResourceNotFound": 404,
    "ResourceGone": 404,
    "UnknownType": 404,
    "NameConflict": 409,
    "IdentityMismatch": 409,
    "BeingDeleted": 409,
    "AmbiguousReference": 409,
    "AlreadyApplied": 409,
    "ResourceInUse": 409,
    "AccountNeeded": 409,
    "NoSuchTarget": 409,
    "RevisionMoved": 409,
    "PositionUnknown": 410,
    "RequestKeyReused": 422,
    "PreconditionFailed": 412,
    "TooLarge": 413,
    "UnsupportedMediaType": 415,
}
_OF_GRPC: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 503,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 503,
}


class ResourceProblem(OdfError):
    """A request about resources that is refused, with its answer."""

    status: int
    error: str
    """Name of the error."""
    text: str
    hint: str = ""
    problems: tuple[Json, ...] = ()
    """The errors of manifests, with their places."""

    def response(self) -> web.Response:
        """Return the answer."""
        body: Json = {"status": self.status, "title": self.text, "code": self.error, "hint": self.hint}
        shown = {key: value for key, value in body.items() if value}
        if self.problems:
            shown["errors"] = list(self.problems)
        text = json.dumps(shown, ensure_ascii=False)
        return web.Response(status=self.status, text=text, content_type=PROBLEM_TYPE)


def invalid_manifests(problems: list[Json]) -> ResourceProblem:
    """Return the answer to a batch that was refused: the status of its first error."""
    first = problems[0]
    return ResourceProblem(
        status=STATUSES.get(first["code"], 422) if first["code"] != "UnknownType" else 422,
        error=first["code"],
        text=f"{len(problems)} errors; nothing was changed" if len(problems) > 1 else first["message"],
        problems=tuple(problems),
    )


Method = Callable[..., Any]  # of generated code, which is not typed


class ResourceClient:
    """A client of the coordinator's resources; thread-safe."""

    def __init__(self, address: str, credentials: PeerCredentials = None) -> None:
        """Connect on the first call."""
        opened = channel(address, credentials)
        self._stub, self._flows = ResourcesStub(opened), FlowsStub(opened)

    def apply(self, request: pb.ApplyResourcesRequest) -> list[Json]:
        """Return the results of a batch; raises `ResourceProblem`."""
        reply: pb.ApplyResourcesReply = self._call(self._stub.ApplyResources, request)
        if reply.problems:
            raise invalid_manifests(json.loads(reply.problems))
        results: list[Json] = json.loads(reply.results)
        return results

    def get(self, request: pb.GetResourceRequest) -> pb.ResourceReply:
        """Return a resource; raises `ResourceProblem`."""
        reply: pb.ResourceReply = self._call(self._stub.GetResource, request)
        return reply

    def find(self, request: pb.ListResourcesRequest) -> pb.ListResourcesReply:
        """Return a page of resources; raises `ResourceProblem`."""
        reply: pb.ListResourcesReply = self._call(self._stub.ListResources, request)
        return reply

    def delete(self, request: pb.DeleteResourceRequest) -> pb.ResourceReply:
        """Request a deletion; raises `ResourceProblem`."""
        reply: pb.ResourceReply = self._call(self._stub.DeleteResource, request)
        return reply

    def rename(self, request: pb.RenameResourceRequest) -> pb.ResourceReply:
        """Give a resource another name; raises `ResourceProblem`."""
        reply: pb.ResourceReply = self._call(self._stub.RenameResource, request)
        return reply

    def reconcile(self, request: pb.GetResourceRequest) -> pb.ResourceReply:
        """Request another attempt; raises `ResourceProblem`."""
        reply: pb.ResourceReply = self._call(self._stub.ReconcileResource, request)
        return reply

    def types(self) -> pb.ListResourceTypesReply:
        """Return the types that the node knows."""
        reply: pb.ListResourceTypesReply = self._call(
            self._stub.ListResourceTypes, pb.ListResourceTypesRequest()
        )
        return reply

    def add_types(self, request: pb.AddResourceTypesRequest) -> pb.ListResourceTypesReply:
        """Register types; raises `ResourceProblem`."""
        reply: pb.ListResourceTypesReply = self._call(self._stub.AddResourceTypes, request)
        return reply

    def run_flow(self, request: pb.FlowRunsRequest) -> list[Json]:
        """Start runs of a flow, and return them; raises `ResourceProblem`."""
        return [json.loads(run) for run in self._call(self._flows.RunFlow, request).runs]

    def flow_runs(self, request: pb.FlowRunsRequest) -> list[Json]:
        """Return the runs of a flow; raises `ResourceProblem`."""
        return [json.loads(run) for run in self._call(self._flows.ListFlowRuns, request).runs]

    def history(self, request: pb.GetResourceRequest) -> list[pb.ResourceEventMessage]:
        """Return the events of a resource; raises `ResourceProblem`."""
        try:
            return [*self._stub.ShowHistory(request, timeout=CALL_SECONDS)]
        except grpc.RpcError as error:
            raise _problem(error) from error

    def watch(self, request: pb.WatchResourcesRequest) -> "Watched":
        """Return a stream of changes, which has to be cancelled; raises `ResourceProblem` if it cannot begin."""
        call: Any = self._stub.WatchResources(request)
        if not call.initial_metadata():  # it was refused
            raise _problem(call)
        watched: Watched = call
        return watched

    def _call(self, method: Method, request: object) -> Any:
        try:
            return method(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise _problem(error) from error


Watched = Iterator[pb.ResourceEventMessage]


def _problem(error: grpc.RpcError) -> ResourceProblem:
    failure, code = error_of(error, "the coordinator"), error.code()
    status = STATUSES.get(failure.code) or _OF_GRPC.get(code, 500)
    if status >= 500:
        return ResourceProblem(status=status, error=failure.code, text=UNAVAILABLE)
    return ResourceProblem(status=status, error=failure.code, text=str(failure), hint=failure.advice())
