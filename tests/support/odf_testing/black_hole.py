"""A TCP proxy whose connections die as in a broken network: no end, no reset, no answer.

`swallow` is a frozen peer: its kernel acknowledges what arrives, and nothing reads it. `drop` is a peer without a network:
nothing is acknowledged, new connections neither. Connections that were open then stay dead for ever; `restore` forwards
new ones, to another port if the server has moved behind its name.
"""

import asyncio
import ctypes
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

CHUNK_BYTES: Final = 1 << 16
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27  # of Linux; Python does not name them
RETURN_NOTHING: Final = struct.pack(
    "HBBI", 0x06, 0, 0, 0
)  # a program of the kernel's packet filter: keep 0 bytes


class BlackHole:
    """Forwards connections to a port of this machine until it swallows or drops them."""

    def __init__(self, port: int) -> None:
        """Forward to a port."""
        self.port = 0
        """Where clients connect to."""
        self._target = port
        self._is_hole = False
        self._listener: socket.socket | None = None
        self._open: set[_Pair] = set()

    @property
    def address(self) -> str:
        """Return `host:port` for clients."""
        return f"127.0.0.1:{self.port}"

    def swallow(self) -> None:
        """Forward no byte any more; what clients send is acknowledged and lost."""
        self._is_hole = True
        for pair in tuple(self._open):
            pair.is_dead = True

    def drop(self) -> None:
        """Let the kernel drop each packet of both sides, and those of new connections."""
        self.swallow()
        for pair in tuple(self._open):
            for end in pair.ends:
                _set_dropping(end)
        assert self._listener is not None
        _set_dropping(self._listener)

    def restore(self, port: int | None = None) -> None:
        """Forward new connections, to another port if there is one."""
        self._target = port or self._target
        self._is_hole = False
        assert self._listener is not None
        with suppress(OSError):  # it drops nothing
            self._listener.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)

    def listen(self, listener: socket.socket) -> None:
        """Use a socket that listens."""
        self._listener, self.port = listener, listener.getsockname()[1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        pair = _Pair([writer.get_extra_info("socket")], is_dead=self._is_hole)
        self._open.add(pair)
        to_server: asyncio.StreamWriter | None = None
        try:
            if not pair.is_dead:
                from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
                pair.ends.append(to_server.get_extra_info("socket"))
                up = asyncio.ensure_future(pair.forward(reader, to_server))
                down = asyncio.ensure_future(pair.forward(from_server, writer))
                await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            while pair.is_dead and await reader.read(CHUNK_BYTES):
                pass
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(pair)
            for one in (writer, to_server):
                if one is not None:
                    one.transport.abort()


class _Pair:
    """A client's connection, and the one to the server."""

    def __init__(self, ends: list[socket.socket], *, is_dead: bool) -> None:
        self.ends = ends
        # Nothing else refers to a task that waits for ever, which could be collected and its connection be closed.
        self.task = asyncio.current_task()
        self.is_dead = is_dead

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward until the end of either side; a dead connection has none for the other side."""
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if not self.is_dead:
                    writer.write(chunk)
                    await writer.drain()
        if self.is_dead:
            await asyncio.Event().wait()  # the end of the server is not seen


def _set_dropping(target: socket.socket) -> None:
    code = ctypes.create_string_buffer(RETURN_NOTHING)
    program = struct.pack("HL", 1, ctypes.addressof(code))
    target.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)
    # At the end of the test it is reset: its last bytes would wait for their acknowledgement.
    target.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextmanager
def black_hole(port: int) -> Iterator[BlackHole]:
    """Run a proxy of the server at a port of this machine."""
    hole = BlackHole(port)
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(hole.serve, "127.0.0.1", 0))
    hole.listen(server.sockets[0])
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield hole
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(_end_tasks())
        loop.close()


async def _end_tasks() -> None:
    await asyncio.sleep(0)  # in which those of the last connections begin, and can close them
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(0)  # in which the connections are closed
