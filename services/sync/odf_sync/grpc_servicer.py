"""Copies of datasets over gRPC."""

import threading
from collections.abc import Iterator

import grpc

from odf_common.adapters.grpc.comparison import encode_comparison
from odf_common.proto.odf.node.v1 import sync_pb2 as pb
from odf_common.proto.odf.node.v1 import sync_pb2_grpc
from odf_common.proto.odf.node.v1.coordinator_pb2 import Comparison
from odf_common.service.environment import Environment
from odf_common.service.request_reply import Replies
from odf_sync.simple import Step, compare, pull


def register(server: grpc.Server, env: Environment, replies: Replies) -> tuple[str, ...]:
    """Serve copies; return the names of the gRPC services."""
    sync_pb2_grpc.add_SyncServicer_to_server(Servicer(env, replies), server)
    return (pb.DESCRIPTOR.services_by_name["Sync"].full_name,)


class Servicer(sync_pb2_grpc.SyncServicer):
    """Serves `Pull` and `Compare`; copies of one dataset run one at a time."""

    def __init__(self, env: Environment, replies: Replies) -> None:
        """Copy into this node."""
        self._env = env
        self._replies = replies
        self._busy: dict[str, threading.Lock] = {}

    def Pull(self, request: pb.SyncPullRequest, context: grpc.ServicerContext) -> Iterator[pb.SyncPullItem]:
        """Copy a dataset, and stream the progress."""
        with self._busy.setdefault(request.alias or request.url, threading.Lock()):
            for step in pull(self._env, self._replies, request.url, request.alias):
                if not context.is_active():
                    return
                yield _message(step)

    def Compare(self, request: pb.SyncCompareRequest, context: grpc.ServicerContext) -> Comparison:
        """Compare a local dataset with one in a repository."""
        return encode_comparison(*compare(self._env, request.ref, request.url))


def _message(step: Step) -> pb.SyncPullItem:
    return pb.SyncPullItem(
        alias=step.alias,
        state=step.state,
        done=step.done,
        total=step.total,
        head="" if step.head is None else str(step.head),
        new_blocks=step.new_blocks,
        new_records=step.new_records,
    )
