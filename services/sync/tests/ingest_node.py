"""A node's routes for pushes on real sockets, and a gRPC server in place of ingest."""

import http.client
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from odf_testing.builders import a_dataset
from odf_testing.http import running

from odf_common.adapters.grpc.server import GrpcServer, serve
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.process_files import Staging
from odf_common.errors import NotFound
from odf_common.ports.store import CatalogEntry
from odf_common.proto.odf.node.v1 import push_pb2 as pb
from odf_common.proto.odf.node.v1 import push_pb2_grpc
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.ingest_client import IngestClient
from odf_sync.http.ingest_routes import IngestRoutes

DATASET = a_dataset()
MAX_BYTES = 1_000_000
RECEIPT = "a" * 32


@dataclass
class Ingest(push_pb2_grpc.PushServicer):
    """Accepts staged files, and settles them with `outcome`."""

    staging: Staging
    outcome: dict[str, Any] = field(default_factory=lambda: {"state": "committed", "records": 1, "head": "h"})
    refusal: Exception | None = None
    requests: list[pb.PushRequest] = field(default_factory=list)
    batches: list[bytes] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    """Of the next calls of `Show`."""
    may_settle: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_settle.set()

    def Check(self, request: pb.PushRequest, context: Any) -> pb.PushTarget:  # noqa: N802
        if self.refusal is not None:
            raise self.refusal
        return pb.PushTarget(dataset_id=request.ref, source_name=request.source_name)

    def Accept(self, request: pb.PushRequest, context: Any) -> pb.PushReceipt:  # noqa: N802
        self.requests.append(request)
        self.batches.append(self.staging.path(request.staged).read_bytes())
        return pb.PushReceipt(id=RECEIPT, source_name="default", state="accepted", size=1)

    def Show(self, request: pb.ShowPushRequest, context: Any) -> pb.PushReceipt:  # noqa: N802
        if request.receipt != RECEIPT:
            raise NotFound(what=f"receipt {request.receipt}")
        self.waits.append(request.wait_ms)
        if self.failures:
            raise self.failures.pop(0)
        is_settled = self.may_settle.wait(request.wait_ms / 1000) and (request.wait_ms or len(self.waits) > 1)
        outcome = self.outcome if is_settled else {"state": "accepted"}
        return pb.PushReceipt(id=RECEIPT, source_name="default", **outcome)


@dataclass
class Here:
    """The server, and its fake ingest."""

    base: str
    ingest: Ingest
    home: Path
    server: GrpcServer
    catalog: LocalCatalog
    directory: Directory
    client: IngestClient

    def ask(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, Any], http.client.HTTPMessage]:
        connection = http.client.HTTPConnection(self.base.removeprefix("http://"), timeout=20)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}"), answer.headers
        finally:
            connection.close()

    def post(
        self, body: Any = b"x", path: str = "/orders/ingest", **headers: str
    ) -> tuple[int, dict[str, Any]]:
        return self.ask("POST", path, body, **headers)[:2]

    def staged(self) -> list[Path]:
        return list((self.home / "staging").iterdir())


@pytest.fixture
def make_here(tmp_path: Path) -> Iterator[Any]:
    running_ones = []

    def make(
        who: str = "loopback",
        public_url: str | None = None,
        *,
        name: str = "orders",
        is_multi_tenant: bool = False,
    ) -> Here:
        catalog = LocalCatalog(tmp_path)
        catalog.add(CatalogEntry(alias=name, dataset_id=DATASET))
        ingest = Ingest(Staging(tmp_path))
        server = serve("127.0.0.1:0", registering(ingest))
        client = IngestClient(f"127.0.0.1:{server.port}", timeout=2.0)
        routes = IngestRoutes(
            ingest=client,
            staging=Staging(tmp_path),
            max_bytes=MAX_BYTES,
            public_url=public_url,
        )
        directory = Directory(AccessStore(tmp_path), is_multi_tenant=is_multi_tenant)
        authorizer = Authorizer(catalog=catalog, local_writers=who, directory=directory)
        context = running(application(authorizer, routes.endpoints()))
        running_ones.append((context, server))
        return Here(context.__enter__(), ingest, tmp_path, server, catalog, directory, client)

    yield make
    for context, server in running_ones:
        context.__exit__(None, None, None)
        server.stop(0)


@pytest.fixture
def here(make_here: Any) -> Here:
    found: Here = make_here()
    return found


def registering(ingest: Ingest) -> Any:
    def register(server: Any) -> tuple[str, ...]:
        push_pb2_grpc.add_PushServicer_to_server(ingest, server)
        return ("odf.node.v1.Push",)

    return register
