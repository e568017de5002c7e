"""The client's WebSocket: how it is closed."""

import asyncio
import threading

from aiohttp import WSMsgType, web
from odf_testing.http import running

from odf_sync.smart.connection import connected
from odf_sync.smart.exchange import PUSH

PAUSE_SECONDS = 0.2


class SlowServer:
    """Takes its time to answer a close frame."""

    def __init__(self) -> None:
        self.codes: list[int | None] = []
        self.has_answered = threading.Event()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/push", self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoclose=False)
        await socket.prepare(request)
        frame = await socket.receive()
        self.codes.append(frame.data if frame.type is WSMsgType.CLOSE else None)
        await asyncio.sleep(PAUSE_SECONDS)
        self.has_answered.set()
        await socket.close()
        return socket


def test_the_servers_close_frame_is_awaited_also_if_no_message_came_in_time() -> None:
    """A client that leaves before may be seen as lost, although all that was pushed is there."""
    server = SlowServer()
    with running(server.app()) as base, connected(f"{base}/push", PUSH, {}) as connection:
        assert connection.poll(0.01) is None
        assert connection.poll(0.01) is None
        connection.close(b"done")
        assert server.has_answered.is_set()
    assert server.codes == [1000]
