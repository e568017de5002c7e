"""Downloads of objects: from this node, from a bucket by signed URLs, and after these have expired."""

import asyncio
import http.client
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest
import urllib3
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from odf_testing.builders import a_dataset, a_hash
from odf_testing.http import running
from odf_testing.memory_store import MemoryBlobStore, MemoryRefStore
from odf_testing.minioserver import ACCESS_KEY, SECRET_KEY, MinioServer, serving_s3
from odf_testing.sync_node import SyncNode

from odf_common.adapters.networks import Networks
from odf_common.errors import NotFound, OdfError
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import ObjectKind
from odf_common.service.settings import Settings
from odf_sync.access.remote_login import AccessDenied
from odf_sync.http.serve_pull import PullSource, _location, large_lists
from odf_sync.http.serve_push import PushTarget
from odf_sync.http.simple_protocol import MAX_FETCHED_OBJECTS, ObjectDownloads
from odf_sync.repositories import smart_dataset
from odf_sync.repositories.http_dataset import UnexpectedStatus, UrlExpired
from odf_sync.repositories.smart_dataset import SmartDataset
from odf_sync.smart import connection as smart_connection
from odf_sync.smart import messages as msg
from odf_sync.smart.channel import PeerClosed
from odf_sync.smart.connection import Connection, connect
from odf_sync.transfer import push_to_node
from odf_sync.transfer.push_source import Uploader

OBJECT = b"0123456789"
NAME = physical_hash_of(OBJECT)
PATIENCE_SECONDS = 10


class Slow:
    """A node whose store has to fetch all objects but blocks and `copied`, which takes until it is `released`."""

    def __init__(self, home: Path) -> None:
        self.node = SyncNode(home)
        self.node.add_cities()
        entry = self.node.catalog.by_alias("cities")
        assert entry is not None
        self.dataset = entry.dataset_id
        self.node.blobs.put(self.dataset, ObjectKind.DATA, NAME, OBJECT)
        self.copied: list[Multihash] = []
        self.fetched: list[Multihash] = []
        self.released = threading.Event()
        self._path = self.node.blobs.local_path

    def local_copy(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path | None:
        has_copy = kind is ObjectKind.BLOCK or name in self.copied
        return self._path(dataset, kind, name) if has_copy else None

    def local_path(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        if kind is not ObjectKind.BLOCK:
            self.fetched.append(name)
            assert self.released.wait(PATIENCE_SECONDS)
        return self._path(dataset, kind, name)

    def wait_for_fetches(self, number: int) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while len(self.fetched) < number:
            assert time.monotonic() < until, self.fetched
            time.sleep(0.01)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    slow = Slow(tmp_path / "home")
    monkeypatch.setattr(slow.node.blobs, "local_path", slow.local_path)
    monkeypatch.setattr(slow.node.blobs, "local_copy", slow.local_copy)
    yield slow
    slow.released.set()


def ask(base: str, method: str, path: str, seconds: float = 20) -> tuple[int, bytes, str | None]:
    """Return status, body and announced length."""
    with closing(http.client.HTTPConnection(urlsplit(base).netloc, timeout=seconds)) as connection:
        connection.request(method, f"/cities/{path}")
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("Content-Length")


def test_the_head_of_an_object_has_its_length_and_fetches_nothing(slow: Slow) -> None:
    with slow.node.served() as base:
        assert ask(base, "HEAD", f"data/{NAME}", 5) == (200, b"", str(len(OBJECT)))
        assert ask(base, "HEAD", f"data/{a_hash(1)}", 5)[0] == 404
        assert ask(base, "HEAD", f"checkpoints/{NAME}", 5)[0] == 404
    assert slow.fetched == []


def test_the_head_of_an_object_of_which_there_is_a_copy_is_that_of_its_body(slow: Slow) -> None:
    slow.copied.append(NAME)
    with slow.node.served() as base, closing(http.client.HTTPConnection(urlsplit(base).netloc)) as connection:

        def headers(method: str, **asked: str) -> tuple[int, dict[str, str]]:
            connection.request(method, f"/cities/data/{NAME}", headers=asked)
            answer = connection.getresponse()
            answer.read()
            return answer.status, {key.lower(): text for key, text in answer.getheaders() if key != "Date"}

        status, found = headers("HEAD")
        assert (status, found) == headers("GET")
        assert status == 200
        assert found["etag"] == f'"{NAME}"'
        assert found["accept-ranges"] == "bytes"
        assert headers("HEAD", Range="bytes=2-4") == headers("GET", Range="bytes=2-4")
        assert headers("HEAD", Range="bytes=2-4")[0] == 206
        unchanged = {"If-None-Match": found["etag"]}
        assert headers("HEAD", **unchanged)[0] == headers("GET", **unchanged)[0] == 304
    assert slow.fetched == []


def test_the_etag_of_an_object_is_its_hash_whenever_its_copy_was_used(slow: Slow) -> None:
    slow.copied.append(NAME)
    copy, tag = slow.local_copy(slow.dataset, ObjectKind.DATA, NAME), f'"{NAME}"'
    assert copy is not None
    other = '"' + str(a_hash(1)) + '"'
    with slow.node.served() as base:
        url = f"{base}/cities/data/{NAME}"
        for used in (0, time.time(), time.time() + 86400):
            os.utime(copy, (used, used))
            answer = urllib3.request("GET", url)
            assert (answer.status, answer.data, answer.headers["ETag"]) == (200, OBJECT, tag)
            assert "Last-Modified" not in answer.headers
            for known in (tag, f"W/{tag}", "*", f"{other}, {tag}"):
                same = urllib3.request("GET", url, headers={"If-None-Match": known})
                assert (same.status, same.data, same.headers["ETag"]) == (304, b"", tag)
            assert urllib3.request("GET", url, headers={"If-None-Match": other}).status == 200
            since = {"If-Modified-Since": "Fri, 31 Dec 2100 00:00:00 GMT"}
            assert urllib3.request("GET", url, headers=since).status == 200
            for wanted, status in ((tag, 200), ("*", 200), (other, 412), (f"W/{tag}", 412)):
                assert urllib3.request("GET", url, headers={"If-Match": wanted}).status == status
            assert partial(url, tag) == (206, OBJECT[4:])
            for outdated in (other, f"W/{tag}", "Fri, 31 Dec 2100 00:00:00 GMT"):
                assert partial(url, outdated) == (200, OBJECT)


def partial(url: str, condition: str) -> tuple[int, bytes]:
    answer = urllib3.request("GET", url, headers={"Range": "bytes=4-", "If-Range": condition})
    return answer.status, answer.data


def test_an_object_that_a_client_has_is_not_fetched(slow: Slow) -> None:
    with slow.node.served() as base:
        for method in ("GET", "HEAD"):
            known = {"If-None-Match": f'"{NAME}"'}
            answer = urllib3.request(method, f"{base}/cities/data/{NAME}", headers=known)
            assert (answer.status, answer.headers["ETag"]) == (304, f'"{NAME}"')
            missing = a_hash(1)
            known = {"If-None-Match": f'"{missing}"'}
            assert urllib3.request(method, f"{base}/cities/data/{missing}", headers=known).status == 404
        assert urllib3.request("HEAD", f"{base}/cities/data/{NAME}").headers["ETag"] == f'"{NAME}"'
    assert slow.fetched == []


def test_objects_that_are_fetched_slowly_delay_neither_references_nor_blocks_nor_copies(slow: Slow) -> None:
    head, copied = slow.node.head("cities"), physical_hash_of(b"copied")
    slow.node.blobs.put(slow.dataset, ObjectKind.DATA, copied, b"copied")
    slow.copied.append(copied)
    with slow.node.served() as base, ThreadPoolExecutor(64) as clients:
        names = [NAME, *map(a_hash, range(63))]
        objects = [clients.submit(ask, base, "GET", f"data/{name}") for name in names]
        slow.wait_for_fetches(MAX_FETCHED_OBJECTS)
        assert ask(base, "GET", "refs/head", 5)[:2] == (200, str(head).encode())
        assert ask(base, "GET", f"blocks/{head}", 5)[0] == 200
        assert ask(base, "GET", f"data/{copied}", 5)[:2] == (200, b"copied")
        assert ask(base, "HEAD", f"data/{NAME}", 5)[0] == 200
        assert len(slow.fetched) == MAX_FETCHED_OBJECTS
        slow.released.set()
        assert [one.result()[0] for one in objects] == [200, *[404] * 63]
    assert sorted(slow.fetched, key=str) == sorted(names, key=str)


def test_requests_for_one_object_share_its_fetch(slow: Slow) -> None:
    downloads = ObjectDownloads(slow.node.datasets.blobs)

    async def run() -> tuple[Path, ...]:
        requests = [
            asyncio.create_task(downloads.local_path(slow.dataset, ObjectKind.DATA, NAME)) for _ in range(20)
        ]
        await asyncio.to_thread(slow.wait_for_fetches, 1)
        requests.pop().cancel()  # its client has gone; the others still wait for it
        slow.released.set()
        return tuple(await asyncio.gather(*requests))

    paths = asyncio.run(run())
    assert [path.read_bytes() for path in paths] == [OBJECT] * 19
    assert slow.fetched == [NAME]


def test_an_object_is_requested_again_after_a_fetch_has_ended(slow: Slow) -> None:
    downloads, missing = ObjectDownloads(slow.node.datasets.blobs), a_hash(1)
    slow.released.set()

    async def run() -> None:
        for _ in range(2):
            with pytest.raises(NotFound):
                await downloads.local_path(slow.dataset, ObjectKind.DATA, missing)
        for kind in (ObjectKind.DATA, ObjectKind.CHECKPOINT):
            slow.node.blobs.put(slow.dataset, kind, missing, b"later")
            path = await downloads.local_path(slow.dataset, kind, missing)
            assert (path.parent.name, path.read_bytes()) == (kind.value, b"later")

    asyncio.run(run())
    assert slow.fetched == [missing] * 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    with serving_s3(tmp_path_factory.mktemp("minio")) as server:
        yield server


def node_in_bucket(home: Path, server: MinioServer, *, is_direct: bool) -> SyncNode:
    """Return a node with a dataset in a bucket."""
    place = server.new_bucket("team")
    environment = {
        "ODF_HOME": str(home),
        "ODF_STORE": f"s3+{server.endpoint}/{place.bucket}/{place.prefix}",
        "ODF_S3_ENDPOINT": server.endpoint,
        "ODF_S3_ACCESS_KEY": ACCESS_KEY,
        "ODF_S3_SECRET_KEY": SECRET_KEY,
        "ODF_S3_DIRECT_DOWNLOADS": "1" if is_direct else "0",
    }
    node = SyncNode(home, Settings.from_env(environment))
    node.add_cities(["Oslo", "Kyiv"], ["Lima"])
    return node


def puller(home: Path) -> SyncNode:
    """Return a node that connects to addresses of this machine, where the bucket is."""
    return SyncNode(home, Settings.from_env({"ODF_HOME": str(home), "ODF_FETCH_NETWORKS": "127.0.0.0/8"}))


@pytest.mark.parametrize("is_direct", [True, False])
def test_objects_come_from_the_bucket_by_an_exchange_if_it_is_so_configured(
    tmp_path: Path, server: MinioServer, monkeypatch: pytest.MonkeyPatch, is_direct: bool
) -> None:
    """Otherwise the pack and the objects of the Simple protocol take fewer round trips."""
    there, here = node_in_bucket(tmp_path / "there", server, is_direct=is_direct), puller(tmp_path / "here")
    served, opened = [], []
    answer = ObjectDownloads.answer

    async def noting(*arguments: object) -> object:
        served.append(arguments)
        return await answer(*arguments)  # type: ignore[arg-type]

    def connecting(*arguments: object) -> object:
        opened.append(arguments[0])
        return connect(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ObjectDownloads, "answer", noting)
    monkeypatch.setattr(smart_dataset, "connect", connecting)
    with there.served() as base:
        *_, last = here.pull(f"odf+{base}/cities", "cities")

    assert last.state == "updated"
    assert opened == ([f"{base}/cities/pull"] if is_direct else [])
    assert here.content("cities") == there.content("cities")
    kinds = {arguments[3] for arguments in served}
    assert (ObjectKind.DATA in kinds) is not is_direct


def test_objects_are_read_without_the_exchange_if_it_has_ended(
    tmp_path: Path, server: MinioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may have ended it for another one, while it seemed idle."""
    there, here = node_in_bucket(tmp_path / "there", server, is_direct=True), puller(tmp_path / "here")
    expect = Connection.expect

    def ended(connection: Connection, kind: type[msg.Message]) -> msg.Message:
        if kind is msg.DownloadsReply:
            raise PeerClosed(close_code=1013, reason="idle")
        return expect(connection, kind)

    monkeypatch.setattr(Connection, "expect", ended)
    with there.served() as base:
        *_, last = here.pull(f"odf+{base}/cities", "cities")
    assert last.state == "updated"
    assert here.content("cities") == there.content("cities")


def test_a_presigned_url_opens_one_object_of_a_private_bucket(tmp_path: Path, server: MinioServer) -> None:
    node = node_in_bucket(tmp_path, server, is_direct=True)
    entry = node.catalog.by_alias("cities")
    assert entry is not None
    first, second = node.blobs.names(entry.dataset_id, ObjectKind.DATA)
    given = node.blobs.download_url(entry.dataset_id, ObjectKind.DATA, first)
    assert given is not None
    url = given.url

    with urlopen(url) as answer:
        assert answer.read() == node.blobs.read(entry.dataset_id, ObjectKind.DATA, first)
    for other in (url.replace(str(first), str(second)), url.partition("?")[0]):
        with pytest.raises(HTTPError) as refused:
            urlopen(other)
        assert refused.value.code == 403
        refused.value.close()


def download_of(node: SyncNode) -> msg.TransferUrl:
    """Return where a client with a token is told to fetch an object."""
    entry, head = node.catalog.by_alias("cities"), node.head("cities")
    assert entry is not None
    assert head is not None
    request = make_mocked_request("GET", "/cities/pull", headers={"Authorization": "Bearer secret"})
    source = PullSource(
        blobs=node.blobs,
        public_url=None,
        dataset=entry.dataset_id,
        head=head,
        lists=large_lists(),
    )
    (name, _) = node.blobs.names(entry.dataset_id, ObjectKind.DATA)
    size = node.blobs.size(entry.dataset_id, ObjectKind.DATA, name)
    file = msg.ObjectFile(object_type=msg.ObjectType.DATA_SLICE, physical_hash=name, size=size)
    return _location(source, request, file)


def test_a_bucket_gets_no_token_of_the_client(tmp_path: Path, server: MinioServer) -> None:
    node = node_in_bucket(tmp_path, server, is_direct=True)
    download = download_of(node)
    assert download.url.startswith(server.endpoint)
    assert download.headers == ()


def test_the_time_at_which_a_url_of_a_bucket_expires_is_that_which_the_url_has(
    tmp_path: Path, server: MinioServer
) -> None:
    node = node_in_bucket(tmp_path, server, is_direct=True)
    download = download_of(node)
    signed = parse_qs(urlsplit(download.url).query)
    begin = datetime.strptime(signed["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    end = begin + timedelta(seconds=int(signed["X-Amz-Expires"][0]))
    assert end - begin == timedelta(hours=1)
    assert download.expires_at == str(Timestamp.from_datetime(end))
    assert begin <= datetime.now(UTC) < begin + timedelta(minutes=1)


LOOPBACK = Networks.parse(("127.0.0.0/8",))
PAST, FUTURE = "2020-01-01T12:00:00.123456789Z", "2999-01-01T12:00:00+02:00"
SENT = b"object"
SENT_NAME = physical_hash_of(SENT)


@pytest.mark.parametrize("limit", [("EXPIRING_LISTED", 1), ("EXPIRING_BYTES", 1)])
@pytest.mark.parametrize(("continues", "lists"), [(msg.CONTINUES_HEADER, 1), ("no node sends it", 3)])
def test_a_node_of_another_kind_is_sent_short_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: tuple[str, int], continues: str, lists: int
) -> None:
    monkeypatch.setattr(push_to_node, *limit)
    names = vars(msg) | {"CONTINUES_HEADER": continues}
    monkeypatch.setattr(smart_connection, "msg", SimpleNamespace(**names))
    here, there = SyncNode(tmp_path / "here"), SyncNode(tmp_path / "there")
    here.add_cities(["Kyiv", "Osaka"], ["Quito"], ["Accra", "Turin", "Lima"])
    asked: list[int] = []
    uploads = PushTarget.uploads

    def noted(
        target: PushTarget, request: web.Request, dataset: DatasetId, files: tuple[msg.ObjectFile, ...]
    ) -> msg.UploadsReply:
        asked.append(len(files))
        return uploads(target, request, dataset, files)

    monkeypatch.setattr(PushTarget, "uploads", noted)
    with there.served() as base:
        *_, last = here.push("cities", f"odf+{base}/cities")
    assert (last.state, there.content("cities")) == ("updated", here.content("cities"))
    assert len(asked) == lists
    assert sum(asked) == 3


def test_a_list_has_so_many_objects_and_bytes() -> None:
    def sizes_in(*sizes: int) -> list[list[int]]:
        files = [
            msg.ObjectFile(object_type=msg.ObjectType.DATA_SLICE, physical_hash=a_hash(str(size)), size=size)
            for size in sizes
        ]
        return [[file.size for file in part] for part in push_to_node._lists(files, may_expire=True)]

    most, half = push_to_node.EXPIRING_BYTES, push_to_node.EXPIRING_BYTES // 2
    assert sizes_in() == [[]]
    assert sizes_in(half, half, 1) == [[half, half], [1]]
    assert sizes_in(most + 1, 1, most) == [[most + 1], [1], [most]]
    assert [len(part) for part in sizes_in(*[1] * 2001)] == [1000, 1000, 1]


def refusing() -> web.Application:
    async def refuse(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=403)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    return app


def pull(url: str, given: msg.TransferUrl) -> None:
    there = SmartDataset(f"odf+{url}/cities", None, LOOPBACK)
    there._urls[ObjectKind.DATA, SENT_NAME] = given
    there.fetch(ObjectKind.DATA, SENT_NAME, BytesIO(), 100)


def push(url: str, given: msg.TransferUrl) -> None:
    blobs, dataset = MemoryBlobStore(MemoryRefStore()), a_dataset()
    blobs.put(dataset, ObjectKind.DATA, SENT_NAME, SENT)
    file = msg.ObjectFile(object_type=msg.ObjectType.DATA_SLICE, physical_hash=SENT_NAME, size=len(SENT))
    upload = msg.Upload(object_file=file, push_strategy=msg.PushStrategy.HTTP_UPLOAD, upload_to=given)
    Uploader(blobs, dataset, f"{url}/cities", LOOPBACK).send(upload)


@pytest.mark.parametrize(
    ("transfer", "expires_at", "error"),
    [
        (pull, PAST, UrlExpired),
        (push, PAST, UrlExpired),
        (pull, FUTURE, AccessDenied),
        (push, FUTURE, UnexpectedStatus),
        (pull, None, AccessDenied),
        (push, "next week", UnexpectedStatus),
    ],
)
def test_an_object_whose_url_has_expired_says_so_if_the_node_does_not_take_or_send_it(
    transfer: Callable[[str, msg.TransferUrl], None], expires_at: str | None, error: type[OdfError]
) -> None:
    with running(refusing()) as url, running(refusing()) as store, pytest.raises(error) as refused:
        transfer(url, msg.TransferUrl(url=f"{store}/object?signature=secret", expires_at=expires_at))
    if error is UrlExpired:
        assert str(refused.value) == f"{store}/object was valid until {PAST}, and the transfer took longer"
        assert "again" in refused.value.advice()
