"""How one end of an exchange handles each fault of the other: no socket, no server."""

import asyncio
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import WSMessage, WSMsgType
from odf_testing.builders import a_dataset, a_hash
from odf_testing.memory_store import MemoryBlobStore

from odf_common.errors import InvalidInput, Unavailable
from odf_sync.http import serve_push
from odf_sync.http.serve_push import _unpack
from odf_sync.smart import channel as channel_module
from odf_sync.smart import connection as connection_module
from odf_sync.smart import messages as msg
from odf_sync.smart.archive import ArchivedBlock, SpooledBlocks
from odf_sync.smart.channel import (
    ABNORMAL,
    SMALL_BYTES,
    TOO_MANY_PUSHES,
    Channel,
    LargeMessages,
    PeerClosed,
    message_bytes,
    of_kind,
    seconds_for,
)
from odf_sync.smart.connection import Connection, received_blocks
from odf_sync.smart.exchange import (
    PULL,
    PUSH,
    End,
    ExchangeState,
    ProtocolViolated,
    Side,
    Table,
    TransferRefused,
)
from odf_sync.smart.message_json import decode, encode

REQUEST = msg.PushRequest(
    transfer_plan=msg.TransferPlan(),
    force_update_if_diverged=False,
    visibility_for_created_dataset=msg.DatasetVisibility.PRIVATE,
)
BROKEN = msg.Refusal(fault=msg.Internal(phase=msg.Phase.PUSH_COMPLETE, error_message="disk full"))


class Frames:
    """A WebSocket that has these frames, and cannot send once `is_lost`."""

    def __init__(self, *frames: WSMessage, is_lost: bool = False, writer: object = None) -> None:
        self._frames = iter(frames)
        self._is_lost = is_lost
        self._writer = writer
        self.sent: list[str] = []

    async def receive(self, seconds: float | None = None) -> WSMessage:
        del seconds
        found = next(self._frames, None)
        if found is None:
            await asyncio.sleep(3600)
            raise AssertionError
        return found

    async def send_str(self, text: str) -> None:
        if self._is_lost:
            raise ConnectionResetError
        self.sent.append(text)

    async def send_frame(self, payload: bytes, opcode: WSMsgType) -> None:
        assert opcode is WSMsgType.TEXT
        await self.send_str(payload.decode())


def text_frame(text: str) -> WSMessage:
    return WSMessage(WSMsgType.TEXT, text, None)


def channel_of(
    socket: Frames,
    *,
    side: Side = Side.CLIENT,
    table: Table = PUSH,
    state: ExchangeState = ExchangeState.START,
) -> Channel:
    end = End(side=side, table=table)
    end.state = state
    return Channel(cast("Any", socket), end)


@pytest.mark.parametrize(
    ("frame", "error", "text"),
    [
        (WSMessage(WSMsgType.BINARY, b"{}", None), ProtocolViolated, "binary frames"),
        (WSMessage(WSMsgType.ERROR, ValueError("bad opcode"), None), ProtocolViolated, "bad opcode"),
        (WSMessage(WSMsgType.ERROR, ConnectionResetError("reset"), None), PeerClosed, "was lost"),
        (WSMessage(WSMsgType.CLOSED, None, None), PeerClosed, "was lost"),
        (WSMessage(WSMsgType.CLOSE, None, None), PeerClosed, "was lost"),
        (WSMessage(WSMsgType.CLOSE, 1001, "later"), PeerClosed, r"\(code 1001: 'later'\)"),
        (WSMessage(WSMsgType.CLOSE, 1011, encode(BROKEN)), TransferRefused, "disk full"),
        (text_frame("{}"), ProtocolViolated, "expected Err or Ok"),
    ],
)
def test_each_invalid_frame_has_its_error(frame: WSMessage, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        asyncio.run(channel_of(Frames(frame), state=ExchangeState.REQUESTED).receive())
    assert type(caught.value) is error


def test_a_large_message_is_read_as_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "LARGE_CHARACTERS", 1)
    channel = channel_of(Frames(text_frame(encode(msg.PushAccepted()))), state=ExchangeState.REQUESTED)
    assert asyncio.run(channel.receive()) == msg.PushAccepted()
    assert channel.end.state is ExchangeState.ACCEPTED


def test_sending_on_a_lost_connection_ends_the_exchange() -> None:
    with pytest.raises(PeerClosed) as closed:
        asyncio.run(channel_of(Frames(is_lost=True)).send(REQUEST))
    assert closed.value.close_code == ABNORMAL


@pytest.mark.parametrize("size", [1, channel_module.FRAME_BYTES])
@pytest.mark.parametrize(
    "writer", [None, SimpleNamespace(transport=SimpleNamespace(is_closing=lambda: True))]
)
def test_no_archive_is_sent_on_a_closed_connection(writer: object, size: int) -> None:
    socket = Frames(is_lost=True, writer=writer)
    channel = channel_of(socket, side=Side.SERVER, table=PULL, state=ExchangeState.BLOCKS_REQUESTED)
    reply = msg.MetadataReply(blocks=msg.BlocksBatch(num_blocks=1, payload=b""))
    with pytest.raises(PeerClosed):
        asyncio.run(channel.send_archive(reply, BytesIO(bytes(size))))


def test_a_message_sent_early_is_sent_once_and_counted_at_its_step() -> None:
    socket = Frames()
    channel = channel_of(socket)

    async def send() -> None:
        await channel.send_early(REQUEST)
        assert channel.end.state is ExchangeState.START
        await channel.send(REQUEST)

    asyncio.run(send())
    assert socket.sent == [encode(REQUEST)]
    assert channel.end.state is ExchangeState.REQUESTED


def test_a_message_of_another_kind_is_named_and_a_refusal_is_raised() -> None:
    assert of_kind(msg.PushAccepted, msg.PushAccepted()) == msg.PushAccepted()
    with pytest.raises(ProtocolViolated, match="expected BlocksAccepted, got PushAccepted"):
        of_kind(msg.BlocksAccepted, msg.PushAccepted())
    with pytest.raises(TransferRefused, match="disk full"):
        of_kind(msg.PushConfirmed, BROKEN)


def test_late_progress_responses_are_ignored() -> None:
    late = (msg.UploadsRunning(uploaded_objects_count=1), msg.UploadsComplete())
    last = msg.UploadsRequest(object_files=(), is_truncated=False)
    frames = [text_frame(encode(one)) for one in (*late, last)]
    channel = channel_of(Frames(*frames), side=Side.SERVER, state=ExchangeState.READY)
    assert asyncio.run(channel.expect(msg.UploadsRequest)) == last


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def test_a_node_that_does_not_answer_is_unavailable(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "ANSWER_SECONDS", 0.01)
    connection = Connection(runner, channel_of(Frames(), state=ExchangeState.REQUESTED), {})
    with pytest.raises(Unavailable, match=r"no answer in 0\.01 s"):
        connection.expect(msg.PushAccepted)


@pytest.mark.parametrize("planned", [0, 2])
def test_blocks_are_as_many_as_were_planned(runner: asyncio.Runner, planned: int) -> None:
    reply = encode(msg.MetadataReply(blocks=msg.BlocksBatch(num_blocks=1, payload=b"")))
    channel = channel_of(Frames(text_frame(reply)), table=PULL, state=ExchangeState.ACCEPTED)
    with pytest.raises(InvalidInput, match=f"1 blocks, but {planned} planned"):
        received_blocks(Connection(runner, channel, {}), msg.TransferPlan(num_blocks=planned))


HEAD, OTHER = a_hash("head"), a_hash("other")
OTHER_SEED = "it has a dataset with another id or kind under this name"


@pytest.mark.parametrize(
    ("fault", "why", "advice"),
    [
        (msg.InvalidHead(actual_head=HEAD, expected_head=OTHER), f"its head is {OTHER}", "push again"),
        (msg.InvalidHead(actual_head=HEAD, expected_head=None), "it does not have the dataset", "push again"),
        (
            msg.InvalidInterval(head=HEAD, tail=OTHER),
            f"{OTHER} is not in the chain of {HEAD}",
            "--as NAME@REF",
        ),
        (msg.SeedBlockOverwriteRestricted(), OTHER_SEED, "another name"),
        (msg.RefCollision(dataset_id="did:x"), "it has did:x under another name", "the name that it has"),
        (
            msg.NameCollision(dataset_alias="x" * 999),
            f"it has another dataset named {'x' * 200}",
            "another name",
        ),
        (msg.UnknownFault(text="y" * 999), "y" * 500, ""),
        (msg.Internal(phase=msg.Phase.PUSH_UPLOADS, error_message="z" * 999), "z" * 500, ""),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, msg.Fault) else "",
)
def test_a_refusal_has_its_reason_and_advice(fault: msg.Fault, why: str, advice: str) -> None:
    refused = TransferRefused(fault=fault)
    assert str(refused) == f"the other node refused: {why}"
    assert advice in refused.advice()
    assert bool(refused.advice()) == bool(advice)


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        (
            '{"object_files": 1, "is_truncated": false}',
            "message.object_files",
            "expected a list",
        ),
        ('{"object_files": [1], "is_truncated": false}', r"message.object_files\[0\]", "expected an object"),
        ('{"object_files": []}', "message.is_truncated", "missing"),
        ('{"object_files": [], "is_truncated": 0}', "message.is_truncated", "expected bool"),
    ],
)
def test_a_field_that_cannot_be_read_is_named(text: str, where: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"{where}.*{why}|{why}.*{where}"):
        decode(text, {msg.UploadsRequest})


@pytest.mark.parametrize("phase", ["{}", '{"Push": "Nowhere"}', "7"])
def test_an_error_with_an_unknown_phase_is_still_a_refusal(phase: str) -> None:
    facts = f'{{"phase": {phase}, "error_message": "why"}}'
    found = decode(f'{{"Err": {{"Internal": {facts}}}}}', {msg.Refusal})
    assert isinstance(found, msg.Refusal)
    assert isinstance(found.fault, msg.UnknownFault)


@pytest.mark.parametrize(("media_type", "encoding"), [("text/plain", "raw"), ("application/tar+gzip", "xz")])
def test_an_archive_of_another_kind_is_refused(media_type: str, encoding: str) -> None:
    with pytest.raises(InvalidInput, match=r"expected application/tar\+gzip \(raw\)"):
        msg.BlocksBatch(num_blocks=1, payload=b"", media_type=media_type, encoding=encoding)


def test_blocks_that_cannot_be_unpacked_leave_no_file_open() -> None:
    def blocks() -> Iterator[ArchivedBlock]:
        yield HEAD, [b"block"], b""
        raise InvalidInput(text="cut off", where="archive")

    file = BytesIO()
    with pytest.raises(InvalidInput, match="cut off"):
        SpooledBlocks(file, blocks())
    assert file.closed


def test_an_archive_that_was_not_sent_is_refused(tmp_path: Path) -> None:
    batch = msg.BlocksBatch(num_blocks=1, payload=b"", archive=HEAD)
    with pytest.raises(InvalidInput, match=f"archive {HEAD} was not sent"):
        _unpack(MemoryBlobStore(), batch, msg.TransferPlan(num_blocks=1), tmp_path / "absent")


class Silent:
    """The channel of a client with these `answers`: None for no answer in time."""

    def __init__(self, *answers: object) -> None:
        self._answers = list(answers)
        self.questions = 0

    async def receive(self, seconds: float) -> object:
        assert seconds == serve_push.PROGRESS_SECONDS
        answer = self._answers.pop(0)
        if answer is None:
            raise TimeoutError
        return answer

    async def send(self, message: object) -> None:
        assert message == msg.ProgressRequest()
        self.questions += 1


RUNNING = msg.UploadsRunning(uploaded_objects_count=1)


def test_uploads_are_awaited_while_bytes_of_objects_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the client sends: otherwise its answers would occupy a slot forever."""
    monkeypatch.setattr(serve_push, "MAX_FRUITLESS_MESSAGES", 2)
    steady = Silent(None, RUNNING, None, RUNNING, None, msg.UploadsComplete())
    arrived = iter([0, 0, 1, 1, 2, 2])
    asyncio.run(serve_push._await_uploads(cast("Any", steady), lambda: next(arrived)))
    assert steady.questions == 3


@pytest.mark.parametrize("answers", [(None, None), (None, RUNNING), (RUNNING, RUNNING)])
def test_a_client_that_sends_no_object_is_disconnected(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[object, object]
) -> None:
    monkeypatch.setattr(serve_push, "MAX_FRUITLESS_MESSAGES", 2)
    with pytest.raises(TimeoutError, match="no byte of an object arrived for 2 questions and answers"):
        asyncio.run(
            serve_push._await_uploads(cast("Any", Silent(*answers, msg.UploadsComplete())), lambda: 7)
        )
    asyncio.run(serve_push._await_uploads(cast("Any", Silent(answers[0], msg.UploadsComplete())), lambda: 7))


LARGE = 2 * SMALL_BYTES


def test_large_messages_wait_for_memory_and_a_push_that_waits_too_long_is_refused() -> None:
    large = LargeMessages(most=LARGE, wait_seconds=0.01)

    async def receive() -> list[str]:
        seen = []
        async with large.receiving(LARGE, "a"):
            async with large.receiving(SMALL_BYTES, "b"):
                seen.append("small")
            with pytest.raises(TransferRefused, match=TOO_MANY_PUSHES):
                async with large.receiving(SMALL_BYTES + 1, "c"):
                    seen.append("never")
        async with large.receiving(10 * LARGE, "d"):
            seen.append("alone")
        async with large.receiving(LARGE - SMALL_BYTES - 1, "e"), large.receiving(SMALL_BYTES + 1, "f"):
            seen.append("both")
        return seen

    assert asyncio.run(receive()) == ["small", "alone", "both"]


def test_a_waiting_message_is_received_as_soon_as_another_has_been() -> None:
    large = LargeMessages(most=LARGE, wait_seconds=30.0)
    order: list[str] = []

    async def second() -> None:
        async with large.receiving(LARGE, "g"):
            order.append("second")

    async def receive() -> None:
        async with large.receiving(LARGE, "h"):
            waiting = asyncio.create_task(second())
            await asyncio.sleep(0)
            order.append("first")
        await waiting

    asyncio.run(receive())
    assert order == ["first", "second"]


def test_each_caller_has_one_large_message_or_several_of_half_in_all() -> None:
    large = LargeMessages(most=6 * SMALL_BYTES, wait_seconds=0.01)
    third = SMALL_BYTES + SMALL_BYTES // 2

    async def may_receive(size: int, caller: str) -> bool:
        try:
            async with large.receiving(size, caller):
                return True
        except TransferRefused:
            return False

    async def receive() -> list[bool]:
        async with large.receiving(third, "ann"):
            found = [await may_receive(third, "ann"), await may_receive(third + 1, "ann")]
            async with large.receiving(third, "ann"):
                found += [await may_receive(third, "ann"), await may_receive(third, "bob")]
        async with large.receiving(4 * SMALL_BYTES, "ann"):
            found += [await may_receive(2 * SMALL_BYTES, "ann"), await may_receive(2 * SMALL_BYTES, "bob")]
        return [*found, await may_receive(6 * SMALL_BYTES, "ann")]

    assert asyncio.run(receive()) == [True, False, False, True, False, True, True]


def test_how_long_a_message_may_be_and_take_grows_with_its_plan() -> None:
    assert message_bytes(msg.TransferPlan()) == SMALL_BYTES
    assert message_bytes(msg.TransferPlan(num_blocks=1, bytes_in_raw_blocks=1000)) == SMALL_BYTES
    many = message_bytes(msg.TransferPlan(num_blocks=10_000))
    assert many > 10_000 * 4 * 512, "a header in characters of JSON"
    one = (many - message_bytes(msg.TransferPlan(num_blocks=9_000))) // 1000
    both = msg.TransferPlan(num_blocks=10_001, bytes_in_raw_blocks=1000)
    assert message_bytes(both) == many + one + 4000
    assert message_bytes(msg.TransferPlan(bytes_in_raw_blocks=1 << 40)) == 64 * 1024**2
    assert 60.0 < seconds_for(SMALL_BYTES + 1) < seconds_for(2 * SMALL_BYTES)


def test_a_push_that_lists_more_objects_than_its_blocks_refer_to_is_refused() -> None:
    one = msg.ObjectFile(object_type=msg.ObjectType.DATA_SLICE, physical_hash=HEAD, size=1)

    async def receive(count: int) -> None:
        nothing = cast("Any", None)
        listed = msg.UploadsRequest(object_files=(one,) * count, is_truncated=False)
        await serve_push._receive_objects(nothing, nothing, nothing, a_dataset(), listed, most=2)

    with pytest.raises(TransferRefused, match="3 objects for blocks that refer to fewer"):
        asyncio.run(receive(3))
    with pytest.raises(AttributeError):  # it continues, with a channel that does not exist
        asyncio.run(receive(2))


def test_late_answers_do_not_prolong_the_wait_for_a_message() -> None:
    waits: list[float | None] = []

    class Late(Channel):
        async def receive(self, seconds: float | None = None) -> Any:
            waits.append(seconds)
            if len(waits) == 3:
                raise TimeoutError
            await asyncio.sleep(0.02)
            return RUNNING

    async def expect() -> None:
        nothing = cast("Any", None)
        await Late(nothing, nothing).expect(msg.UploadsRequest, 0.03)

    with pytest.raises(TimeoutError):
        asyncio.run(expect())
    assert waits[0] == 0.03
    assert all(later is not None and later < 0.011 for later in waits[1:])
