"""How connections and exchanges begin and end, whatever happened in them; too long messages end them, too."""

import asyncio
import gc
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from aiohttp import WSMessage, WSMsgType, web
from odf_testing.builders import a_hash
from odf_testing.http import running
from structlog.testing import capture_logs

from odf_common.errors import Damaged, InvalidInput, StorageUnavailable, Unavailable
from odf_sync.http.smart_routes import FAULT_SECONDS, _run
from odf_sync.repositories.http_dataset import UnexpectedStatus
from odf_sync.smart import channel as channel_module
from odf_sync.smart import messages as msg
from odf_sync.smart.channel import SMALL_BYTES, Channel, PeerClosed, _TextFrames, message_bytes
from odf_sync.smart.connection import (
    LISTED_BYTES,
    Connection,
    LimitedConnection,
    answer_bytes,
    connect,
    received_blocks,
)
from odf_sync.smart.exchange import (
    CLOSE_FAULT,
    CLOSE_OK,
    PULL,
    PUSH,
    End,
    ExchangeState,
    ProtocolViolated,
    Side,
    TransferRefused,
)
from odf_sync.smart.message_json import encode

MIB = 1024**2
PLAN = msg.TransferPlan(num_blocks=1, bytes_in_raw_blocks=600)
ACCEPTED = encode(msg.PullAccepted(transfer_plan=PLAN))
PULLING = msg.PullRequest(force_update_if_diverged=False)
BLOCKS = encode(msg.MetadataReply(blocks=msg.BlocksBatch(num_blocks=1, payload=b"")))
FILE = msg.ObjectFile(object_type=msg.ObjectType.DATA_SLICE, physical_hash=a_hash("x"), size=1)
PIECE = b" " * 65536


class Server:
    """Answers each message by the next text, and continues after it with blanks; `sent` are bytes of the last one."""

    def __init__(self, *answers: tuple[str, int]) -> None:
        self.sent = 0
        self.app = web.Application()
        self.app.router.add_get("/{name}", self._serve)
        self._answers = answers

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoclose=False)
        await socket.prepare(request)
        with suppress(ConnectionError):
            for text, blanks in self._answers:
                await socket.receive()
                await self._send(socket, text.encode(), blanks // len(PIECE))
            await socket.receive()
        return socket

    async def _send(self, socket: web.WebSocketResponse, text: bytes, pieces: int) -> None:
        """Send one message in small frames."""
        writer = cast("Any", socket)._writer
        self.sent = 0
        for number, piece in enumerate((text, *(PIECE for _ in range(pieces)))):
            if writer.transport.is_closing():
                return
            opcode = WSMsgType.CONTINUATION if number else WSMsgType.TEXT
            is_last = number == pieces
            first = bytes([opcode | (128 if is_last else 0), 127])
            writer.transport.write(first + len(piece).to_bytes(8) + piece)
            await writer.protocol._drain_helper()
            self.sent += len(piece)


def test_the_blocks_of_a_pull_are_no_longer_than_its_plan_allows() -> None:
    server = Server((ACCEPTED, 0), (BLOCKS, 200 * MIB))
    with running(server.app) as base, connect(f"{base}/pull", PULL, {}) as connection:
        connection.send(PULLING)
        connection.expect(msg.PullAccepted)
        with pytest.raises(ProtocolViolated, match="more than 8388608 bytes"):
            received_blocks(connection, PLAN)
    assert server.sent < 60 * MIB, "sockets hold some"


def test_the_blocks_of_a_pull_may_be_as_long_as_its_plan_allows() -> None:
    plan = msg.TransferPlan(num_blocks=1, bytes_in_raw_blocks=3 * MIB)
    server = Server((encode(msg.PullAccepted(transfer_plan=plan)), 0), (BLOCKS, message_bytes(plan)))
    with running(server.app) as base, connect(f"{base}/pull", PULL, {}) as connection:
        connection.send(PULLING)
        planned = connection.expect(msg.PullAccepted).transfer_plan
        with pytest.raises(InvalidInput, match="0 blocks, but 1 announced"):
            received_blocks(connection, planned)


@pytest.mark.parametrize("is_push", [False, True])
def test_before_blocks_only_small_messages_are_taken(*, is_push: bool) -> None:
    server = Server((encode(msg.PushAccepted()) if is_push else ACCEPTED, 200 * MIB))
    table, kind = (PUSH, msg.PushAccepted) if is_push else (PULL, msg.PullAccepted)
    with running(server.app) as base, connect(f"{base}/x", table, {}) as connection:
        connection.send(a_push() if is_push else PULLING)
        with pytest.raises(ProtocolViolated, match=f"more than {SMALL_BYTES} bytes"):
            connection.expect(kind)
    assert server.sent < 60 * MIB


def a_push() -> msg.PushRequest:
    return msg.PushRequest(
        transfer_plan=PLAN,
        force_update_if_diverged=False,
        visibility_for_created_dataset=msg.DatasetVisibility.PRIVATE,
    )


@pytest.mark.parametrize(("blanks", "is_taken"), [(11 * MIB, True), (13 * MIB, False)])
def test_where_objects_are_may_take_more_bytes_the_more_objects_were_listed(
    blanks: int, *, is_taken: bool
) -> None:
    reply = encode(msg.DownloadsReply(object_transfer_strategies=()))
    server = Server((ACCEPTED, 0), (BLOCKS, 0), (reply, blanks))
    files = (FILE,) * (8 * MIB // LISTED_BYTES)
    with running(server.app) as base, connect(f"{base}/pull", PULL, {}) as connection:
        connection.send(PULLING)
        connection.expect(msg.PullAccepted)
        with pytest.raises(InvalidInput, match="0 blocks, but 1 announced"):
            received_blocks(connection, PLAN)
        connection.send(msg.DownloadsRequest(object_files=files))
        if is_taken:
            connection.expect(msg.DownloadsReply)
        else:
            with pytest.raises(ProtocolViolated, match="more than 12582912 bytes"):
                connection.expect(msg.DownloadsReply)


def test_the_answer_to_a_list_may_have_more_bytes_than_others() -> None:
    files = (FILE,) * 3
    assert answer_bytes(msg.CompleteRequest()) == SMALL_BYTES
    assert answer_bytes(msg.DownloadsRequest(object_files=files)) == SMALL_BYTES + 3 * LISTED_BYTES
    listed = msg.UploadsRequest(object_files=files, is_truncated=True)
    assert answer_bytes(listed) == SMALL_BYTES + 3 * LISTED_BYTES


class Inner(asyncio.Protocol):
    """Notes what is passed on."""

    def __init__(self) -> None:
        self.notes: list[object] = []

    def data_received(self, data: bytes) -> None:
        self.notes.append(data)

    def eof_received(self) -> bool:
        self.notes.append("end")
        return True

    def pause_writing(self) -> None:
        self.notes.append("pause")

    def resume_writing(self) -> None:
        self.notes.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.notes.append(str(exc))


class Transport(asyncio.Transport):
    def __init__(self, inner: asyncio.Protocol) -> None:
        super().__init__()
        self.protocol: asyncio.BaseProtocol = inner
        self.aborts = 0

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def abort(self) -> None:
        self.aborts += 1


@pytest.mark.parametrize(
    ("pieces", "notes", "aborts"),
    [
        ([b"abc"], [b"abc", "lost"], 0),
        ([b"ab", b"cd"], [b"ab", "lost"], 1),
    ],
)
def test_a_connection_ends_when_more_comes_than_allowed(
    pieces: Sequence[bytes], notes: Sequence[object], aborts: int
) -> None:
    transport = Transport(inner := Inner())
    limited = LimitedConnection(transport)
    assert transport.get_protocol() is limited
    limited.limit(3)
    for piece in pieces:
        limited.data_received(piece)
    limited.connection_lost(OSError("lost"))
    assert inner.notes == notes
    assert transport.aborts == aborts


def test_a_limited_connection_passes_on_what_else_happens() -> None:
    limited = LimitedConnection(Transport(inner := Inner()))
    events: tuple[Callable[[], object], ...] = (limited.pause_writing, limited.resume_writing)
    for event in events:
        event()
    assert limited.eof_received() is True
    limited.connection_lost(None)
    assert inner.notes == ["pause", "resume", "end", "None"]


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


BYE: Final = (1000, b"bye")  # the client's close code


class ServedChannel:
    """An exchange in some state, and how it was ended: by a close frame, or by waiting for that of the client."""

    def __init__(self, state: ExchangeState, *, is_silent: bool) -> None:
        self.end = End(side=Side.SERVER, table=PUSH, state=state)
        self.frames: list[tuple[int, bytes]] = []
        self.waits: list[float] = []
        self.is_silent = is_silent

    async def close(self, code: int, reason: bytes) -> None:
        self.frames.append((code, reason))

    async def await_close(self, seconds: float) -> None:
        self.waits.append(seconds)
        if self.is_silent:
            raise TimeoutError
        raise PeerClosed(close_code=BYE[0], reason=BYE[1].decode())

    async def receive(self, seconds: float) -> None:
        await self.await_close(seconds)


def ended(state: ExchangeState, error: Exception | None = None, *, is_silent: bool = False) -> ServedChannel:
    channel = ServedChannel(state, is_silent=is_silent)
    request = SimpleNamespace(path="/push")

    async def serve(_: object) -> None:
        if error is not None:
            raise error

    with capture_logs():
        asyncio.run(_run(cast("Any", channel), cast("Any", request), serve))
    return channel


def test_a_confirmed_exchange_is_closed_by_the_client_or_else_by_the_server() -> None:
    waited = ended(ExchangeState.DONE)
    assert (waited.frames, waited.waits) == ([BYE], [FAULT_SECONDS])
    assert ended(ExchangeState.DONE, is_silent=True).frames == [(CLOSE_OK, b"")]


def test_after_a_refusal_any_client_closes() -> None:
    refused = ended(ExchangeState.FAILED)
    assert (refused.frames, refused.waits) == ([BYE], [FAULT_SECONDS])
    ((code, _),) = ended(ExchangeState.FAILED, is_silent=True).frames
    assert code == CLOSE_FAULT


def test_a_client_that_has_closed_gets_its_own_frame_back() -> None:
    assert ended(ExchangeState.READY, PeerClosed(close_code=1001, reason="bye")).frames == [(1001, b"bye")]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TransferRefused(fault=msg.SeedBlockOverwriteRestricted()), "SeedBlockOverwriteRestricted"),
        (Unavailable(what="the coordinator", why="secret"), "the coordinator cannot be reached"),
        (UnexpectedStatus(what="secret", status=500), "the node cannot reach its store; try again"),
        (StorageUnavailable(file="secret", why="secret"), "the node cannot reach its store; try again"),
        (Damaged(file="secret", why="secret"), "the node cannot use what it has stored"),
        (TimeoutError(), "no message in time"),
        (ZeroDivisionError("secret"), "Internal error"),
    ],
)
def test_a_fault_is_the_reason_of_the_servers_close_frame(error: Exception, text: str) -> None:
    ((code, reason),) = ended(ExchangeState.COMPLETING, error).frames
    assert code == CLOSE_FAULT
    assert text in json.dumps(json.loads(reason))
    assert b"secret" not in reason
