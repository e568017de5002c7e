"""Messages of a server that are longer than what was asked for can be: the client does not take them into memory."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, cast

import pytest
from aiohttp import WSMsgType, web
from odf_testing.builders import a_hash
from odf_testing.http import running

from odf_common.errors import InvalidInput
from odf_sync.smart.channel import SMALL_BYTES, message_bytes
from odf_sync.smart.connection import LISTED_BYTES, LimitedConnection, answer_bytes, connect, received_blocks
from odf_sync.smart.exchange import PULL, PUSH, ProtocolViolated
from odf_sync.smart.message_json import encode
from odf_sync.smart.messages import (
    BlocksBatch,
    CompleteRequest,
    DatasetVisibility,
    DownloadsReply,
    DownloadsRequest,
    MetadataReply,
    ObjectFile,
    ObjectType,
    PullAccepted,
    PullRequest,
    PushAccepted,
    PushRequest,
    TransferPlan,
    UploadsRequest,
)

MIB = 1024**2
PLAN = TransferPlan(num_blocks=1, bytes_in_raw_blocks=600)
ACCEPTED = encode(PullAccepted(transfer_plan=PLAN))
PULLING = PullRequest(force_update_if_diverged=False)
BLOCKS = encode(MetadataReply(blocks=BlocksBatch(num_blocks=1, payload=b"")))
FILE = ObjectFile(object_type=ObjectType.DATA_SLICE, physical_hash=a_hash("x"), size=1)
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
        connection.expect(PullAccepted)
        with pytest.raises(ProtocolViolated, match="more than 8388608 bytes"):
            received_blocks(connection, PLAN)
    assert server.sent < 60 * MIB, "sockets hold some"


def test_the_blocks_of_a_pull_may_be_as_long_as_its_plan_allows() -> None:
    plan = TransferPlan(num_blocks=1, bytes_in_raw_blocks=3 * MIB)
    server = Server((encode(PullAccepted(transfer_plan=plan)), 0), (BLOCKS, message_bytes(plan)))
    with running(server.app) as base, connect(f"{base}/pull", PULL, {}) as connection:
        connection.send(PULLING)
        planned = connection.expect(PullAccepted).transfer_plan
        with pytest.raises(InvalidInput, match="0 blocks, but 1 announced"):
            received_blocks(connection, planned)


@pytest.mark.parametrize("is_push", [False, True])
def test_before_blocks_only_small_messages_are_taken(*, is_push: bool) -> None:
    server = Server((encode(PushAccepted()) if is_push else ACCEPTED, 200 * MIB))
    table, kind = (PUSH, PushAccepted) if is_push else (PULL, PullAccepted)
    with running(server.app) as base, connect(f"{base}/x", table, {}) as connection:
        connection.send(a_push() if is_push else PULLING)
        with pytest.raises(ProtocolViolated, match=f"more than {SMALL_BYTES} bytes"):
            connection.expect(kind)
    assert server.sent < 60 * MIB


def a_push() -> PushRequest:
    return PushRequest(
        transfer_plan=PLAN,
        force_update_if_diverged=False,
        visibility_for_created_dataset=DatasetVisibility.PRIVATE,
    )


@pytest.mark.parametrize(("blanks", "is_taken"), [(11 * MIB, True), (13 * MIB, False)])
def test_where_objects_are_may_take_more_bytes_the_more_objects_were_listed(
    blanks: int, *, is_taken: bool
) -> None:
    reply = encode(DownloadsReply(object_transfer_strategies=()))
    server = Server((ACCEPTED, 0), (BLOCKS, 0), (reply, blanks))
    files = (FILE,) * (8 * MIB // LISTED_BYTES)
    with running(server.app) as base, connect(f"{base}/pull", PULL, {}) as connection:
        connection.send(PULLING)
        connection.expect(PullAccepted)
        with pytest.raises(InvalidInput, match="0 blocks, but 1 announced"):
            received_blocks(connection, PLAN)
        connection.send(DownloadsRequest(object_files=files))
        if is_taken:
            connection.expect(DownloadsReply)
        else:
            with pytest.raises(ProtocolViolated, match="more than 12582912 bytes"):
                connection.expect(DownloadsReply)


def test_the_answer_to_a_list_may_have_more_bytes_than_others() -> None:
    files = (FILE,) * 3
    assert answer_bytes(CompleteRequest()) == SMALL_BYTES
    assert answer_bytes(DownloadsRequest(object_files=files)) == SMALL_BYTES + 3 * LISTED_BYTES
    listed = UploadsRequest(object_files=files, is_truncated=True)
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
