"""Requests that other nodes can cause this one to send: no token leaves its origin, no private address is reached."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import pytest
import urllib3
from aiohttp import web
from odf_testing.builders import a_dataset
from odf_testing.http import running
from odf_testing.memory_store import MemoryBlobStore, MemoryRefStore
from odf_testing.sync_node import SyncNode

from odf_common.adapters.networks import PUBLIC, AddressForbidden, Networks
from odf_common.errors import InvalidInput, Unavailable
from odf_common.hashing.multihash import physical_hash_of
from odf_common.ports.store import ObjectKind
from odf_common.service.settings import Settings
from odf_sync.repositories.http_dataset import HttpDataset, UnexpectedStatus
from odf_sync.repositories.node_client import NodeClient, _redirect_target
from odf_sync.repositories.smart_dataset import SmartDataset
from odf_sync.smart import messages as msg
from odf_sync.smart.connection import connect
from odf_sync.smart.exchange import PULL
from odf_sync.transfer.push_source import INCOMPLETE, LOST, WRONG_OFFSET, File, Uploader, at_a_time

LOOPBACK = Networks.parse(("127.0.0.0/8",))
LOCALHOST = Networks.parse(("127.0.0.0/8", "::1/128"))
TOKEN = "Bearer secret"
PATIENCE_SECONDS = 5.0


@dataclass(slots=True)
class Server:
    """Answers all requests, by redirects if it has any."""

    url: str = ""
    redirects: dict[str, str] = field(default_factory=dict)
    tokens: list[str | None] = field(default_factory=list)
    types: list[list[str]] = field(default_factory=list)
    """The values of `Content-Type` in each request."""
    bodies: list[bytes] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        self.types.append(request.headers.getall("Content-Type", []))
        self.tokens.append(request.headers.get("Authorization"))
        self.bodies.append(await asyncio.wait_for(request.read(), PATIENCE_SECONDS))
        target = self.redirects.get(request.path)
        if target is not None:
            return web.Response(status=302, headers={"Location": target})
        return web.Response(body=b"content")


@pytest.fixture
def server() -> Iterator[Server]:
    yield from _serving()


@pytest.fixture
def other() -> Iterator[Server]:
    yield from _serving()


def _serving() -> Iterator[Server]:
    found = Server()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.answer)
    with running(app) as found.url:
        yield found


def test_a_redirect_to_a_private_address_is_refused(server: Server, other: Server) -> None:
    server.redirects["/refs/head"] = f"{other.url}/refs/head"
    with pytest.raises(AddressForbidden, match="is not a public address") as refused:
        HttpDataset(server.url, "secret").head()
    assert "ODF_FETCH_NETWORKS" in refused.value.advice()
    assert other.tokens == []


def test_a_token_stays_with_the_origin_that_it_is_for(server: Server, other: Server) -> None:
    server.redirects = {"/a": "/b", "/b": f"{other.url}/c"}
    with HttpDataset(server.url, "secret", LOOPBACK).get("a") as answer:
        assert answer.read() == b"content"
    assert (server.tokens, other.tokens) == ([TOKEN, TOKEN], [None])


def test_a_client_follows_three_redirects_and_not_a_fourth(server: Server) -> None:
    server.redirects = {f"/{number}": f"/{number + 1}" for number in range(4)}
    with HttpDataset(server.url).get("1") as answer:
        assert answer.read() == b"content"
    server.tokens.clear()
    with pytest.raises(Unavailable, match="more than 3 redirects"):
        HttpDataset(server.url).get("0")
    assert len(server.tokens) == 4


def test_a_url_that_parsers_read_differently_is_not_our_origin(server: Server, other: Server) -> None:
    own, victim = server.url.removeprefix("http://"), other.url.removeprefix("http://")
    confusing = f"http://{victim}\\@{own}/object"
    server.redirects = {"/a": confusing}
    there = HttpDataset(server.url, "secret")
    with pytest.raises(AddressForbidden):
        there.get("a")
    with pytest.raises(AddressForbidden):
        there.download(confusing, {"Authorization": TOKEN}, BytesIO(), 100)
    client = NodeClient(server.url, PUBLIC, timeout=urllib3.Timeout(5), retries=urllib3.Retry(0))
    assert not client.is_own(confusing)
    assert client.is_own(f"http://someone@{own}/object")
    assert client.is_own(server.url.upper())
    assert other.tokens == []


@pytest.mark.parametrize("address", ["fec0::1", "fc00::1", "fe80::1%1", "::1", "::", "ff02::1"])
def test_no_address_of_a_site_is_public(address: str) -> None:
    with pytest.raises(AddressForbidden):
        PUBLIC.require("example.org", address)


def test_redirects_are_limited_and_stay_encrypted(server: Server) -> None:
    server.redirects["/a"] = "/a"
    with pytest.raises(Unavailable, match="more than 3 redirects"):
        HttpDataset(server.url).get("a")
    with pytest.raises(InvalidInput, match="from https to http"):
        _redirect_target("https://example.org/a", "http://example.org/a")
    for url, target in (("https://a.org/a", "https://b.org/"), ("http://a.org/a", "https://a.org/b")):
        assert _redirect_target(url, target) == target
    for target in ("ftp://example.org", "file:///etc/passwd", "http://[::1"):
        with pytest.raises(InvalidInput, match=r"expected a URL of http or https|is not a URL"):
            _redirect_target("http://example.org/a", target)


def test_a_given_url_gets_the_given_headers_but_no_token(server: Server, other: Server) -> None:
    there = HttpDataset(server.url, "secret", LOOPBACK)
    given = {"Authorization": TOKEN, "Cookie": "a=b", "X-Given": "1"}
    there.download(f"{other.url}/object", given, out := BytesIO(), 100)
    assert (out.getvalue(), other.tokens) == (b"content", [None])
    with pytest.raises(AddressForbidden):
        HttpDataset(server.url, "secret").download(f"{other.url}/object", given, BytesIO(), 100)


@pytest.mark.parametrize("networks", [PUBLIC, LOOPBACK])
def test_an_object_is_not_sent_to_a_private_address(
    server: Server, other: Server, networks: Networks
) -> None:
    blobs, dataset, content = MemoryBlobStore(MemoryRefStore()), a_dataset(), b"object"
    name = physical_hash_of(content)
    blobs.put(dataset, ObjectKind.DATA, name, content)
    file = msg.ObjectFile(object_type=msg.ObjectType.DATA_SLICE, physical_hash=name, size=len(content))
    place = msg.TransferUrl(
        url=f"{other.url}/put", headers=(msg.HttpHeader(name="authorization", value=TOKEN),)
    )
    upload = msg.Upload(object_file=file, push_strategy=msg.PushStrategy.HTTP_UPLOAD, upload_to=place)
    Uploader(blobs, dataset, server.url, networks, headers={"Authorization": TOKEN}).send(upload)
    assert other.tokens == ([] if networks is PUBLIC else [None])
    assert server.tokens == ([TOKEN] if networks is PUBLIC else []), "it is sent to the node instead"


@pytest.fixture
def elsewhere() -> Iterator[str]:
    """The URL of a private address at which nobody connects."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.settimeout(0.1)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_objects_of_a_node_that_knows_itself_by_a_private_name_go_through_the_url_that_the_user_gave(
    tmp_path: Path, elsewhere: str
) -> None:
    home = tmp_path / "there"
    here, there = SyncNode(tmp_path / "here"), SyncNode(home, Settings(home=home, public_url=elsewhere))
    again = SyncNode(tmp_path / "again")
    here.add_cities(["Oslo"], ["Rome"])
    with there.served() as url:
        here.push("cities", f"odf+{url}/cities")
        assert there.content("cities") == here.content("cities")
        again.pull(f"odf+{url}/cities", "cities")
    assert again.content("cities") == here.content("cities")


@pytest.mark.parametrize("status", [403, 404, 500])
def test_an_object_whose_url_is_private_and_that_the_node_itself_does_not_take_or_send_is_at_a_forbidden_address(
    status: int, elsewhere: str
) -> None:
    blobs, dataset, content = MemoryBlobStore(MemoryRefStore()), a_dataset(), b"object"
    name = physical_hash_of(content)
    blobs.put(dataset, ObjectKind.DATA, name, content)
    file = msg.ObjectFile(object_type=msg.ObjectType.DATA_SLICE, physical_hash=name, size=len(content))
    place = msg.TransferUrl(url=f"{elsewhere}/x")
    upload = msg.Upload(object_file=file, push_strategy=msg.PushStrategy.HTTP_UPLOAD, upload_to=place)
    asked: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(f"{request.method} {request.path}")
        await request.read()
        return web.Response(status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", refuse)
    with running(app) as url:
        there = SmartDataset(f"odf+{url}/cities", "secret")
        there._urls[ObjectKind.DATA, name] = place
        with pytest.raises(AddressForbidden, match=r"127\.0\.0\.1"):
            there.fetch(ObjectKind.DATA, name, BytesIO(), 100)
        with pytest.raises(AddressForbidden, match=r"127\.0\.0\.1"):
            Uploader(blobs, dataset, f"{url}/cities/").send(upload)
    assert asked == [f"GET /cities/data/{name}", f"PUT /cities/data/{name}"]


@dataclass(slots=True)
class Refusing:
    """Answers all requests by a status, unless they have the token; notes method, path and token."""

    status: int
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization")
        self.asked.append((request.method, request.path, token))
        await request.read()
        return web.Response(body=b"object", status=200 if token == TOKEN else self.status)

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        return app


@pytest.mark.parametrize("status", [401, 403, 404, 418])
def test_an_object_that_its_url_refuses_goes_through_the_url_that_the_user_gave(status: int) -> None:
    """As a private dataset's does if the node gives URLs under another name, which get no token."""
    blobs, dataset, content = MemoryBlobStore(MemoryRefStore()), a_dataset(), b"object"
    name = physical_hash_of(content)
    blobs.put(dataset, ObjectKind.DATA, name, content)
    file = msg.ObjectFile(object_type=msg.ObjectType.DATA_SLICE, physical_hash=name, size=len(content))
    node, path = Refusing(status), f"/cities/data/{name}"
    with running(node.application()) as url:
        renamed = url.replace("127.0.0.1", "localhost") + path
        given = msg.TransferUrl(url=renamed, headers=(msg.HttpHeader(name="authorization", value=TOKEN),))
        there = SmartDataset(f"odf+{url}/cities", "secret", LOCALHOST)
        there._urls[ObjectKind.DATA, name] = given
        there.fetch(ObjectKind.DATA, name, out := BytesIO(), 100)
        Uploader(blobs, dataset, f"{url}/cities/", LOCALHOST, headers={"Authorization": TOKEN}).send(
            msg.Upload(object_file=file, push_strategy=msg.PushStrategy.HTTP_UPLOAD, upload_to=given)
        )
    assert out.getvalue() == content
    assert node.asked == [(method, path, token) for method in ("GET", "PUT") for token in (None, TOKEN)]


def test_an_object_that_its_url_and_the_node_refuse_fails_with_the_answer_of_its_url() -> None:
    name, node = physical_hash_of(b"object"), Refusing(404)
    with running(node.application()) as url, running(Refusing(410).application()) as bucket:
        there = SmartDataset(f"odf+{url}/cities", None, LOOPBACK)
        there._urls[ObjectKind.DATA, name] = msg.TransferUrl(url=f"{bucket}/object")
        with pytest.raises(UnexpectedStatus, match="410"):
            there.fetch(ObjectKind.DATA, name, BytesIO(), 100)
    assert node.asked == [("GET", f"/cities/data/{name}", None)]


def test_an_object_is_sent_once_to_its_place_whatever_the_answer() -> None:
    blobs, dataset, content = MemoryBlobStore(MemoryRefStore()), a_dataset(), b"object"
    name = physical_hash_of(content)
    blobs.put(dataset, ObjectKind.DATA, name, content)
    file = msg.ObjectFile(object_type=msg.ObjectType.DATA_SLICE, physical_hash=name, size=len(content))
    node = Refusing(413)
    with running(node.application()) as url:
        place = msg.TransferUrl(url=f"{url}/cities/data/{name}")
        upload = msg.Upload(object_file=file, push_strategy=msg.PushStrategy.HTTP_UPLOAD, upload_to=place)
        with pytest.raises(UnexpectedStatus, match="413"):
            Uploader(blobs, dataset, f"{url}/cities/").send(upload)
    assert len(node.asked) == 1


def test_a_header_that_came_with_a_url_is_not_sent_twice_whatever_its_case(server: Server) -> None:
    """As object stores give them with presigned URLs; they refuse a request with two (wire-facts §8.5)."""
    content = b"object"
    given = {"content-type": "application/octet-stream", "content-length": str(len(content))}
    sender = Uploader(MemoryBlobStore(MemoryRefStore()), a_dataset(), server.url, LOOPBACK)
    file = File(url=f"{server.url}/put", headers=given, content=BytesIO(content), size=len(content))
    sender.complete(file, 0)
    assert server.types == [["application/octet-stream"]]


def test_of_an_object_all_bytes_are_sent_whatever_size_is_declared(server: Server) -> None:
    """A Content-Length beyond the file's end would leave both sides waiting."""
    blobs, dataset, content = MemoryBlobStore(MemoryRefStore()), a_dataset(), b"object"
    name = physical_hash_of(content)
    blobs.put(dataset, ObjectKind.DATA, name, content)
    for size in (0, len(content) - 1, len(content) + 1):
        file = msg.ObjectFile(object_type=msg.ObjectType.DATA_SLICE, physical_hash=name, size=size)
        place = msg.TransferUrl(url=f"{server.url}/put")
        Uploader(blobs, dataset, server.url).send(
            msg.Upload(object_file=file, push_strategy=msg.PushStrategy.HTTP_UPLOAD, upload_to=place)
        )
    assert server.bodies == [content] * 3


def test_a_smart_transfer_is_not_redirected(server: Server, other: Server) -> None:
    server.redirects["/pull"] = f"{other.url}/pull"
    with (
        pytest.raises(Unavailable, match="redirects"),
        connect(f"{server.url}/pull", PULL, {"Authorization": TOKEN}),
    ):
        pass
    assert other.tokens == []


def test_a_hostile_node_does_not_make_a_pull_read_private_addresses(
    tmp_path: Path, server: Server, other: Server
) -> None:
    node = SyncNode(tmp_path)
    server.redirects["/cities/refs/head"] = f"{other.url}/refs/head"
    for url in (f"{server.url}/cities", f"odf+{server.url}/cities"):
        with pytest.raises(AddressForbidden):
            node.pull(url, "cities")
    assert other.tokens == []


def test_a_body_is_forwarded_while_it_arrives() -> None:
    is_read = threading.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        for _ in range(300):
            if is_read.is_set():
                await response.write(b"second")
                break
            await asyncio.sleep(0.01)
        return response

    app = web.Application()
    app.router.add_get("/", answer)
    with running(app) as url:
        body = NodeClient(url, LOOPBACK, timeout=urllib3.Timeout(10), retries=urllib3.Retry(0)).get(
            url + "/", {}
        )
        assert body.read1(1 << 20) == b"first"
        is_read.set()
        assert body.read() == b"second"


@pytest.mark.parametrize(("size", "arrived"), [(1, 1), (7, 7), (7, 9)])
def test_an_object_that_has_arrived_is_not_sent_again(size: int, arrived: int) -> None:
    asked: list[tuple[str | None, bytes]] = []

    async def take(request: web.Request) -> web.Response:
        asked.append((request.headers.get("Content-Range"), await request.read()))
        return web.Response()

    app = web.Application()
    app.router.add_put("/upload", take)
    with running(app) as url:
        refs = MemoryRefStore()
        uploader = Uploader(MemoryBlobStore(refs), a_dataset(), url, LOOPBACK, may_continue=True)
        file = File(url=url + "/upload", headers={}, content=BytesIO(b"x" * size), size=size)
        uploader.complete(file, arrived)
    assert asked == [(f"bytes */{size}", b"")]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("length", [None, 1 << 40], ids=["chunked", "declared"])
def test_an_answer_to_an_upload_that_never_ends_is_not_read(length: int | None) -> None:
    async def take(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse()
        response.content_length = length
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                await response.write(b"x" * 65536)
        return response

    app = web.Application()
    app.router.add_put("/upload", take)
    with running(app) as url:
        uploader = Uploader(MemoryBlobStore(), a_dataset(), url, LOOPBACK, may_continue=False)
        uploader.complete(File(url=url + "/upload", headers={}, content=BytesIO(b"x"), size=1))


@pytest.mark.parametrize("held", [1, 1000, 10**9])
@pytest.mark.parametrize("sizes", [[], [0], [5], [100] * 100, [1] * 500 + [1000], [10**6] * 64])
def test_the_number_of_concurrent_uploads_limits_the_loss_by_an_interruption(
    sizes: list[int], held: int
) -> None:
    count, loss = at_a_time(sizes, 8, held), min(held, max(sizes, default=0))
    assert 1 <= count <= 8
    assert count == 1 or count * loss <= LOST * sum(sizes)
    assert count == 8 or (count + 1) * max(loss, 1) > LOST * sum(sizes)


@dataclass(slots=True)
class Stuttering:
    """Receives an upload of which these `amounts` of bytes arrive per attempt, and reports the offset reached."""

    amounts: list[int]
    arrived: int = 0
    starts: list[int] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        asked = request.headers.get("Content-Range", "bytes 0-")
        if asked.startswith("bytes */"):
            return web.Response(status=INCOMPLETE, headers={"Upload-Offset": str(self.arrived)})
        self.starts.append(int(asked.removeprefix("bytes ").partition("-")[0]))
        content = await request.read()
        self.arrived += self.amounts.pop(0)
        is_complete = self.arrived >= self.starts[-1] + len(content)
        return web.Response(status=200 if is_complete else WRONG_OFFSET, text="the connection was lost")


@pytest.mark.parametrize(
    ("amounts", "starts", "is_complete"),
    [
        ([3, 0, 3, 0, 4], [0, 3, 3, 6, 6], True),
        ([0, 5, 0, 5], [0, 0, 5, 5], True),
        ([0, 0, 0, 10], [0, 0, 0], False),
        ([4, 0, 0, 0], [0, 4, 4, 4], False),
    ],
)
def test_an_upload_is_abandoned_after_two_attempts_in_a_row_without_a_byte(
    amounts: list[int], starts: list[int], is_complete: bool
) -> None:
    there = Stuttering(list(amounts))
    app = web.Application()
    app.router.add_put("/upload", there.take)
    with running(app) as url:
        uploader = Uploader(MemoryBlobStore(MemoryRefStore()), a_dataset(), url, LOOPBACK, may_continue=True)
        file = File(url=url + "/upload", headers={}, content=BytesIO(b"0123456789"), size=10)
        with nullcontext() if is_complete else pytest.raises(Unavailable, match="the connection was lost"):
            uploader.complete(file, 0)
    assert there.starts == starts


@pytest.mark.parametrize("end", [20, 30, 45])
def test_an_answer_that_is_cut_off_within_its_headers_is_tried_again(end: int) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 69\r\n\r\n{physical_hash_of(b'')}"

    def serve(listener: socket.socket) -> None:
        for answer in (head[:end], head):
            client, _ = listener.accept()
            with client:
                client.recv(4096)
                client.sendall(answer.encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=serve, args=(listener,))
        serving.start()
        dataset = HttpDataset(f"http://127.0.0.1:{listener.getsockname()[1]}/cities/", None)
        with pytest.raises(Unavailable, match="interrupted"):
            dataset.head()
        assert dataset.head() == physical_hash_of(b"")
        serving.join()
