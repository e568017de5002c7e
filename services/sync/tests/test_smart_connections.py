"""The client's WebSocket: how many responses it waits for, and how it is closed."""

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from aiohttp import WSMessage, WSMsgType, web
from odf_testing.http import running
from odf_testing.sync_node import SyncNode, open_exchanges

from odf_common.errors import OdfError, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import ObjectKind
from odf_common.service.settings import Settings
from odf_sync.http import serve_pull, smart_routes
from odf_sync.smart import connection as smart_connection
from odf_sync.smart import messages as msg
from odf_sync.smart.channel import ABNORMAL, Channel, PeerClosed
from odf_sync.smart.connection import Connection, connect
from odf_sync.smart.exchange import PUSH, End, ProtocolViolated, Side, TransferRefused
from odf_sync.smart.message_json import encode
from odf_sync.transfer import push_to_node

ANSWERS: Final = (
    msg.PushAccepted(),
    msg.BlocksAccepted(),
    msg.UploadsReply(object_transfer_strategies=()),
    msg.PushConfirmed(),
)
MESSAGES: Final = 5  # of a push without objects

PAUSE_SECONDS = 0.2


class SlowServer:
    """Replies slowly to a close frame."""

    def __init__(self) -> None:
        self.codes: list[int | None] = []
        self.has_answered = threading.Event()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/push", self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoclose=False)
        await socket.prepare(request)
        frame = await socket.receive()
        self.codes.append(frame.data if frame.type is WSMsgType.CLOSE else None)
        await asyncio.sleep(PAUSE_SECONDS)
        self.has_answered.set()
        await socket.close()
        return socket


def test_the_servers_close_frame_is_awaited_also_if_no_message_came_in_time() -> None:
    """A client that leaves before may be treated as lost, although its push is complete."""
    server = SlowServer()
    with running(server.app()) as base, connect(f"{base}/push", PUSH, {}) as connection:
        assert connection.poll(0.01) is None
        assert connection.poll(0.01) is None
        connection.close(b"done")
        assert server.has_answered.is_set()
    assert server.codes == [1000]


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_connection_that_the_server_never_closes_is_abandoned(
    monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    """Its pings repeatedly restart aiohttp's timeout for the close frame."""
    monkeypatch.setattr(smart_connection, "CLOSE_SECONDS", 0.4)
    is_left = threading.Event()

    async def ping(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoclose=False, autoping=False)
        await socket.prepare(request)
        with suppress(ConnectionError):
            for _ in range(200):
                await socket.ping()
                await asyncio.sleep(0.05)
        is_left.set()
        return socket

    app = web.Application()
    app.router.add_get("/push", ping)
    with running(app) as base:
        begun = time.monotonic()
        with connect(f"{base}/push", PUSH, {}) as connection:
            if is_asked:
                assert connection.poll(0.01) is None
            connection.close(b"done", 0.8)
        assert time.monotonic() - begun < 5
        assert is_left.wait(10)


def test_a_connection_of_which_the_server_reads_nothing_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smart_connection, "ANSWER_SECONDS", 0.2)

    class Stuck:
        async def send(self, _: msg.Message) -> None:
            await asyncio.sleep(60)  # until the other side reads

        send_early = send

    with asyncio.Runner() as runner:
        connection = Connection(runner, cast("Any", Stuck()), {})
        for send in (connection.send, connection.send_early):
            with pytest.raises(Unavailable, match="it reads nothing"):
                send(msg.CompleteRequest())


class PatientServer:
    """Responds to a push once all of its messages have arrived, then closes."""

    def __init__(self) -> None:
        self.app = web.Application()
        self.app.router.add_get("/cities/push", self._serve)

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        socket.headers[msg.CONTINUES_HEADER] = msg.YES
        await socket.prepare(request)
        for _ in range(MESSAGES):
            await socket.receive_str()
        for answer in ANSWERS:
            await socket.send_str(encode(answer))
        await socket.close()
        return socket


def test_a_node_of_this_kind_is_sent_a_small_push_in_one_round_trip(tmp_path: Path) -> None:
    here = SyncNode(tmp_path / "here")
    here.add_cities()
    with running(PatientServer().app) as base:
        *_, last = here.push("cities", f"odf+{base}/cities")
    assert last.state == "updated"


class OtherServer:
    """Does not know this kind of node, and records what arrives before its response."""

    def __init__(self) -> None:
        self.app = web.Application()
        self.app.router.add_get("/cities/push", self._serve)
        self.came_early: list[WSMessage] = []

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive_str()
        with suppress(TimeoutError):
            self.came_early.append(await socket.receive(PAUSE_SECONDS))
        await socket.send_str(encode(ANSWERS[0]))
        for answer in ANSWERS[1:]:
            await socket.receive_str()
            await socket.send_str(encode(answer))
        await socket.close()
        return socket


def test_another_node_is_sent_nothing_before_it_has_answered(tmp_path: Path) -> None:
    here, server = SyncNode(tmp_path / "here"), OtherServer()
    here.add_cities()
    with running(server.app) as base:
        *_, last = here.push("cities", f"odf+{base}/cities")
    assert (last.state, server.came_early) == ("updated", [])


class AskingServer:
    """Has a head to drop, and asks for the progress once more before it does."""

    def __init__(self, head: Multihash, then: Multihash, blocks: dict[str, bytes]) -> None:
        self.app = web.Application()
        self.app.router.add_get("/cities/refs/head", self._head)
        self.app.router.add_get("/cities/blocks/{name}", self._block)
        self.app.router.add_get("/cities/push", self._serve)
        self._head_now, self._then, self._blocks = head, then, blocks
        self.came_early: list[WSMessage] = []

    async def _head(self, _: web.Request) -> web.Response:
        return web.Response(text=str(self._head_now))

    async def _block(self, request: web.Request) -> web.Response:
        return web.Response(body=self._blocks[request.match_info["name"]])

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for answer in ANSWERS[:3]:
            await socket.receive_str()
            await socket.send_str(encode(answer))
        for _ in range(2):
            await socket.receive_str()
        await socket.send_str(encode(msg.ProgressRequest()))
        with suppress(TimeoutError):
            self.came_early.append(await socket.receive(PAUSE_SECONDS))
        self._head_now = self._then
        await socket.send_str(encode(msg.PushConfirmed()))
        await socket.close()
        return socket


def test_a_progress_request_is_not_mistaken_for_the_confirmation_of_dropped_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_to_node, "CROSSING_SECONDS", 0.0)
    here = SyncNode(tmp_path / "here")
    here.add_cities()
    before, entry = here.head("cities"), here.catalog.by_alias("cities")
    here.coordinator.push("cities", "Oslo")
    theirs = here.head("cities")
    assert entry is not None
    assert before is not None
    assert theirs is not None
    here.refs.compare_and_set(entry.dataset_id, expected=theirs, new=before)
    blocks = {name: raw for (kind, name), raw in here.content("cities").items() if kind is ObjectKind.BLOCK}
    server = AskingServer(theirs, before, blocks)
    with running(server.app) as base:
        *_, last = here.push("cities", f"odf+{base}/cities", is_forced=True)
    assert (last.state, server.came_early) == ("updated", [])


class TruncatedServer:
    """Asks once more for the progress of a list of objects that is complete."""

    def __init__(self) -> None:
        self.app = web.Application()
        self.app.router.add_get("/push", self._serve)

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.receive_str()
        for answer in (*ANSWERS[:3], msg.ProgressRequest(), ANSWERS[2], BROKEN):
            await socket.send_str(encode(answer))
        await socket.receive()
        return socket


NOTHING: Final = msg.PushRequest(
    current_head=None,
    transfer_plan=msg.TransferPlan(),
    force_update_if_diverged=False,
    visibility_for_created_dataset=msg.DatasetVisibility.PRIVATE,
)
BROKEN: Final = msg.Refusal(fault=msg.Internal(phase=msg.Phase.PUSH_COMPLETE, error_message="disk full"))


def test_a_late_progress_request_is_ignored_and_an_error_instead_of_the_confirmation_is_a_refusal() -> None:
    with running(TruncatedServer().app) as base, connect(f"{base}/push", PUSH, {}) as connection:
        connection.send(NOTHING)
        connection.expect(msg.PushAccepted)
        connection.send(msg.NewBlocks(new_blocks=msg.BlocksBatch(num_blocks=0, payload=b"")))
        connection.expect(msg.BlocksAccepted)
        for is_truncated in (True, False):
            connection.send(msg.UploadsRequest(object_files=(), is_truncated=is_truncated))
            connection.expect(msg.UploadsReply)
            connection.send(msg.UploadsComplete())
        connection.send(msg.CompleteRequest())
        with pytest.raises(TransferRefused, match="disk full"):
            connection.expect(msg.PushConfirmed)


class FailingServer:
    """Fails while objects are uploaded, as soon as it may."""

    def __init__(self, *, text: str = "", reason: str = "") -> None:
        self.app = web.Application()
        self.app.router.add_get("/push", self._serve)
        self.fails = threading.Event()
        self._text, self._reason = text, reason

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoclose=False)
        await socket.prepare(request)
        for answer in ANSWERS[:3]:
            await socket.receive()
            await socket.send_str(encode(answer))
        await asyncio.to_thread(self.fails.wait)
        if self._text:
            await socket.send_str(self._text)
        else:
            await socket.close(code=1011, message=self._reason.encode())
        await socket.receive()
        return socket


@pytest.mark.parametrize(
    ("failure", "error", "text"),
    [
        ({"text": encode(BROKEN)}, TransferRefused, "disk full"),
        ({"text": "[]"}, ProtocolViolated, "expected an object"),
        ({"reason": encode(BROKEN)}, TransferRefused, "disk full"),
        ({"reason": "later"}, PeerClosed, "later"),
    ],
)
def test_what_ends_an_exchange_during_uploads_is_the_error_of_the_push(
    failure: dict[str, str], error: type[OdfError], text: str
) -> None:
    server = FailingServer(**failure)
    with running(server.app) as base, connect(f"{base}/push", PUSH, {}) as connection:
        connection.send(NOTHING)
        connection.expect(msg.PushAccepted)
        connection.send(msg.NewBlocks(new_blocks=msg.BlocksBatch(num_blocks=0, payload=b"")))
        connection.expect(msg.BlocksAccepted)
        connection.send(msg.UploadsRequest(object_files=(), is_truncated=False))
        connection.expect(msg.UploadsReply)
        assert connection.poll(0.01) is None
        server.fails.set()
        with pytest.raises(error, match=text):
            keep_sending(connection)


def keep_sending(connection: Connection) -> None:
    for _ in range(200):
        connection.send(msg.UploadsRunning(uploaded_objects_count=0))
        time.sleep(0.01)


def test_a_node_closes_in_order_after_the_confirmation_if_its_client_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smart_routes, "FAULT_SECONDS", 0.1)
    nothing = msg.TransferPlan(
        num_blocks=0, num_objects=0, num_records=0, bytes_in_raw_blocks=0, bytes_in_raw_objects=0
    )
    wanted = msg.PushRequest(
        current_head=None,
        transfer_plan=nothing,
        force_update_if_diverged=False,
        visibility_for_created_dataset=msg.DatasetVisibility.PRIVATE,
    )
    with (
        SyncNode(tmp_path / "there").served() as base,
        connect(f"{base}/cities/push", PUSH, {}) as connection,
    ):
        connection.send(wanted)
        connection.expect(msg.PushAccepted)
        connection.send(msg.NewBlocks(new_blocks=msg.BlocksBatch(num_blocks=0, payload=b"")))
        connection.expect(msg.BlocksAccepted)
        connection.send(msg.CompleteRequest())
        connection.expect(msg.PushConfirmed)
        with pytest.raises(PeerClosed) as closed:
            connection.expect(msg.PushConfirmed)
    assert closed.value.close_code == 1000


class Frames:
    """A WebSocket that has these frames."""

    def __init__(self, *frames: WSMessage) -> None:
        self._frames = iter(frames)

    async def receive(self) -> WSMessage:
        return next(self._frames)


@pytest.mark.parametrize(
    ("frames", "code", "reason"),
    [
        ((WSMessage(WSMsgType.CLOSE, 1000, "done"),), 1000, "done"),
        ((WSMessage(WSMsgType.TEXT, "late", None), WSMessage(WSMsgType.CLOSE, 1001, None)), 1001, ""),
        ((WSMessage(WSMsgType.BINARY, b"", None), WSMessage(WSMsgType.CLOSED, None, None)), ABNORMAL, ""),
    ],
)
def test_the_close_of_the_other_side_is_awaited_whatever_arrives_before(
    frames: tuple[WSMessage, ...], code: int, reason: str
) -> None:
    channel = Channel(cast("Any", Frames(*frames)), End(side=Side.SERVER, table=PUSH))
    with pytest.raises(PeerClosed) as closed:
        asyncio.run(channel.await_close(5.0))
    assert (closed.value.close_code, closed.value.reason) == (code, reason)


@pytest.mark.parametrize("status", [401, 403])
def test_an_object_whose_url_has_expired_is_fetched_from_the_node_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Presigned URLs are valid for an hour, and all are requested at once."""
    open_exchanges(monkeypatch)
    there = SyncNode(tmp_path / "there")
    there.add_cities()
    there.coordinator.push("cities", "Oslo")
    settings = Settings(home=tmp_path / "here", fetch_networks=("127.0.0.0/8",))
    here = SyncNode(tmp_path / "here", settings)
    asked: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=status)

    store = web.Application()
    store.router.add_get("/{path:.*}", refuse)
    with running(store) as bucket, there.served() as base:
        place = msg.TransferUrl(url=f"{bucket}/object")
        monkeypatch.setattr(serve_pull, "url_of", lambda *_: place)
        *_, last = here.pull(f"odf+{base}/cities", "cities")
    assert (last.state, asked) == ("updated", ["/object"])
    assert here.content("cities") == there.content("cities")


def test_an_archive_as_long_as_a_message_may_be_is_sent_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_to_node, "MAX_INLINE_ARCHIVE_BYTES", 7)
    (tmp_path / "archive").write_bytes(b"archive")
    continuing = cast("Any", SimpleNamespace(continues_uploads=True))
    batch = push_to_node._batch(cast("Any", None), continuing, tmp_path / "archive", 1)
    assert (batch.payload, batch.archive, batch.num_blocks) == (b"archive", None, 1)
