"""A TCP proxy that counts bytes, and cuts all its connections after a chosen number of them.

Where it cuts is drawn anew in each run. A failed test prints the seed; with `CUT_SEED=…` it cuts at the same byte again.
"""

import asyncio
import os
import random
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SEED: Final = os.environ.get("CUT_SEED") or secrets.token_hex(4)
CHUNK_BYTES: Final = 8192
# After each piece: a network is slower than a server, which would otherwise not notice a burst.
PAUSE_SECONDS: Final = 0.0002
NEVER: Final = 1 << 60


def drawn_cut(part: int, parts: int, length: int) -> int:
    """Return a position in one of the equal parts of a stream, and print it with the seed."""
    cut = int(random.Random(f"{SEED} {part}/{parts}").uniform(part, part + 1) / parts * length)
    print(f"cut after {cut} of {length} bytes, CUT_SEED={SEED}")
    return max(1, cut)


class CuttingProxy:
    """Forwards connections to a server; a cut resets both ends of all of them, and loses the bytes in flight."""

    def __init__(self, port: int) -> None:
        self.url = ""
        self.to_server = 0
        """Bytes that were forwarded."""
        self.to_client = 0
        self._port = port
        self._left = NEVER
        self._is_down = False
        self._stays_down = False
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def total(self) -> int:
        """Return the number of bytes forwarded in both directions."""
        return self.to_server + self.to_client

    def cut_after(self, count: int, *, stays_down: bool = True) -> None:
        """Cut all connections after that many bytes, in both directions; then refuse others until `restore`."""
        self._left, self._stays_down = count, stays_down

    def restore(self) -> None:
        """Forward again, without a cut."""
        self._left, self._is_down = NEVER, False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward a connection in both directions until either ends."""
        self._add(writer)
        try:
            if self._is_down:
                return
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
            self._add(to_server)
            try:
                await asyncio.gather(
                    self._forward(reader, to_server, is_up=True),
                    self._forward(from_server, writer, is_up=False),
                )
            finally:
                self._drop(to_server)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._drop(writer)

    def _add(self, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)  # what was counted has left this process
        self._writers.add(writer)

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_up: bool
    ) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            passed = chunk[: self._left]
            self._left -= len(passed)
            if is_up:
                self.to_server += len(passed)
            else:
                self.to_client += len(passed)
            writer.write(passed)
            await writer.drain()
            await asyncio.sleep(PAUSE_SECONDS)
            if self._left <= 0:
                self._cut()
                return
        if writer.can_write_eof():
            writer.write_eof()

    def _cut(self) -> None:
        self._is_down = self._stays_down
        self._left = 0 if self._is_down else NEVER
        for one in tuple(self._writers):
            self._drop(one)

    def _drop(self, writer: asyncio.StreamWriter) -> None:
        self._writers.discard(writer)
        writer.transport.abort()


@contextmanager
def cutting_proxy(server: str) -> Iterator[CuttingProxy]:
    """Run a proxy of the server at a URL `http://127.0.0.1:PORT`."""
    proxy = CuttingProxy(int(server.rpartition(":")[2]))
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(asyncio.start_server(proxy.serve, "127.0.0.1", 0))
    proxy.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(listener.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(_drained())
        loop.close()


async def _drained() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
