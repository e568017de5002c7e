"""Questions of the `odf` command to its node: a stub for each service, refused calls as errors people can read."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import grpc

from odf_common.adapters.grpc_client import RESTART, calling, reached
from odf_common.errors import OdfError
from odf_common.proto.odf.node.v1.coordinator_pb2_grpc import CoordinatorStub
from odf_common.proto.odf.node.v1.ingest_pb2 import StuckRequest
from odf_common.proto.odf.node.v1.ingest_pb2_grpc import IngestStub
from odf_common.proto.odf.node.v1.sync_pb2_grpc import SyncStub
from odf_common.proto.odf.node.v1.verifier_pb2_grpc import VerifierStub
from odf_common.runtime.node import Node, find_node
from odf_common.runtime.settings import load

ANSWER = 60.0  # seconds: deadline of a question that needs no long work
LOOK = 1.0  # seconds: deadline of what is shown only if it is there at once
WORK = 24 * 3600.0  # seconds: deadline of work that streams its progress


def this_node() -> Node:
    """Return the node of $ODF_HOME; raises `Unavailable`, with how to start one."""
    return find_node(load())


@contextmanager
def coordinator(node: Node | None = None, *, patience: float = RESTART) -> Iterator[CoordinatorStub]:
    """Open the coordinator; refusals inside come out as `OdfError`."""
    with _service(node, "coordinator", patience) as open_channel:
        yield CoordinatorStub(open_channel)


@contextmanager
def ingest(node: Node | None = None, *, patience: float = RESTART) -> Iterator[IngestStub]:
    """Open ingest."""
    with _service(node, "ingest", patience) as open_channel:
        yield IngestStub(open_channel)


def stuck_sources(node: Node) -> Mapping[str, str]:
    """Return why datasets' push sources do not go on, by dataset id; nothing while ingest cannot be reached."""
    try:
        with ingest(node, patience=0) as service:
            sources = service.Stuck(StuckRequest(), timeout=LOOK).sources
    except OdfError:
        return {}
    ids = dict.fromkeys(one.dataset_id for one in sources)
    return {name: "; ".join(one.why for one in sources if one.dataset_id == name) for name in ids}


@contextmanager
def verifier(node: Node | None = None) -> Iterator[VerifierStub]:
    """Open the verifier."""
    with _service(node, "verifier") as open_channel:
        yield VerifierStub(open_channel)


@contextmanager
def sync(node: Node | None = None) -> Iterator[SyncStub]:
    """Open sync."""
    with _service(node, "sync") as open_channel:
        yield SyncStub(open_channel)


@contextmanager
def _service(node: Node | None, name: str, patience: float = RESTART) -> Iterator[grpc.Channel]:
    address = (node or this_node()).address(name)
    with calling(name), reached(name, address, patience) as open_channel:
        yield open_channel
