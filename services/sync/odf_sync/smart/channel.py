"""A WebSocket that carries the messages of one end of an exchange."""

import asyncio
import struct
from collections import deque
from dataclasses import dataclass
from typing import BinaryIO, Final, NoReturn, TypeVar

from aiohttp import ClientWebSocketResponse, WSMsgType, web

from odf_common.errors import Unavailable
from odf_sync.smart.exchange import (
    CLOSE_OK,
    End,
    ProtocolViolated,
    TransferRefused,
    refusal_in,
)
from odf_sync.smart.message_json import around_archive, encode, length_of_numbers, numbers
from odf_sync.smart.messages import (
    DownloadsReply,
    Message,
    MetadataReply,
    ProgressRequest,
    Refusal,
    UploadsComplete,
    UploadsReply,
    UploadsRunning,
)
from odf_sync.smart.spooled import pieces_of

M = TypeVar("M", bound=Message)

ABNORMAL: Final = 1006
PROMPT_SECONDS: Final = 60.0  # for a message that its sender need not compute
LEAST_SECONDS: Final = 0.001  # 0 would be no limit for aiohttp
IDLE_SECONDS: Final = 3600.0  # for one before which objects travel
LARGE_CHARACTERS: Final = 1024**2  # of a message; longer ones would hold up the event loop
TEXT_FRAME: Final = 0x81  # the last, and only, frame of a text message
LENGTH_FOLLOWS: Final = 127
SENDABLE_CODES: Final = (range(1000, 1004), range(1007, 1012), range(3000, 5000))


@dataclass(eq=False, kw_only=True)
class PeerClosed(Unavailable):
    """The other side ended the exchange; a retry may succeed."""

    what: str = "the other node"
    close_code: int = ABNORMAL
    """Of its close frame; `ABNORMAL` without one."""
    reason: str = ""

    def __str__(self) -> str:
        """Return how it ended."""
        if self.close_code == ABNORMAL:
            return "the connection to the other node was lost"
        return f"the other node ended the transfer (code {self.close_code}: {self.reason[:200]!r})"


class Channel:
    """Sends and receives messages in the order of the protocol."""

    def __init__(self, socket: web.WebSocketResponse | ClientWebSocketResponse, end: End) -> None:
        """Use an open WebSocket that leaves closing to its owner."""
        self._socket = socket
        self.end = end
        self._early: deque[Message] = deque()

    async def send(self, message: Message) -> None:
        """Send a message, unless it was sent early; raises `PeerClosed`."""
        self.end.note_sent(message)
        if self._early:
            assert message == self._early.popleft(), (
                "they are sent in the order in which they have their turns"
            )
        else:
            await self._send(message)

    async def send_early(self, message: Message) -> None:
        """Send a message before its turn, which comes with `send`; raises `PeerClosed`.

        The other side reads it in its turn, and need not wait for it then.
        """
        await self._send(message)
        self._early.append(message)

    async def _send(self, message: Message) -> None:
        try:
            is_long = isinstance(message, UploadsReply | DownloadsReply)
            text = await asyncio.to_thread(encode, message) if is_long else encode(message)
            await self._socket.send_str(text)
        except ConnectionError as error:
            raise PeerClosed from error

    async def send_archive(self, message: MetadataReply, archive: BinaryIO, request: web.Request) -> None:
        """Send a message with an archive that is in a file, in constant memory; raises `PeerClosed`.

        It is one frame, as aiohttp would send it, which however needs the whole text, twice.
        """
        before, after = (text.encode() for text in around_archive(message))
        self.end.note_sent(message)
        size = await asyncio.to_thread(_size_of_numbers, archive)
        try:
            await _write(request, _frame_header(len(before) + size + len(after)) + before)
            pieces, is_first = pieces_of(archive), True
            while piece := await asyncio.to_thread(next, pieces, b""):
                text = await asyncio.to_thread(numbers, piece)
                await _write(request, (text if is_first else "," + text).encode())
                is_first = False
            await _write(request, after)
        except ConnectionError as error:
            raise PeerClosed from error

    async def receive(self, seconds: float | None = None) -> Message:
        """Return the next message, whatever it is.

        Raises `PeerClosed`, `TransferRefused` for a refusal in a close frame, `ProtocolViolated`, and `TimeoutError`;
        after that the exchange can continue.
        """
        frame = await self._socket.receive(None if seconds is None else max(LEAST_SECONDS, seconds))
        match frame.type:
            case WSMsgType.TEXT if len(frame.data) > LARGE_CHARACTERS:
                return await asyncio.to_thread(self.end.receive, frame.data)
            case WSMsgType.TEXT:
                return self.end.receive(frame.data)
            case WSMsgType.CLOSE:
                reason = frame.extra or ""
                refusal = refusal_in(reason)
                if refusal is not None:
                    raise TransferRefused(fault=refusal.fault)
                raise PeerClosed(close_code=frame.data or ABNORMAL, reason=reason)
            case WSMsgType.BINARY:
                raise ProtocolViolated(where="message", text="binary frames are not part of the protocol")
            case WSMsgType.ERROR if not isinstance(frame.data, ConnectionError):
                raise ProtocolViolated(where="message", text=str(frame.data)[:200])
            case _:
                raise PeerClosed

    async def expect(self, kind: type[M], seconds: float | None = None) -> M:
        """Return the next message, which is of a kind; also raises `TransferRefused` if it is a refusal.

        Questions about the progress of uploads that are complete, and answers to them, are passed over.
        """
        now = asyncio.get_running_loop().time
        until = None if seconds is None else now() + seconds
        message = await self.receive(seconds)
        while isinstance(message, ProgressRequest | UploadsRunning | UploadsComplete):
            message = await self.receive(None if until is None else until - now())
        return of_kind(kind, message)

    async def closed(self, seconds: float) -> NoReturn:
        """Wait for the other side to close, whatever it has sent before; raises `PeerClosed`, or `TimeoutError`."""
        async with asyncio.timeout(seconds):
            while True:
                frame = await self._socket.receive()
                if frame.type is WSMsgType.CLOSE:
                    raise PeerClosed(close_code=frame.data or ABNORMAL, reason=frame.extra or "")
                if frame.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                    raise PeerClosed

    async def close(self, code: int, reason: bytes) -> None:
        """Send a close frame, and wait a short time for that of the other side."""
        is_sendable = any(code in codes for codes in SENDABLE_CODES)
        await self._socket.close(code=code if is_sendable else CLOSE_OK, message=reason)


def of_kind(kind: type[M], message: Message) -> M:
    """Return a message, which is of a kind; raises `TransferRefused` if it is a refusal, or `ProtocolViolated`."""
    if isinstance(message, Refusal):
        raise TransferRefused(fault=message.fault)
    if not isinstance(message, kind):
        raise ProtocolViolated(
            text=f"expected {kind.__name__}, got {type(message).__name__}", where="message"
        )
    return message


def _size_of_numbers(archive: BinaryIO) -> int:
    """Return how long the numbers of a file are, with the commas between them."""
    sizes = [length_of_numbers(piece) for piece in pieces_of(archive)]
    return sum(sizes) + max(0, len(sizes) - 1)


def _frame_header(size: int) -> bytes:
    """Return the header of a server's text frame (RFC 6455, 5.2); its length may always have 64 bits."""
    return struct.pack("!BBQ", TEXT_FRAME, LENGTH_FOLLOWS, size)


async def _write(request: web.Request, piece: bytes) -> None:
    """Write bytes of a frame, and wait while the client reads slowly."""
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError
    request.transport.write(piece)
    await request.writer.drain()
