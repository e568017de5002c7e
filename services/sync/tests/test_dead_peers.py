"""Nodes and receivers of webhooks that vanish without a word."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from aiohttp import web
from odf_testing.black_hole import BlackHole, black_hole
from odf_testing.http import running

from odf_common.adapters.grpc.server import serve
from odf_common.errors import Unavailable
from odf_common.proto.odf.node.v1.push_pb2 import PushRequest as PushRequestOfIngest
from odf_common.proto.odf.node.v1.push_pb2 import PushTarget
from odf_common.proto.odf.node.v1.push_pb2_grpc import PushServicer, add_PushServicer_to_server
from odf_sync.http.ingest_client import SHORT_CALL_SECONDS, IngestClient, PushRefused
from odf_sync.smart.connection import Connection, connect
from odf_sync.smart.exchange import PUSH
from odf_sync.smart.messages import DatasetVisibility, PushAccepted, PushRequest, TransferPlan
from odf_sync.webhooks import sender

from .webhook_node import PREVIOUS, Node, Receiver, receiving
from .webhook_node import home as home  # noqa: PLC0414 - a fixture
from .webhook_node import node as node  # noqa: PLC0414 - a fixture
from .webhook_node import quick as quick  # noqa: PLC0414 - a fixture
from .webhook_node import receiver as receiver  # noqa: PLC0414 - a fixture

pytestmark = pytest.mark.waits
LATE_SECONDS = 60.0  # an answer may take half an hour
QUESTION = PushRequest(
    transfer_plan=TransferPlan(num_blocks=0, bytes_in_raw_blocks=0, num_objects=0, bytes_in_raw_objects=0),
    force_update_if_diverged=False,
    visibility_for_created_dataset=DatasetVisibility.PUBLIC,
)


class Ingest(PushServicer):
    """Answers the second question."""

    def __init__(self) -> None:
        self.heard = threading.Semaphore(0)
        self.end = threading.Event()
        self.asked = 0

    def Check(self, request: PushRequestOfIngest, context: object) -> PushTarget:  # noqa: N802 - gRPC's name
        self.asked += 1
        self.heard.release()
        if self.asked == 1:
            self.end.wait()
        return PushTarget(dataset_id="d")


def test_a_push_that_got_no_answer_in_time_is_the_last_one_on_its_connection() -> None:
    ingest = Ingest()

    def register(server: grpc.Server) -> tuple[str, ...]:
        add_PushServicer_to_server(ingest, server)
        return ("odf.node.v1.Push",)

    server = serve("127.0.0.1:0", register)
    with black_hole(server.port) as hole, ThreadPoolExecutor(1) as pool:
        client = IngestClient(hole.address)
        asking = pool.submit(client.check, PushRequestOfIngest(ref="d"))
        assert ingest.heard.acquire(timeout=LATE_SECONDS)
        hole.drop()
        hole.restore()
        with pytest.raises(PushRefused, match="status=503"):
            asking.result(LATE_SECONDS)
        assert client.check(PushRequestOfIngest(ref="d")).dataset_id == "d"
    ingest.end.set()
    server.stop(0)


class SilentAfterOneFailure(PushServicer):
    """Fails once, late, as a connection whose pings are missing; then it does not answer."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.asked = 0

    def Check(self, request: PushRequestOfIngest, context: grpc.ServicerContext) -> PushTarget:  # noqa: N802 - gRPC's name
        self.asked += 1
        self.end.wait(SHORT_CALL_SECONDS - 0.5 if self.asked == 1 else LATE_SECONDS)
        context.abort(grpc.StatusCode.UNAVAILABLE, "ping timeout")
        raise AssertionError


def test_a_push_is_answered_in_time_if_its_repeat_gets_no_answer_either() -> None:
    ingest = SilentAfterOneFailure()

    def register(server: grpc.Server) -> tuple[str, ...]:
        add_PushServicer_to_server(ingest, server)
        return ("odf.node.v1.Push",)

    server = serve("127.0.0.1:0", register)
    begun = time.monotonic()
    with pytest.raises(PushRefused, match="status=503"):
        IngestClient(f"127.0.0.1:{server.port}").check(PushRequestOfIngest(ref="d"))
    assert time.monotonic() - begun < SHORT_CALL_SECONDS + 2  # what a busy machine adds
    assert ingest.asked == 2
    ingest.end.set()
    server.stop(0)


class MuteServer:
    """Opens exchanges, and reads without an answer."""

    def __init__(self) -> None:
        self.heard = threading.Semaphore(0)
        self.app = web.Application()
        self.app.router.add_get("/push", self._serve)

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for _ in socket:
            self.heard.release()
        return socket


def breaks_after_the_question(connection: Connection, server: MuteServer, hole: BlackHole) -> None:
    connection.send(QUESTION)
    assert server.heard.acquire(timeout=LATE_SECONDS)
    hole.drop()


def breaks_before_the_question(connection: Connection, _: MuteServer, hole: BlackHole) -> None:
    hole.drop()
    connection.send(QUESTION)


@pytest.mark.parametrize("breaks", [breaks_after_the_question, breaks_before_the_question])
def test_an_exchange_with_a_node_that_has_gone_ends(
    breaks: Callable[[Connection, MuteServer, BlackHole], None],
) -> None:
    server, failures = MuteServer(), []
    with running(server.app) as base, black_hole(int(base.rpartition(":")[2])) as hole:

        def exchange() -> None:
            try:
                with connect(f"http://{hole.address}/push", PUSH, {}) as connection:
                    breaks(connection, server, hole)
                    connection.expect(PushAccepted)
            except Unavailable as error:
                failures.append(error)

        waiting = threading.Thread(target=exchange, daemon=True)
        waiting.start()
        waiting.join(LATE_SECONDS)
        assert len(failures) == 1


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("breaks", [BlackHole.swallow, BlackHole.drop])
def test_an_event_is_posted_again_after_its_receiver_was_away(
    node: Node, receiver: Receiver, breaks: Callable[[BlackHole], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "ATTEMPT_SECONDS", 2.0)
    silent = threading.Event()
    with receiving(silent) as lost, black_hole(port_of(lost)) as hole:
        node.add(f"http://{hole.address}/hook")
        lost.await_posts(1)
        breaks(hole)
        silent.set()  # the answer is lost
        node.move(PREVIOUS)
        node.add(receiver.url)
        assert receiver.await_posts(1)[0].facts["head"] == str(PREVIOUS)
        hole.restore()
        assert lost.await_posts(2, LATE_SECONDS)[-1].facts["head"] == str(PREVIOUS)


def port_of(receiver: Receiver) -> int:
    return int(receiver.url.rpartition(":")[2].partition("/")[0])
