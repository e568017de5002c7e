"""Runs of flows over gRPC, for commands and the HTTP server. Callers are trusted."""

import json
from typing import Final

import grpc

from odf_common.proto.odf.node.v1 import resources_pb2 as pb
from odf_common.proto.odf.node.v1.resources_pb2_grpc import FlowsServicer, add_FlowsServicer_to_server
from odf_common.resources.registry import FLOW
from odf_coordinator.resources.flows.flow_use_cases import FlowRuns
from odf_coordinator.resources.requests import RequestKey
from odf_coordinator.resources.resource_servicer import subject_of
from odf_coordinator.resources.use_cases import ResourceRef

NAME: Final = pb.DESCRIPTOR.services_by_name["Flows"].full_name


class FlowServicer(FlowsServicer):
    """Serves the runs of flows."""

    def __init__(self, runs: FlowRuns) -> None:
        """Serve use cases."""
        self._runs = runs

    def RunFlow(self, request: pb.FlowRunsRequest, _: grpc.ServicerContext) -> pb.FlowRunsReply:
        """Start runs now."""
        key = None
        if request.idempotency_key:
            key = RequestKey.read(request.idempotency_key, request.target.encode())
        started = self._runs.run_now(subject_of(request.subject), _flow_ref(request), request.target, key)
        return pb.FlowRunsReply(runs=[json.dumps(run, ensure_ascii=False).encode() for run in started])

    def ListFlowRuns(self, request: pb.FlowRunsRequest, _: grpc.ServicerContext) -> pb.FlowRunsReply:
        """Return the runs of a flow."""
        found = self._runs.runs(subject_of(request.subject), _flow_ref(request), request.target)
        return pb.FlowRunsReply(runs=[json.dumps(run, ensure_ascii=False).encode() for run in found])


def register(server: grpc.Server, servicer: FlowServicer) -> tuple[str, ...]:
    """Add the service to a server; returns its full name."""
    add_FlowsServicer_to_server(servicer, server)
    return (NAME,)


def _flow_ref(request: pb.FlowRunsRequest) -> ResourceRef:
    return ResourceRef(type=str(FLOW.uri), ref=request.flow, account=request.account)
