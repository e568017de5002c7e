"""Limits on the bytes that a client receives of a message: none may be longer than the expected answer can be.

A message is in memory as a whole, several times, before it can be read. What the other side has announced decides how
long the next one may be. The server limits what it receives likewise (`odf_sync.http.connections`).
"""

import asyncio
from typing import Final, cast

from odf_common.adapters.live_sockets import is_lost
from odf_sync.smart.large_messages import SMALL_BYTES
from odf_sync.smart.messages import DownloadsRequest, Message, UploadsRequest

LOOK_SECONDS: Final = 1.0  # between two questions to the kernel
LISTED_BYTES: Final = 4096  # of an object in the answer to a list: of a signed URL, 3 KiB


def answer_bytes(message: Message) -> int:
    """Return the greatest size of the answer to a message, and of what comes before the next message is sent."""
    count = len(message.object_files) if isinstance(message, DownloadsRequest | UploadsRequest) else 0
    return SMALL_BYTES + LISTED_BYTES * count


class LimitedConnection(asyncio.Protocol):
    """Passes what a transport receives to the protocol that it had before, up to a limit."""

    def __init__(self, transport: asyncio.Transport) -> None:
        """Take the place of the transport's protocol; small messages may come."""
        self._transport = transport
        self._inner = cast("asyncio.Protocol", transport.get_protocol())
        self._most = self._left = SMALL_BYTES
        self.excess = ""
        """The reason why the connection was lost, if more came."""
        transport.set_protocol(self)

    def limit(self, most: int) -> None:
        """Lose the connection when more than this many bytes have come from now on."""
        self._most = self._left = most

    async def end_if_lost(self) -> None:
        """Lose the connection when the server has gone before it got all that was sent.

        The kernel would go on for a quarter of an hour. Its own limit does not fit: it counts what a busy server does
        not read yet.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if is_lost(self._transport.get_extra_info("socket")):
                self._transport.abort()
                return

    def data_received(self, data: bytes) -> None:
        """Pass bytes on, or lose the connection."""
        self._left -= len(data)
        if self._left >= 0:
            self._inner.data_received(data)
        else:
            self.excess = f"more than {self._most} bytes came, which is more than the message can have"
            self._transport.abort()

    def eof_received(self) -> bool | None:
        """Pass the end on."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Pass on that the server does not read."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the server reads."""
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that the connection was lost."""
        self._inner.connection_lost(exc)
