"""The client's WebSocket, for code that blocks: its event loop runs only while a call waits."""

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import Any, Final, TypeVar

import aiohttp

from odf_common.errors import InvalidInput, NotFound, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_sync.access.sent_tokens import denied
from odf_sync.smart.archive import read_archive
from odf_sync.smart.channel import Channel, of_kind
from odf_sync.smart.exchange import CLOSE_OK, PUSH, End, Side, Table, TransferRefused
from odf_sync.smart.messages import (
    CHOSEN,
    CHOSEN_HEADER,
    CONTINUES,
    CONTINUES_HEADER,
    SIGNATURES,
    SIGNATURES_HEADER,
    VERSION,
    VERSION_HEADER,
    Message,
    MetadataReply,
    MetadataRequest,
    ProgressRequest,
    Refusal,
    TransferPlan,
)

T = TypeVar("T")
M = TypeVar("M", bound=Message)

CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 1800.0  # the other node packs or checks a whole chain
CLOSE_SECONDS: Final = 2.0  # for its close frame
CLOSED_SECONDS: Final = 2 * CLOSE_SECONDS  # for all of it, whatever comes instead
MESSAGE_BYTES: Final = 512 * 1024**2
PULLED: Final = b"Client pull flow succeeded"
GAVE_UP: Final = b"the client gave up"
DENIED, NOT_FOUND = (401, 403), 404
WHY: Final = {503: "it has too many transfers, or cannot reach its store; try again later"}


class Connection:
    """A client's end of an exchange."""

    def __init__(self, runner: asyncio.Runner, channel: Channel, answer: Mapping[str, str]) -> None:
        """Use an open WebSocket and its loop; `answer`: the headers of the server's answer to the upgrade."""
        self.continues_uploads = answer.get(CONTINUES_HEADER) == CONTINUES
        """Whether the server continues uploads that were cut off, and takes archives of blocks by upload."""
        self.takes_signatures = answer.get(SIGNATURES_HEADER) == SIGNATURES
        """Whether the server takes signatures in archives of blocks."""
        self.keeps_visibility = answer.get(CHOSEN_HEADER) == CHOSEN
        """Whether a new dataset gets the visibility that was chosen, also if the server is single-tenant."""
        self._runner = runner
        self._channel = channel
        self._receiving: asyncio.Future[Message] | None = None

    def send(self, message: Message) -> None:
        """Send a message; raises as `expect` does if the server has refused, or has ended the exchange, meanwhile."""
        self._run(self._sent(message))

    def send_early(self, message: Message) -> None:
        """Send a message before its turn, which comes with `send`."""
        self._run(_read_in_time(self._channel.send_early(message)))

    def expect(self, kind: type[M]) -> M:
        """Return the next message, which is of a kind; raises `TransferRefused`, and `Unavailable` if none comes.

        A question about the progress of uploads that are complete is passed over.
        """
        message = self.poll(ANSWER_SECONDS)
        while isinstance(message, ProgressRequest):
            message = self.poll(ANSWER_SECONDS)
        if message is None:
            raise Unavailable(what="the other node", why=f"no answer in {ANSWER_SECONDS:g} s")
        return of_kind(kind, message)

    def poll(self, seconds: float) -> Message | None:
        """Return the next message, None if none comes in time; raises `TransferRefused`."""
        return _not_refused(self._run(self._received(seconds)))

    def close(self, reason: bytes) -> None:
        """End the exchange."""
        self._run(self._closed(reason))

    def _has_ended(self) -> bool:
        """Return whether what came while the client waited or sent is the end of the exchange."""
        if self._receiving is None or not self._receiving.done():
            return False
        return self._receiving.exception() is not None or isinstance(self._receiving.result(), Refusal)

    async def _sent(self, message: Message) -> None:
        # Looked at by the running loop: it may receive the end of the exchange before it comes to this.
        if self._has_ended():
            _not_refused(await self._received(0))
        await _read_in_time(self._channel.send(message))

    async def _received(self, seconds: float) -> Message | None:
        if self._receiving is None:
            self._receiving = asyncio.ensure_future(self._channel.receive())
        # Not cancelled: after that aiohttp would close the connection without waiting for the server's close frame.
        await asyncio.wait({self._receiving}, timeout=seconds)
        if not self._receiving.done():
            return None
        received, self._receiving = self._receiving, None
        return received.result()

    async def _closed(self, reason: bytes) -> None:
        # The session is closed next, and with it the connection.
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSED_SECONDS):
                await self._channel.close(CLOSE_OK, reason)
        if self._receiving is not None:
            self._receiving.cancel()  # if it has just ended, its error is not asked for: nothing is logged then

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(call)


async def _read_in_time(sending: Coroutine[Any, Any, None]) -> None:
    """Send a message; raises `Unavailable` if the other side does not read it."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await sending
    except TimeoutError as error:
        why = f"it reads nothing for {ANSWER_SECONDS:g} s"
        raise Unavailable(what="the other node", why=why) from error


def _not_refused(message: Message | None) -> Message | None:
    if isinstance(message, Refusal):
        raise TransferRefused(fault=message.fault)
    return message


def received_blocks(connection: Connection, plan: TransferPlan) -> dict[Multihash, bytes]:
    """Return the blocks of a pull that was accepted, oldest first; raises `InvalidInput` unless they are as planned."""
    connection.send(MetadataRequest())
    batch = connection.expect(MetadataReply).blocks
    if batch.num_blocks != plan.num_blocks:
        text = f"{batch.num_blocks} blocks, but {plan.num_blocks} planned"
        raise InvalidInput(text=text, where="blocks")
    return dict(read_archive(BytesIO(batch.payload), count=batch.num_blocks))


@contextmanager
def connected(url: str, table: Table, headers: Mapping[str, str]) -> Iterator[Connection]:
    """Yield the client's end of an exchange at a URL; it is closed in any case.

    Raises `NotFound` and `Unavailable` if the server does not open one.
    """
    with asyncio.Runner() as runner:
        answers: list[Mapping[str, str]] = []
        session = runner.run(_session(headers, answers))
        try:
            socket = runner.run(_opened(session, url, is_push=table is PUSH))
            channel = Channel(socket, End(side=Side.CLIENT, table=table))
            connection = Connection(runner, channel, answers[-1])
            try:
                yield connection
            finally:
                connection.close(GAVE_UP)  # nothing if it is closed
        finally:
            runner.run(session.close())


async def _session(headers: Mapping[str, str], answers: list[Mapping[str, str]]) -> aiohttp.ClientSession:
    """Return a session that notes the headers of answers."""

    async def note_answer(_: object, __: object, ended: aiohttp.TraceRequestEndParams) -> None:
        answers.append(ended.response.headers)

    tracing = aiohttp.TraceConfig()
    tracing.on_request_redirect.append(_refuse_redirect)
    tracing.on_request_end.append(note_answer)
    return aiohttp.ClientSession(headers={VERSION_HEADER: str(VERSION), **headers}, trace_configs=[tracing])


async def _refuse_redirect(*_: object) -> None:
    """Raise `aiohttp.ClientError`: the protocol has no redirects, and aiohttp would follow one to any address."""
    raise aiohttp.ClientError("the server redirects, which the Smart Transfer Protocol does not have")


async def _opened(
    session: aiohttp.ClientSession, url: str, *, is_push: bool
) -> aiohttp.ClientWebSocketResponse:
    timeout = aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            return await session.ws_connect(url, autoclose=False, timeout=timeout, max_msg_size=MESSAGE_BYTES)
    except aiohttp.WSServerHandshakeError as error:
        if error.status == NOT_FOUND:
            raise NotFound(what=url) from error
        if error.status in DENIED:
            raise denied(url, error.status, session.headers, is_write=is_push) from error
        raise Unavailable(what=url, why=WHY.get(error.status, f"status {error.status}")) from error
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
        raise Unavailable(what=url, why=str(error) or "no answer in time") from error
