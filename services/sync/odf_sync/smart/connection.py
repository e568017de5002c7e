"""The client's WebSocket, for synchronous code: its event loop runs only while a call waits.

The size of each received message is limited to that of the expected answer, because a message is in memory several
times before it can be read. The server limits what it receives in the same way (`odf_sync.http.connections`).
"""

import asyncio
import re
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import Any, Final, Self, TypeVar, cast

import aiohttp

from odf_common.adapters.networks import CONNECT_SECONDS, is_lost, open_socket
from odf_common.errors import InvalidInput, NotFound, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.ports.clock import Backoff
from odf_sync.access.remote_login import denial
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import BLOCKS_BYTES_LIMIT, COUNTED_BYTES, read_archive, require_countable
from odf_sync.smart.channel import SMALL_BYTES, Channel, PeerClosed, message_bytes, of_kind
from odf_sync.smart.exchange import CLOSE_OK, PUSH, End, ProtocolViolated, Side, Table, TransferRefused

LOOK_SECONDS: Final = 1.0  # between two questions to the kernel
LISTED_BYTES: Final = 4096  # of an object in the answer to a list: of a signed URL, 3 KiB


def answer_bytes(message: msg.Message) -> int:
    """Return the maximum bytes that the server may send until the next message of the client, answer included."""
    count = len(message.object_files) if isinstance(message, msg.DownloadsRequest | msg.UploadsRequest) else 0
    return SMALL_BYTES + LISTED_BYTES * count


class LimitedConnection(asyncio.Protocol):
    """A protocol that forwards received data to the transport's original protocol, up to a limit of bytes."""

    def __init__(self, transport: asyncio.Transport) -> None:
        """Replace the protocol of the transport; the initial limit is `SMALL_BYTES`."""
        self._transport = transport
        self._inner = cast("asyncio.Protocol", transport.get_protocol())
        self._most = self._left = SMALL_BYTES
        self.excess = ""
        """The reason why the connection was aborted, if more bytes than the limit were received."""
        transport.set_protocol(self)

    def limit(self, most: int) -> None:
        """Abort the connection when more than `most` bytes are received from now on."""
        self._most = self._left = most

    async def end_if_lost(self) -> None:
        """Abort the connection when the server is gone and does not acknowledge what was sent.

        The kernel would retransmit for a quarter of an hour. Its own timeout (`TCP_USER_TIMEOUT`) does not fit, as it
        counts data that a busy server has not read yet.
        """
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if is_lost(self._transport.get_extra_info("socket")):
                self._transport.abort()
                return

    def data_received(self, data: bytes) -> None:
        """Forward received bytes, or abort the connection if they exceed the limit."""
        self._left -= len(data)
        if self._left >= 0:
            self._inner.data_received(data)
        else:
            self.excess = f"more than {self._most} bytes came, which is more than the message can have"
            self._transport.abort()

    def eof_received(self) -> bool | None:
        """Forward the end of the stream."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Forward backpressure: the send buffer is full."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Forward the end of backpressure: the send buffer has room again."""
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forward that the connection was lost."""
        self._inner.connection_lost(exc)


T = TypeVar("T")
M = TypeVar("M", bound=msg.Message)

ANSWER_SECONDS: Final = 1800.0  # the other node packs or checks a whole chain
DOCUMENT_TIMEOUT: Final = aiohttp.ClientTimeout(total=60, sock_connect=CONNECT_SECONDS)
CLOSE_SECONDS: Final = 2.0  # for its close frame
CLOSED_SECONDS: Final = 2 * CLOSE_SECONDS  # for all of it, whatever comes instead
MAX_RECEIVED_MESSAGE_BYTES: Final = 512 * 1024**2  # others send all blocks of a chain in one message
PULLED: Final = b"Client pull flow succeeded"
GAVE_UP: Final = b"the client gave up"
OK, DENIED, NOT_FOUND = 200, (401, 403), 404
BUSY_STATUSES: Final = (429, 502, 503, 504)
BUSY_RETRIES: Final = 4
BUSY_BACKOFF: Final = Backoff(first=0.3, most=10.0)  # seconds
MAX_PAUSE_SECONDS: Final = 10.0  # whatever a server asks for
WHOLE_NUMBER: Final = re.compile(r"[0-9]+", re.ASCII)
WHY: Final = {
    429: "it gets too many requests from this node; try again later",
    503: "it has too many transfers, or cannot reach its store; try again later",
}


class Connection:
    """The client's end of an exchange, for synchronous code."""

    def __init__(
        self,
        runner: asyncio.Runner,
        channel: Channel,
        answer: Mapping[str, str],
        limited: LimitedConnection | None = None,
    ) -> None:
        """Use an open WebSocket and its event loop; `answer` are the headers of the response to the upgrade."""
        self.continues_uploads = answer.get(msg.CONTINUES_HEADER) == msg.YES
        """Whether the server can resume interrupted uploads, and accepts archives of blocks as uploads."""
        self.takes_signatures = answer.get(msg.SIGNATURES_HEADER) == msg.YES
        """Whether the server accepts signatures in archives of blocks."""
        self.keeps_visibility = answer.get(msg.CHOSEN_HEADER) == msg.YES
        """Whether the server gives a new dataset the visibility that the user chose, even on a single-tenant node."""
        self._runner = runner
        self._channel = channel
        self._limited = limited
        self._receiving: asyncio.Future[msg.Message] | None = None

    def send(self, message: msg.Message, most: int | None = None) -> None:
        """Send a message, and limit what the server may send next to `most` bytes; by default the size of its answer.

        Raises as `expect` does if the server has meanwhile refused or ended the exchange.
        """
        if self._limited is not None:
            self._limited.limit(answer_bytes(message) if most is None else most)
        self._run(self._send(message))

    def send_early(self, message: msg.Message) -> None:
        """Send a message before the protocol allows it; `send` must follow when it does."""
        self._run(_read_in_time(self._channel.send_early(message)))

    def expect(self, kind: type[M]) -> M:
        """Return the next message, which must be a `kind`. Raises `TransferRefused`, and `Unavailable` if none arrives.

        A question about the progress of uploads that are already complete is skipped.
        """
        message = self.poll(ANSWER_SECONDS)
        while isinstance(message, msg.ProgressRequest):
            message = self.poll(ANSWER_SECONDS)
        if message is None:
            raise Unavailable(what="the other node", why=f"no answer in {ANSWER_SECONDS:g} s")
        return of_kind(kind, message)

    def poll(self, seconds: float) -> msg.Message | None:
        """Return the next message, or None if none arrives within `seconds`. Raises `TransferRefused`."""
        return _not_refused(self._run(self._receive(seconds)))

    def close(self, reason: bytes, wait_seconds: float = CLOSED_SECONDS) -> None:
        """Send a close frame, and wait up to `wait_seconds` for that of the server."""
        self._run(self._close(reason, wait_seconds))

    def _has_ended(self) -> bool:
        """Return whether the server has ended the exchange while the client was waiting or sending."""
        if self._receiving is None or not self._receiving.done():
            return False
        return self._receiving.exception() is not None or isinstance(self._receiving.result(), msg.Refusal)

    async def _send(self, message: msg.Message) -> None:
        # Looked at by the running loop: it may receive the end of the exchange before it comes to this.
        if self._has_ended():
            _not_refused(await self._receive(0))
        await _read_in_time(self._channel.send(message))

    async def _receive(self, seconds: float) -> msg.Message | None:
        if self._receiving is None:
            self._receiving = asyncio.ensure_future(self._channel.receive())
        # Not cancelled: after that aiohttp would close the connection without waiting for the server's close frame.
        await asyncio.wait({self._receiving}, timeout=seconds)
        if not self._receiving.done():
            return None
        received, self._receiving = self._receiving, None
        return received.result()

    async def _close(self, reason: bytes, wait_seconds: float) -> None:
        # The session is closed next, and with it the connection.
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_seconds):
                await self._channel.close(CLOSE_OK, reason)
        if self._receiving is not None:
            self._receiving.cancel()  # if it has just ended, its error is not asked for: nothing is logged then

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(call)
        except PeerClosed as closed:
            if self._limited is not None and self._limited.excess:
                raise ProtocolViolated(where="message", text=self._limited.excess) from closed
            raise


async def _read_in_time(sending: Coroutine[Any, Any, None]) -> None:
    """Send a message. Raises `Unavailable` if the other node does not read it within `ANSWER_SECONDS`."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await sending
    except TimeoutError as error:
        why = f"it reads nothing for {ANSWER_SECONDS:g} s"
        raise Unavailable(what="the other node", why=why) from error


def _not_refused(message: msg.Message | None) -> msg.Message | None:
    if isinstance(message, msg.Refusal):
        raise TransferRefused(fault=message.fault)
    return message


def received_blocks(connection: Connection, plan: msg.TransferPlan) -> dict[Multihash, bytes]:
    """Request and return the blocks of an accepted pull, oldest first.

    Raises `InvalidInput` unless their number and size are those of the plan.
    """
    require_countable(plan, limit=BLOCKS_BYTES_LIMIT, counted=COUNTED_BYTES)
    connection.send(msg.MetadataRequest(), message_bytes(plan, MAX_RECEIVED_MESSAGE_BYTES) + SMALL_BYTES)
    batch = connection.expect(msg.MetadataReply).blocks
    if batch.num_blocks != plan.num_blocks:
        text = f"{batch.num_blocks} blocks, but {plan.num_blocks} planned"
        raise InvalidInput(text=text, where="blocks")
    limit = plan.bytes_in_raw_blocks
    return dict(read_archive(BytesIO(batch.payload), count=batch.num_blocks, limit=limit))


class NodeSession:
    """A client's connection to a node, which serves requests for small documents and then exchanges.

    To connect takes one round trip, or three with TLS; the first exchange reuses the connection of the documents.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._session: aiohttp.ClientSession | None = None
        self._answer: Mapping[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._runner.run(self._session.close())
        self._runner.close()

    def document(
        self, url: str, headers: Mapping[str, str], limit: int
    ) -> tuple[bytes | None, Mapping[str, str]] | None:
        """Return the body at a URL, of at most `limit` bytes, and the response headers; the body is None for a 404.

        Returns None for any other response and for a lost connection. The caller then uses `HttpDataset`, which follows
        redirects, retries, and reports each status. Raises `Unavailable` if no response arrives in time.
        """
        return self._runner.run(self._document(url, headers, limit))

    @contextmanager
    def exchange(self, url: str, table: Table, headers: Mapping[str, str]) -> Iterator[Connection]:
        """Open an exchange at a URL, yield the client's end of it, and close it at the end of the `with` block.

        Raises `NotFound` and `Unavailable` if the server does not accept the WebSocket.
        """
        socket = self._runner.run(self._open(url, headers, is_push=table is PUSH))
        channel = Channel(socket, End(side=Side.CLIENT, table=table))
        limited = LimitedConnection(socket._writer.transport)  # noqa: SLF001 - aiohttp does not give it
        connection = Connection(self._runner, channel, self._answer, limited)
        watching = self._runner.get_loop().create_task(limited.end_if_lost())
        try:
            yield connection
        finally:
            watching.cancel()
            connection.close(GAVE_UP)  # nothing if it is closed

    async def _document(
        self, url: str, headers: Mapping[str, str], limit: int
    ) -> tuple[bytes | None, Mapping[str, str]] | None:
        headers = {**headers, "Accept-Encoding": "identity"}
        content = bytearray()
        try:
            # A server that is private may redirect to where one logs in.
            async with self._http().get(
                url, headers=headers, allow_redirects=False, timeout=DOCUMENT_TIMEOUT
            ) as answer:
                # Without its length, it could not be told from one that was interrupted.
                if answer.status not in (OK, NOT_FOUND) or answer.content_length is None:
                    return None
                async for chunk in answer.content.iter_chunked(limit):
                    content += chunk
                    if len(content) > limit:
                        return None
                return bytes(content) if answer.status == OK else None, answer.headers
        except TimeoutError as error:
            raise Unavailable(what=url, why="no answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError):
            return None

    async def _open(
        self, url: str, headers: Mapping[str, str], *, is_push: bool
    ) -> aiohttp.ClientWebSocketResponse:
        """Return an open WebSocket; retries up to `BUSY_RETRIES` times while the server is busy."""
        failures = 0
        while True:
            failures += 1
            try:
                return await self._upgrade(url, headers)
            except aiohttp.WSServerHandshakeError as error:
                if error.status == NOT_FOUND:
                    raise NotFound(what=url) from error
                if error.status in DENIED:
                    raise denial(url, error.status, headers, is_write=is_push) from error
                if error.status not in BUSY_STATUSES or failures > BUSY_RETRIES:
                    why = WHY.get(error.status, f"status {error.status}")
                    raise Unavailable(what=url, why=why) from error
                pause = _pause(failures, error.headers or {})
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                raise Unavailable(what=url, why=str(error) or "no answer in time") from error
            await asyncio.sleep(pause)

    async def _upgrade(self, url: str, headers: Mapping[str, str]) -> aiohttp.ClientWebSocketResponse:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await self._http().ws_connect(
                url,
                headers={msg.VERSION_HEADER: str(msg.VERSION), **headers},
                autoclose=False,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
                max_msg_size=MAX_RECEIVED_MESSAGE_BYTES,
            )

    def _http(self) -> aiohttp.ClientSession:
        """Return the session, created at the first call, as that needs a running loop.

        It keeps the latest response headers.
        """
        if self._session is None:

            async def note_answer(_: object, __: object, ended: aiohttp.TraceRequestEndParams) -> None:
                self._answer = ended.response.headers

            tracing = aiohttp.TraceConfig()
            tracing.on_request_redirect.append(_refuse_redirect)
            tracing.on_request_end.append(note_answer)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(socket_factory=open_socket),
                trace_configs=[tracing],
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


@contextmanager
def connect(url: str, table: Table, headers: Mapping[str, str]) -> Iterator[Connection]:
    """Open an exchange over a connection of its own, as `NodeSession.exchange` does."""
    with NodeSession() as session, session.exchange(url, table, headers) as connection:
        yield connection


def _pause(failures: int, headers: Mapping[str, str]) -> float:
    """Return the seconds until the next attempt at a busy server.

    At least its `Retry-After`, up to `MAX_PAUSE_SECONDS`.
    """
    retry_after = headers.get("Retry-After", "")
    seconds = float(retry_after) if WHOLE_NUMBER.fullmatch(retry_after) else 0.0
    return max(BUSY_BACKOFF.pause(failures), min(seconds, MAX_PAUSE_SECONDS))


async def _refuse_redirect(*_: object) -> None:
    """Raise `aiohttp.ClientError`: the protocol has no redirects, and aiohttp would follow one to any address."""
    raise aiohttp.ClientError("the server redirects, which the Smart Transfer Protocol does not have")
