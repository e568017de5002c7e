"""The connection of a push: its request for the head, and the exchange that follows on it, or is refused."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import pytest
from aiohttp import web
from odf_testing.builders import a_hash
from odf_testing.http import running

from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable
from odf_common.ports.clock import Backoff
from odf_common.ports.store import MAX_REFERENCE_BYTES
from odf_sync.access.remote_login import AccessForbidden, LoginRequired, authorization
from odf_sync.repositories.http_dataset import HttpDataset
from odf_sync.repositories.remote_dataset import (
    PACK_VERSION,
    PACKS_HEADER,
)
from odf_sync.smart import connection
from odf_sync.smart import connection as smart_connection
from odf_sync.smart.connection import NodeSession, connect
from odf_sync.smart.exchange import PUSH
from odf_sync.smart.messages import EVERYONE_HEADER, YES

HEAD = str(a_hash("head"))
TOKEN = "Bearer secret"


class Node:
    """Serves a head, and opens exchanges; notes each request's path, and from which port it comes."""

    def __init__(self, *, status: int = 200, head: str = HEAD) -> None:
        self.requests: list[tuple[str, int]] = []
        self.tokens: list[str | None] = []
        self._status = status
        self._head = head

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/cities/refs/head", self._answer)
        app.router.add_get("/elsewhere", self._answer_elsewhere)
        app.router.add_get("/cities/push", self._open)
        return app

    def _note(self, request: web.Request) -> None:
        assert request.transport is not None
        self.requests.append((request.path, request.transport.get_extra_info("peername")[1]))
        self.tokens.append(request.headers.get("Authorization"))

    async def _answer(self, request: web.Request) -> web.Response:
        self._note(request)
        headers = {EVERYONE_HEADER: YES, PACKS_HEADER: PACK_VERSION}
        if self._status == 302:
            headers["Location"] = "/elsewhere"
        return web.Response(status=self._status, text=self._head, headers=headers)

    async def _answer_elsewhere(self, request: web.Request) -> web.Response:
        self._note(request)
        return web.Response(text=self._head)

    async def _open(self, request: web.Request) -> web.WebSocketResponse:
        self._note(request)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.close()
        return socket


def _dataset(url: str) -> HttpDataset:
    return HttpDataset(f"{url}/cities", token="secret")


def test_the_exchange_takes_the_connection_over_which_the_head_came() -> None:
    node = Node()
    with running(node.application()) as url, NodeSession() as session:
        dataset = _dataset(url)
        assert str(dataset.head_by(session)) == HEAD
        with session.exchange(f"{url}/cities/push", PUSH, {"Authorization": TOKEN}):
            pass
    assert [path for path, _ in node.requests] == ["/cities/refs/head", "/cities/push"]
    assert len({port for _, port in node.requests}) == 1
    assert node.tokens == [TOKEN] * 2
    assert dataset.sends_packs
    assert not dataset.is_private()


def test_a_dataset_that_is_not_there_has_no_head_and_its_exchange_takes_the_connection_too() -> None:
    node = Node(status=404, head="not found")
    with running(node.application()) as url, NodeSession() as session:
        assert _dataset(url).head_by(session) is None
        with session.exchange(f"{url}/cities/push", PUSH, {}):
            pass
    assert len({port for _, port in node.requests}) == 1


def test_an_exchange_that_the_node_does_not_have_is_not_found() -> None:
    with (
        running(Node().application()) as url,
        NodeSession() as session,
        pytest.raises(NotFound),
        session.exchange(f"{url}/towns/push", PUSH, {}),
    ):
        pass


def test_a_head_that_is_elsewhere_is_read_there() -> None:
    node = Node(status=302)
    with running(node.application()) as url, NodeSession() as session:
        assert str(_dataset(url).head_by(session)) == HEAD
    assert [path for path, _ in node.requests] == ["/cities/refs/head", "/cities/refs/head", "/elsewhere"]


@pytest.mark.parametrize(
    ("status", "head", "text"),
    [(200, "no hash", "not a hash"), (200, HEAD.ljust(MAX_REFERENCE_BYTES + 1), "longer than 1024 bytes")],
)
def test_what_is_no_head_is_refused(status: int, head: str, text: str) -> None:
    with (
        running(Node(status=status, head=head).application()) as url,
        NodeSession() as session,
        pytest.raises(InvalidInput, match=text),
    ):
        _dataset(url).head_by(session)


def test_a_status_without_a_meaning_for_heads_is_an_error() -> None:
    with (
        running(Node(status=418).application()) as url,
        NodeSession() as session,
        pytest.raises(Unavailable, match="status 418"),
    ):
        _dataset(url).head_by(session)


@contextmanager
def _answering(*answers: bytes) -> Iterator[str]:
    """Yield the URL of a server that sends one answer to each connection, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                connected, _ = server.accept()
                with connected:
                    connected.recv(1 << 16)
                    connected.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


WHOLE = f"HTTP/1.1 200 OK\r\nContent-Length: {len(HEAD)}\r\n\r\n{HEAD}".encode()


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(WHOLE[:10], id="cut off within the headers"),
        pytest.param(WHOLE[:-5], id="cut off within the head"),
        pytest.param(f"HTTP/1.1 200 OK\r\n\r\n{HEAD[:-5]}".encode(), id="cut off, and of unknown length"),
        pytest.param(b"no HTTP\r\n\r\n", id="another protocol"),
    ],
)
def test_a_head_that_does_not_arrive_whole_is_asked_for_again(first: bytes) -> None:
    with _answering(first, WHOLE) as url, NodeSession() as session:
        assert str(_dataset(url).head_by(session)) == HEAD


def test_a_node_that_does_not_answer_in_time_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "DOCUMENT_TIMEOUT", aiohttp.ClientTimeout(total=0.2))
    with socket.create_server(("127.0.0.1", 0)) as server, NodeSession() as session:
        with pytest.raises(Unavailable, match="no answer in time"):
            _dataset(f"http://127.0.0.1:{server.getsockname()[1]}").head_by(session)
        server.setblocking(False)
        server.accept()[0].close()
        with pytest.raises(BlockingIOError):
            server.accept()


HEADERS = authorization("a token")


@pytest.mark.parametrize(
    ("status", "headers", "error", "text"),
    [
        (404, {}, NotFound, "/push"),
        (401, {}, LoginRequired, "requires a login (status 401)"),
        (401, HEADERS, LoginRequired, "requires a login (status 401)"),
        (403, {}, LoginRequired, "requires a login (status 403)"),
        (403, HEADERS, AccessForbidden, "you may not write it (status 403)"),
        (503, {}, Unavailable, "too many transfers"),
        (400, {}, Unavailable, "status 400"),
    ],
)
def test_an_upgrade_that_is_refused_says_why(
    monkeypatch: pytest.MonkeyPatch, status: int, headers: dict[str, str], error: type[OdfError], text: str
) -> None:
    monkeypatch.setattr(smart_connection, "BUSY_BACKOFF", Backoff(first=0.01, most=0.01))
    asked: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=status)

    app = web.Application()
    app.router.add_get("/push", refuse)
    with running(app) as base, pytest.raises(error) as caught, connect(f"{base}/push", PUSH, headers):
        pass
    assert type(caught.value) is error
    assert text in str(caught.value)
    assert len(asked) == (5 if status == 503 else 1)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_a_server_that_is_busy_is_asked_again_when_it_says(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(smart_connection, "MAX_PAUSE_SECONDS", 0.3)
    asked: list[float] = []

    async def serve(request: web.Request) -> web.StreamResponse:
        asked.append(time.monotonic())
        if len(asked) == 1:
            return web.Response(status=status, headers={"Retry-After": "5"})
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.close()
        return socket

    monkeypatch.setattr(smart_connection, "BUSY_BACKOFF", Backoff(first=0.01, most=0.01))
    app = web.Application()
    app.router.add_get("/push", serve)
    with running(app) as base, connect(f"{base}/push", PUSH, {}):
        pass
    assert len(asked) == 2
    assert 0.25 < asked[1] - asked[0] < 4


@pytest.mark.parametrize(
    ("failures", "asked", "seconds"),
    [(1, "5", 5.0), (1, "0", 0.3), (1, "9" * 5000, 10.0), (3, "", 1.2), (3, "-5", 1.2), (3, "soon", 1.2)],
)
def test_a_server_decides_within_limits_how_long_the_pause_is(
    failures: int, asked: str, seconds: float
) -> None:
    assert smart_connection._pause(failures, {"Retry-After": asked}) == pytest.approx(seconds)
    assert smart_connection._pause(failures, {}) < 10
