"""Servers that do not open a WebSocket: the error says why, and one that is busy is asked again."""

import time

import pytest
from aiohttp import web
from odf_testing.http import running

from odf_common.errors import NotFound, OdfError, Unavailable
from odf_common.ports.clock import Backoff
from odf_sync.access.remote_login import AccessForbidden, LoginRequired, authorization
from odf_sync.smart import connection as smart_connection
from odf_sync.smart.connection import connect
from odf_sync.smart.exchange import PUSH

TOKEN = authorization("a token")


@pytest.mark.parametrize(
    ("status", "headers", "error", "text"),
    [
        (404, {}, NotFound, "/push"),
        (401, {}, LoginRequired, "requires a login (status 401)"),
        (401, TOKEN, LoginRequired, "requires a login (status 401)"),
        (403, {}, LoginRequired, "requires a login (status 403)"),
        (403, TOKEN, AccessForbidden, "you may not write it (status 403)"),
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
