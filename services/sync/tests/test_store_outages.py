"""While the store is unreachable, each route that needs it responds 503 with Retry-After, and recovers automatically."""

import http.client
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest
import urllib3
from odf_testing.http import running
from odf_testing.minioserver import ACCESS_KEY, SECRET_KEY, MinioServer, serving_s3
from odf_testing.small_disk import small_disk
from odf_testing.sync_node import SyncNode

from odf_common.adapters.s3 import bucket
from odf_common.errors import Unavailable
from odf_common.hashing.multihash import physical_hash_of
from odf_common.identity.keys import generate
from odf_common.ports.clock import Backoff
from odf_common.ports.store import ObjectKind
from odf_common.service.settings import Settings
from odf_sync.http import endpoints as http_endpoints
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.head_events import HeadWatch
from odf_sync.http.ingest_client import IngestClient
from odf_sync.http.resource_client import ResourceClient
from odf_sync.http.server import Peers, endpoints
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import write_archive
from odf_sync.smart.connection import connect
from odf_sync.smart.exchange import PULL, PUSH, TransferRefused
from odf_sync.transfer.local_copy import Step

pytestmark = pytest.mark.waits

NEW: Final = b"an object that is not here yet"
LATER: Final = (503, "5")
UPGRADE: Final = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    msg.VERSION_HEADER: str(msg.VERSION),
}
# Routes that need no store of blocks: of no dataset, or passed on; event streams are tried on their own.
OTHERS: Final = {
    *("/info", "/assets/runtime-config.json", "/accounts/me", "/datasets/{id}", "/platform/token/validate"),
    *("/platform/login", "/platform/token/device/authorization", "/platform/token/device", "/v/login"),
    *("/openapi.json", "/ingest", "/ingest/{receipt}", "/archives/{name}", "/events"),
    *("/query", "/verify", "/.well-known/odf-jwks.json", "/schemas/{context}/{version}/{name}"),
}
# Those of resources, which the coordinator has in a database.
OF_RESOURCES: Final = ("/{context}/", "/graphql", "/flow/", "/resource/", "/source/")
Fault = Callable[[MinioServer], AbstractContextManager[None]]


class Node:
    """A node that stores in a bucket, with a dataset of a few blocks and slices."""

    def __init__(self, home: Path, server: MinioServer) -> None:
        environment = {
            "ODF_HOME": str(home),
            "ODF_STORE": str(server.new_bucket("node")),
            "ODF_S3_ACCESS_KEY": ACCESS_KEY,
            "ODF_S3_SECRET_KEY": SECRET_KEY,
            "ODF_INGEST_GRPC": "127.0.0.1:1",
        }
        self.home = home
        self.node = SyncNode(home, Settings.from_env(environment))
        self.node.add_cities(["Kyiv", "Osaka"], ["Quito"])
        self.node.sign("cities", generate())
        entry = self.node.catalog.by_alias("cities")
        assert entry is not None
        (self.slice, *_) = self.node.blobs.names(entry.dataset_id, ObjectKind.DATA)
        self.entry, self.head = entry, self.node.head("cities")
        self.heads = HeadWatch()
        self.authorizer = Authorizer(catalog=self.node.catalog, local_writers="loopback")
        self.served = tuple(
            endpoints(
                self.node.datasets,
                self.node.settings,
                self.authorizer,
                self.node.replies,
                self.heads,
                peers=Peers(
                    ingest=IngestClient(self.node.settings.required("ingest_grpc")),
                    resources=ResourceClient(self.node.settings.required("ingest_grpc")),
                ),
            )
        )
        self.base = ""

    def requests(self) -> dict[tuple[str, str], tuple[str, bytes | None, dict[str, str]]]:
        """Return, by method and route, a request that needs the store."""
        block, data, new = self.head, self.slice, physical_hash_of(NEW)
        return {
            ("GET", "/datasets"): ("/datasets", None, {}),
            ("GET", "/refs/{ref}"): ("/cities/refs/head", None, {}),
            ("GET", "/blocks/{name}"): (f"/cities/blocks/{block}", None, {}),
            ("GET", "/data/{name}"): (f"/cities/data/{data}", None, {"Range": "bytes=1-5"}),
            ("GET", "/checkpoints/{name}"): (f"/cities/checkpoints/{data}", None, {}),
            ("GET", "/packs/{name}"): (f"/cities/packs/{block}", None, {}),
            ("GET", "/signatures/{name}"): (f"/cities/signatures/{block}", None, {}),
            ("GET", "/signature-packs/{name}"): (f"/cities/signature-packs/{block}", None, {}),
            ("GET", "/tail"): ("/cities/tail", None, {}),
            ("GET", "/metadata"): ("/cities/metadata", None, {}),
            ("GET", "/pull"): ("/cities/pull", None, UPGRADE),
            ("GET", "/push"): ("/cities/push", None, UPGRADE),
            ("PUT", "/data/{name}"): (f"/cities/data/{new}", NEW, {}),
            ("PUT", "/checkpoints/{name}"): (f"/cities/checkpoints/{new}", NEW, {}),
        }

    def ask(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, str | None]:
        connection = http.client.HTTPConnection(self.base, timeout=30)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            if answer.status != http.client.SWITCHING_PROTOCOLS:
                answer.read()
            return answer.status, answer.getheader("Retry-After")
        finally:
            connection.close()

    def forget_copies(self) -> None:
        """Remove the copies of recently read or stored objects."""
        shutil.rmtree(self.home / "cache", ignore_errors=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time out early; a node does so after some 20 s."""
    monkeypatch.setattr(bucket, "REQUEST_BACKOFF", Backoff(first=0.001, most=0.001))
    monkeypatch.setattr(bucket, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(bucket, "TIMEOUT", urllib3.Timeout(connect=2, read=2))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with serving_s3(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture
def node(quick: None, server: MinioServer, tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "home", server)
    with running(application(node.authorizer, node.served)) as base:
        node.base = base.removeprefix("http://")
        yield node


@contextmanager
def stopped(server: MinioServer) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


FAULTS: Final[dict[str, Fault]] = {"stopped": stopped, "silent": MinioServer.paused}


def test_every_route_is_covered_or_needs_no_store(node: Node) -> None:
    served = {
        (one.method, one.path)
        for one in node.served
        if one.path not in OTHERS and not one.path.startswith(OF_RESOURCES)
    }
    assert served == node.requests().keys()


@pytest.mark.parametrize("fault", FAULTS)
def test_each_route_responds_with_retry_after_and_then_serves(
    node: Node, server: MinioServer, fault: str
) -> None:
    def answers(at_once: int) -> dict[tuple[str, str], tuple[int, str | None]]:
        node.forget_copies()
        requests = node.requests()
        requests |= {
            ("HEAD", route): request
            for (method, route), request in requests.items()
            if method == "GET" and request[2] is not UPGRADE
        }
        with ThreadPoolExecutor(at_once) as pool:
            asked = pool.map(lambda key: node.ask(key[0], *requests[key]), requests)
            return dict(zip(requests, asked, strict=True))

    with FAULTS[fault](server):
        found = answers(at_once=len(node.served))  # each waits until a silent store is given up
    assert found == dict.fromkeys(found, LATER)
    recovered = answers(at_once=1)
    statuses = {key: status for key, (status, _) in recovered.items()}
    assert {key: one for key, one in statuses.items() if one != 200} == {
        ("GET", "/data/{name}"): 206,
        ("HEAD", "/data/{name}"): 206,
        ("GET", "/checkpoints/{name}"): 404,
        ("HEAD", "/checkpoints/{name}"): 404,
        ("GET", "/pull"): 101,
        ("GET", "/push"): 101,
    }


def test_copies_are_served_meanwhile(node: Node, server: MinioServer) -> None:
    path = f"/cities/data/{node.slice}"
    assert node.ask("GET", path, None, {}) == (200, None)
    with stopped(server):
        assert node.ask("GET", path, None, {}) == (200, None)
        assert node.ask("HEAD", path, None, {}) == (200, None)
        assert node.ask("GET", "/info", None, {}) == (200, None)


def test_an_upload_during_an_outage_is_kept_and_stored_afterwards_without_being_sent_again(
    node: Node, server: MinioServer
) -> None:
    hashed = physical_hash_of(NEW)
    path = f"/cities/data/{hashed}"
    with stopped(server):
        assert node.ask("PUT", path, NEW, {}) == LATER
    assert node.ask("PUT", path, b"", {"Content-Range": f"bytes */{len(NEW)}"}) == (200, None)
    assert node.node.blobs.read(node.entry.dataset_id, ObjectKind.DATA, hashed) == NEW


def test_an_event_stream_ends_so_that_its_client_connects_again(node: Node, server: MinioServer) -> None:
    with stopped(server):
        # A browser would never connect again after another status.
        assert node.ask("GET", "/cities/events", None, {}) == (200, None)


@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_our_client_is_asked_to_retry_and_then_succeeds(
    node: Node, server: MinioServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transfer: str
) -> None:
    monkeypatch.setattr(http_endpoints, "RETRY_AFTER_SECONDS", 1)  # which the client waits, four times
    other = SyncNode(tmp_path / "other")
    url = f"odf+http://{node.base}/cities"
    if transfer == "push":
        other.pull(url, "cities")
    node.forget_copies()

    def run() -> list[Step]:
        return other.pull(url, "cities") if transfer == "pull" else other.push("cities", url)

    with stopped(server), pytest.raises(Unavailable):
        run()
    assert run()[-1].head == node.head


def test_an_exchange_ends_with_a_reason(node: Node, server: MinioServer) -> None:
    assert node.head is not None
    base = f"http://{node.base}/cities"
    with connect(f"{base}/pull", PULL, {}) as connection, stopped(server):
        node.forget_copies()
        connection.send(msg.PullRequest(force_update_if_diverged=False))
        with pytest.raises(TransferRefused, match="the node cannot reach its store"):
            connection.expect(msg.PullAccepted)
    raw = node.node.blobs.read(node.entry.dataset_id, ObjectKind.BLOCK, node.head)
    out = BytesIO()
    write_archive([(node.head, raw)], out)
    object_file = msg.ObjectFile(
        object_type=msg.ObjectType.DATA_SLICE, physical_hash=physical_hash_of(NEW), size=1
    )
    with connect(f"{base}/push", PUSH, {}) as connection:
        connection.send(
            msg.PushRequest(
                current_head=node.head,
                transfer_plan=msg.TransferPlan(num_blocks=1, bytes_in_raw_blocks=len(raw)),
                force_update_if_diverged=False,
                visibility_for_created_dataset=msg.DatasetVisibility.PUBLIC,
            )
        )
        connection.expect(msg.PushAccepted)
        connection.send(msg.NewBlocks(new_blocks=msg.BlocksBatch(num_blocks=1, payload=out.getvalue())))
        connection.expect(msg.BlocksAccepted)
        with stopped(server):
            connection.send(msg.UploadsRequest(object_files=(object_file,), is_truncated=False))
            with pytest.raises(TransferRefused, match="the node cannot reach its store"):
                connection.expect(msg.UploadsReply)
    assert node.node.head("cities") == node.head


def test_an_upload_to_a_full_disk_gets_retry_after(node: Node) -> None:
    large, small = (
        bytes(4 << 20),
        bytes(64 << 10),
    )  # more than sockets hold, and what a busy store takes in time
    path, other = (f"/cities/data/{physical_hash_of(one)}" for one in (large, small))
    with small_disk(node.home / "uploads", size="1m"):
        assert node.ask("PUT", path, large, {}) == LATER
    assert node.ask("PUT", other, small, {}) == (200, None)


def test_a_copy_that_cannot_be_opened_is_not_reported_as_missing(node: Node) -> None:
    path = f"/cities/data/{node.slice}"
    assert node.ask("GET", path, None, {}) == (200, None)
    (copy,) = (node.home / "cache").glob(f"**/{node.slice}")
    copy.unlink()
    copy.symlink_to(copy.name)  # its own target
    status, _ = node.ask("GET", path, None, {})
    assert status == 500
