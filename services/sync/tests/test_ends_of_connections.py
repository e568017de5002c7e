"""How connections begin and end: redirects, codes, and pending waits of a client that ends an exchange."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import WSMessage, web
from odf_testing.http import running

from odf_common.errors import Unavailable
from odf_sync.smart import channel as channel_module
from odf_sync.smart.channel import Channel, PeerClosed, _TextFrames
from odf_sync.smart.connection import Connection, connect
from odf_sync.smart.exchange import PULL, PUSH, End, Side


class Ending:
    """A channel on which nothing arrives before its end, and then a close, or nothing."""

    def __init__(self, *, is_told: bool) -> None:
        self._is_told = is_told
        self._ends = asyncio.Event()
        self.left = 0

    async def receive(self) -> object:
        try:
            await self._ends.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise
        raise PeerClosed

    async def close(self, code: int, reason: bytes) -> None:
        assert (code, reason) == (1000, b"done")
        if self._is_told:
            self._ends.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_message_that_is_awaited_at_the_end_is_abandoned_silently(
    caplog: pytest.LogCaptureFixture, *, is_told: bool
) -> None:
    channel = Ending(is_told=is_told)
    with asyncio.Runner() as runner:
        connection = Connection(runner, cast("Any", channel), {})
        assert connection.poll(0.0) is None
        assert connection.poll(0.01) is None
        connection.close(b"done")
    assert channel.left == (0 if is_told else 1)
    del connection
    gc.collect()
    assert caplog.records == []


def open_and_close(url: str) -> None:
    with connect(url, PUSH, {"Authorization": "Bearer secret"}):
        pass


def test_a_redirect_is_not_followed_and_its_target_gets_no_token() -> None:
    asked: list[str] = []

    async def ask(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=302, headers={"Location": "/elsewhere"})

    app = web.Application()
    app.router.add_get("/{path:.*}", ask)
    with running(app) as base, pytest.raises(Unavailable, match="redirects"):
        open_and_close(f"{base}/push")
    assert asked == ["/push"]


def test_a_missing_server_is_unavailable() -> None:
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1/push"):
        open_and_close("http://127.0.0.1:1/push")


@pytest.mark.parametrize(
    ("code", "sent"),
    [
        *((code, code) for code in (1000, 1003, 1007, 1011, 3000, 4999)),
        *((code, 1000) for code in (999, 1004, 1005, 1006, 1012, 1015, 2999, 5000)),
    ],
)
def test_only_a_code_that_may_be_in_a_close_frame_is_sent(code: int, sent: int) -> None:
    codes: list[int] = []

    async def close(*, code: int, message: bytes) -> None:
        assert message == b"why"
        codes.append(code)

    channel = Channel(cast("Any", SimpleNamespace(close=close)), End(side=Side.SERVER, table=PUSH))
    asyncio.run(channel.close(code, b"why"))
    assert codes == [sent]


def test_frames_are_written_only_as_fast_as_their_reader_reads() -> None:
    size = channel_module.FRAME_BYTES
    length = bytes([127]) + size.to_bytes(8)
    order: list[object] = []

    async def drain() -> None:
        order.append("drained")

    transport = SimpleNamespace(is_closing=lambda: len(order) > 2, write=order.append)
    protocol = SimpleNamespace(_drain_helper=drain)
    writer = SimpleNamespace(transport=transport, protocol=protocol, use_mask=False)
    frames = _TextFrames(cast("Any", SimpleNamespace(_writer=writer, closed=False)))
    with pytest.raises(ConnectionResetError):
        asyncio.run(frames.write("1" * size + "2" * size + "3" * size + "4"))
    assert order == [b"\1" + length + b"1" * size, "drained", b"\0" + length + b"2" * size, "drained"]


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_an_expired_wait_ends(seconds: float) -> None:
    """aiohttp takes 0 s for no limit."""

    class Socket:
        async def receive(self, limit: float | None) -> WSMessage:
            assert limit is not None
            assert 0 < limit < 1
            raise TimeoutError

    with pytest.raises(TimeoutError):
        asyncio.run(Channel(cast("Any", Socket()), End(side=Side.SERVER, table=PULL)).receive(seconds))
