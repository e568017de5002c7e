"""A WebSocket that carries the messages of one end of an exchange, and limits on large messages.

Until its archive has been written to a file, a large message is in memory as a whole, and more than once. The maximum
size of a message is known before it is received: of a push from its plan, of a list of objects from the chain. A client
that sends more is disconnected.
"""

import asyncio
import math
import os
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import BinaryIO, Final, NoReturn, TypeVar

from aiohttp import ClientWebSocketResponse, WSMsgType, web

from odf_common.errors import InvalidInput, Unavailable
from odf_sync.access.rate_limits import BODY_BYTES_PER_SECOND, Pace, Shares
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import pieces_of
from odf_sync.smart.exchange import (
    CLOSE_OK,
    End,
    ProtocolViolated,
    TransferRefused,
    refusal_in,
)
from odf_sync.smart.message_json import encode, numbers, place_json, with_items

M = TypeVar("M", bound=msg.Message)
Socket = web.WebSocketResponse | ClientWebSocketResponse

ABNORMAL: Final = 1006
PROMPT_SECONDS: Final = 60.0  # for a message that its sender need not compute
LEAST_SECONDS: Final = 0.001  # 0 would be no limit for aiohttp
IDLE_SECONDS: Final = 3600.0  # for one before which objects travel
LARGE_CHARACTERS: Final = 1024**2  # of a message; longer ones would hold up the event loop
FRAME_BYTES: Final = 1024**2  # of a message; others take frames of up to 16 MiB
MAX_SENT_MESSAGE_BYTES: Final = 64 * 1024**2  # of JSON that others receive in one message
PLACES_AT_A_TIME: Final = 500  # objects of an answer that are written together
LONG: Final = 127  # in the place of the length of a frame: it follows, in 8 bytes, as for `FRAME_BYTES`
MASKED: Final = 0x80  # with that, of a client's frame
KEY_BYTES: Final = 4  # of its mask
SENDABLE_CODES: Final = (range(1000, 1004), range(1007, 1012), range(3000, 5000))


class PeerClosed(Unavailable):
    """The other node ended the exchange; a retry may succeed."""

    what: str = "the other node"
    close_code: int = ABNORMAL
    """The code of the close frame; `ABNORMAL` if the connection was lost without one."""
    reason: str = ""

    def __str__(self) -> str:
        """Return a sentence that says how the exchange ended."""
        if self.close_code == ABNORMAL:
            return "the connection to the other node was lost"
        return f"the other node ended the transfer (code {self.close_code}: {self.reason[:200]!r})"

    def advice(self) -> str:
        """Return the advice to repeat the command after a lost connection; empty if the other node gave a reason."""
        return "repeat the command; it continues where it can" if self.close_code == ABNORMAL else ""


class Channel:
    """Sends and receives the messages of one end of an exchange, in the order that the protocol allows."""

    def __init__(self, socket: Socket, end: End) -> None:
        """Use an open WebSocket; the caller remains responsible for closing it."""
        self._socket = socket
        self.end = end
        self._early: deque[msg.Message] = deque()

    async def send(self, message: msg.Message) -> None:
        """Send a message, unless `send_early` has sent it already.

        Raises `PeerClosed`, and `InvalidInput` if it is too long.
        """
        self.end.note_sent(message)
        if self._early:
            assert message == self._early.popleft(), (
                "they are sent in the order in which they have their turns"
            )
        else:
            await self._send(message)

    async def send_early(self, message: msg.Message) -> None:
        """Send a message before the protocol allows it; `send` must follow when it does. Raises `PeerClosed`.

        The other node reads the message when its turn comes, without waiting a round trip for it.
        """
        await self._send(message)
        self._early.append(message)

    async def _send(self, message: msg.Message) -> None:
        is_long = isinstance(message, msg.UploadsReply)
        text = await asyncio.to_thread(encode, message) if is_long else encode(message)
        pieces = [text[start : start + FRAME_BYTES] for start in range(0, len(text), FRAME_BYTES)]
        size = sum(len(piece.encode()) for piece in pieces)
        if size > MAX_SENT_MESSAGE_BYTES:
            raise _too_long(f"{size}")
        await self._send_pieces(iter(pieces))

    async def send_archive(self, message: msg.MetadataReply, archive: BinaryIO) -> None:
        """Send a message whose archive is read from a file, in constant memory. Raises `PeerClosed`."""
        self.end.note_sent(message)
        await self._send_pieces(with_items(message, map(numbers, pieces_of(archive))))

    async def send_downloads(self, downloads: Iterable[msg.Download]) -> None:
        """Send the URLs from which objects can be downloaded, in one message that is written in parts.

        Only `PLACES_AT_A_TIME` of them are in memory. Raises `PeerClosed`, and `InvalidInput` if the message gets too
        long.
        """
        reply = msg.DownloadsReply(object_transfer_strategies=())
        self.end.note_sent(reply)
        places = map(place_json, downloads)
        parts = iter(lambda: ",".join(islice(places, PLACES_AT_A_TIME)), "")
        await self._send_pieces(with_items(reply, parts), most=MAX_SENT_MESSAGE_BYTES)

    async def _send_pieces(self, pieces: Iterator[str], most: float = math.inf) -> None:
        """Send a message in frames while its text is still being generated."""
        frames = _TextFrames(self._socket, most)
        try:
            while piece := await asyncio.to_thread(next, pieces, ""):
                await frames.write(piece)
            await frames.end()
        except ConnectionError as error:
            raise PeerClosed from error

    async def receive(self, seconds: float | None = None) -> msg.Message:
        """Return the next message of any type that the protocol allows.

        Raises `TransferRefused` for a refusal in a close frame, `PeerClosed`, `ProtocolViolated`, and `TimeoutError`
        after `seconds`. The exchange can continue after a `TimeoutError`.
        """
        received = await self._receive(seconds)
        if len(received) > LARGE_CHARACTERS:
            return await asyncio.to_thread(self.end.receive, received)
        return self.end.receive(received)

    async def _receive(self, seconds: float | None) -> str:
        """Return the text of the next message."""
        frame = await self._socket.receive(None if seconds is None else max(LEAST_SECONDS, seconds))
        match frame.type:
            case WSMsgType.TEXT:
                received: str = frame.data
                return received
            case WSMsgType.BINARY:
                raise ProtocolViolated(where="message", text="binary frames are not used")
            case WSMsgType.CLOSE:
                reason = frame.extra or ""
                refusal = refusal_in(reason)
                if refusal is not None:
                    raise TransferRefused(fault=refusal.fault)
                raise PeerClosed(close_code=frame.data or ABNORMAL, reason=reason)
            # aiohttp reports a malformed or too long frame like a lost connection; only the former is the peer's fault.
            case WSMsgType.ERROR if not isinstance(frame.data, ConnectionError):
                raise ProtocolViolated(where="message", text=str(frame.data)[:200])
            case _:
                raise PeerClosed

    async def expect(self, kind: type[M], seconds: float | None = None) -> M:
        """Return the next message, which must be a `kind`.

        Raises as `receive` does, and `TransferRefused` for a refusal.

        Questions about the progress of uploads that are already complete, and the answers, are skipped.
        """
        now = asyncio.get_running_loop().time
        until = None if seconds is None else now() + seconds
        message = await self.receive(seconds)
        while isinstance(message, msg.ProgressRequest | msg.UploadsRunning | msg.UploadsComplete):
            message = await self.receive(None if until is None else until - now())
        return of_kind(kind, message)

    async def await_close(self, seconds: float) -> NoReturn:
        """Discard messages until the other node closes the connection.

        Raises `PeerClosed`, or `TimeoutError` after `seconds`.
        """
        async with asyncio.timeout(seconds):
            while True:
                frame = await self._socket.receive()
                if frame.type is WSMsgType.CLOSE:
                    raise PeerClosed(close_code=frame.data or ABNORMAL, reason=frame.extra or "")
                if frame.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                    raise PeerClosed

    async def close(self, code: int, reason: bytes) -> None:
        """Send a close frame, and wait a short time for the close frame of the other node."""
        # The others must not be sent (RFC 6455, 7.4), such as 1006, which stands for a lost connection.
        is_sendable = any(code in codes for codes in SENDABLE_CODES)
        await self._socket.close(code=code if is_sendable else CLOSE_OK, message=reason)


def of_kind(kind: type[M], message: msg.Message) -> M:
    """Return the message if it is a `kind`. Raises `TransferRefused` for a refusal, else `ProtocolViolated`."""
    if isinstance(message, msg.Refusal):
        raise TransferRefused(fault=message.fault)
    if not isinstance(message, kind):
        raise ProtocolViolated(
            text=f"expected {kind.__name__}, got {type(message).__name__}", where="message"
        )
    return message


def _too_long(size: str) -> InvalidInput:
    text = f"{size} bytes; others take {MAX_SENT_MESSAGE_BYTES}"  # fits into a close frame
    return InvalidInput(text=text, where="message")


class _TextFrames:
    """A text message that is sent while its text is being generated, in frames of `FRAME_BYTES` (RFC 6455, 5.4).

    aiohttp only sends a message as one frame, for which it needs the whole text, twice.
    """

    def __init__(self, socket: Socket, most: float = math.inf) -> None:
        self._socket = socket
        self._left = most
        self._opcode = WSMsgType.TEXT
        self._held = bytearray()

    async def write(self, text: str) -> None:
        """Send all full frames, and buffer the rest.

        Raises `ConnectionError`, and `InvalidInput` if the message is too long.
        """
        added = text.encode()
        self._left -= len(added)
        if self._left < 0:
            raise _too_long("more")
        self._held += added
        while len(self._held) > FRAME_BYTES:
            payload = bytes(self._held[:FRAME_BYTES])
            del self._held[:FRAME_BYTES]
            await self._send(payload)

    async def end(self) -> None:
        """Send the last frame; raises `ConnectionError`."""
        await self._socket.send_frame(bytes(self._held), self._opcode)

    async def _send(self, payload: bytes) -> None:
        """Send a frame that is not the last one, which aiohttp does not support, and wait for its backpressure."""
        writer = self._socket._writer  # noqa: SLF001 - it has the transport, which aiohttp does not give to clients
        if writer is None or writer.transport.is_closing() or self._socket.closed:
            raise ConnectionResetError
        writer.transport.write(_unfinished_frame(self._opcode, payload, is_masked=writer.use_mask))
        self._opcode = WSMsgType.CONTINUATION
        await writer.protocol._drain_helper()  # noqa: SLF001 - as the writer itself does


def _unfinished_frame(opcode: int, payload: bytes, *, is_masked: bool) -> bytes:
    """Return a frame of `FRAME_BYTES` that is not the last one of its message (RFC 6455, 5.2).

    A client must mask its frames with an unpredictable key.
    """
    if not is_masked:
        return struct.pack("!BBQ", opcode, LONG, FRAME_BYTES) + payload
    key = os.urandom(KEY_BYTES)
    keys = key * (FRAME_BYTES // KEY_BYTES)
    masked = (int.from_bytes(payload) ^ int.from_bytes(keys)).to_bytes(FRAME_BYTES)
    return struct.pack("!BBQ", opcode, MASKED | LONG, FRAME_BYTES) + key + masked


SMALL_BYTES: Final = 4 * 1024**2  # messages up to this size are not counted
# Of one message: as much as other implementations receive. Longer ones would hold up the event loop, which joins them.
MAX_MESSAGE_BYTES: Final = MAX_SENT_MESSAGE_BYTES
LARGE_MESSAGES_BYTES: Final = (
    256 * 1024**2
)  # of all large ones that are received at a time; they take three times that
WAIT_SECONDS: Final = 300.0  # for others; then the push is refused
FIRST_SECONDS: Final = 60.0  # for a large message, and one second more for each of these bytes
BYTES_PER_SECOND: Final = 64 * 1024
AROUND_BYTES: Final = 64 * 1024  # of JSON, at most, around an archive
JSON_BYTES_PER_ARCHIVE_BYTE: Final = 4  # at most
ENTRY_BYTES: Final = 1536  # of an archive for each block: header, padding, and what does not compress
INCOMPRESSIBLE: Final = 1024  # bytes that do not compress take one more, at most
TOO_MANY_PUSHES: Final = "too many large pushes at a time; try again later"
REFUSED_PUSH: Final = msg.Internal(phase=msg.Phase.PUSH_METADATA, error_message=TOO_MANY_PUSHES)
FIRST_BYTES_SECONDS: Final = 60.0  # before bytes of a large message, or of its archive, have to arrive
LEAST_BYTES_PER_SECOND: Final = 32 * 1024  # after that
SILENT_SECONDS: Final = 120.0  # without a byte; a push keeps disk and memory from others
ARRIVAL_POLL_SECONDS: Final = 10.0  # between two checks of what has arrived


def archive_bytes(plan: msg.TransferPlan) -> int:
    """Return the maximum size in bytes of an archive of the blocks that a plan announces."""
    raw = plan.bytes_in_raw_blocks
    return raw + raw // INCOMPRESSIBLE + ENTRY_BYTES * plan.num_blocks


def message_bytes(plan: msg.TransferPlan, most: int = MAX_MESSAGE_BYTES) -> int:
    """Return the maximum size in bytes of the message with the blocks that a plan announces, at most `most`."""
    archive = archive_bytes(plan)
    return min(most, max(SMALL_BYTES, AROUND_BYTES + JSON_BYTES_PER_ARCHIVE_BYTE * archive))


def seconds_for(size: int) -> float:
    """Return the seconds within which a large message of `size` bytes must be received."""
    return FIRST_SECONDS + size / BYTES_PER_SECOND


def pace_of_message(size: int) -> Pace:
    """Return the minimum pace for the next message of up to `size` bytes, or for the archive uploaded instead of it.

    A large message must arrive faster, because the memory that is reserved for it is not available to other transfers.
    """
    if size > SMALL_BYTES:
        return Pace(FIRST_BYTES_SECONDS, LEAST_BYTES_PER_SECOND, subject="")
    return Pace(SILENT_SECONDS, BODY_BYTES_PER_SECOND, total_seconds=IDLE_SECONDS, subject="")


async def expect_in_pace(channel: Channel, kind: type[M], arrived: Callable[[], int], size: int = 0) -> M:
    """Return the next message, which must be a `kind`. Raises `TimeoutError` once bytes arrive too slowly.

    `arrived` returns the number of bytes received so far; `size` is the maximum size of the message.
    """
    now = asyncio.get_running_loop().time
    pace, before, since = pace_of_message(size), await asyncio.to_thread(arrived), now()
    while True:
        try:
            return await channel.expect(kind, min(ARRIVAL_POLL_SECONDS, pace.seconds_left))
        except TimeoutError as error:
            count, until = await asyncio.to_thread(arrived), now()
            pace.note(count - before, until - since)
            before, since = count, until
            if pace.seconds_left <= 0:
                raise TimeoutError(pace.too_slow()) from error


class LargeMessages:
    """Memory budget for large messages that are being received or processed. To be used in one event loop."""

    def __init__(
        self,
        most: int = LARGE_MESSAGES_BYTES,
        wait_seconds: float = WAIT_SECONDS,
        *,
        small: int = SMALL_BYTES,
        refusal: msg.Fault = REFUSED_PUSH,
    ) -> None:
        """Reserve up to `most` bytes at a time, and half of that per caller; a single message may have any size.

        Messages of up to `small` bytes are not counted. Others wait for `wait_seconds`, and are then refused with
        `refusal`.
        """
        self._shares = Shares(most=most, of_caller=most // 2)
        self._wait_seconds = wait_seconds
        self._small = small
        self._refusal = refusal
        self._changed: asyncio.Condition | None = None

    @asynccontextmanager
    async def receiving(self, size: int, caller: Hashable) -> AsyncIterator[None]:
        """Reserve `size` bytes for a message during the `with` block, waiting for room. Raises `TransferRefused`."""
        if size <= self._small:
            yield
            return
        changed = self._changed = self._changed or asyncio.Condition()
        async with changed:
            try:
                async with asyncio.timeout(self._wait_seconds):
                    await changed.wait_for(lambda: self._shares.has_room(caller, size))
            except TimeoutError as error:
                raise TransferRefused(fault=self._refusal) from error
        try:
            with self._shares.acquire(caller, size):  # no other task has run since there was room
                yield
        finally:
            async with changed:
                changed.notify_all()
