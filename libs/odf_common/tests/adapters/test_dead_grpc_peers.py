"""Channels over networks that break without a word: a call in flight ends, and the next one gets a new connection."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest
from odf_testing.black_hole import BlackHole, black_hole

from odf_common.adapters.grpc import server as server_module
from odf_common.adapters.grpc.client import CALL_TIMEOUT_SECONDS, ServiceSilent, calling, channel
from odf_common.adapters.grpc.server import GrpcServer, serve
from odf_common.proto.odf.node.v1 import ingest_pb2 as pb
from odf_common.proto.odf.node.v1 import ingest_pb2_grpc

NAME = "odf.node.v1.Ingest"
LATE_SECONDS = 30.0  # a deadline that no call here may reach
Break = Callable[[BlackHole], None]
BREAKS: tuple[Break, ...] = (BlackHole.swallow, BlackHole.drop)


class Servicer(ingest_pb2_grpc.IngestServicer):
    """Its streams, and its calls while it is slow, end when the test does; `left` is set when a stream's caller has gone."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.is_slow = False
        self.left = threading.Event()
        self.asked = threading.Semaphore(0)

    def Polls(self, request: pb.PollsRequest, context: grpc.ServicerContext) -> pb.PollsReply:  # noqa: N802
        self.asked.release()
        if self.is_slow:
            self.end.wait()
        return pb.PollsReply()

    def Drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> Iterator[pb.DrainProgress]:  # noqa: N802
        context.add_callback(self.left.set)
        yield pb.DrainProgress(waiting=1)
        self.end.wait()


@contextmanager
def serving() -> Iterator[tuple[Servicer, GrpcServer]]:
    servicer = Servicer()

    def register(server: grpc.Server) -> tuple[str, ...]:
        ingest_pb2_grpc.add_IngestServicer_to_server(servicer, server)
        return (NAME,)

    server = serve("127.0.0.1:0", register)
    try:
        yield servicer, server
    finally:
        servicer.end.set()
        server.stop(0)


def fails_without_its_deadline(call: object) -> None:
    begun = time.monotonic()
    with pytest.raises(ServiceSilent) as raised, calling("ingest"):
        call()  # type: ignore[operator]
    assert raised.value.why == "its process is stopped, or the network to it is broken"
    print(f"noticed after {time.monotonic() - begun:.1f} s: {raised.value.why}")


@pytest.mark.parametrize("breaks", BREAKS)
def test_a_call_in_flight_ends_when_the_network_breaks_and_the_next_one_is_answered(breaks: Break) -> None:
    with serving() as (servicer, server), black_hole(server.port) as hole, channel(hole.address) as opened:
        stub = ingest_pb2_grpc.IngestStub(opened)
        servicer.is_slow = True
        call = stub.Polls.future(pb.PollsRequest(), timeout=LATE_SECONDS)
        assert servicer.asked.acquire(timeout=LATE_SECONDS)
        breaks(hole)
        fails_without_its_deadline(call.result)
        servicer.is_slow = False
        hole.restore()
        assert stub.Polls(pb.PollsRequest(), timeout=LATE_SECONDS) == pb.PollsReply()


@pytest.mark.parametrize("breaks", BREAKS)
def test_a_stream_ends_when_the_network_breaks(breaks: Break) -> None:
    with serving() as (_, server), black_hole(server.port) as hole, channel(hole.address) as opened:
        stub = ingest_pb2_grpc.IngestStub(opened)
        stream = stub.Drain(pb.DrainRequest(), timeout=LATE_SECONDS)
        assert next(stream).waiting == 1
        breaks(hole)
        fails_without_its_deadline(lambda: next(stream))


def test_a_server_ends_the_stream_of_a_client_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**dict(server_module.OPTIONS), "grpc.http2.ping_timeout_ms": 1000}  # instead of a minute
    monkeypatch.setattr(server_module, "OPTIONS", tuple(options.items()))
    with serving() as (servicer, server), black_hole(server.port) as hole, channel(hole.address) as opened:
        stream = ingest_pb2_grpc.IngestStub(opened).Drain(pb.DrainRequest(), timeout=10 * LATE_SECONDS)
        assert next(stream).waiting == 1
        hole.drop()
        assert servicer.left.wait(LATE_SECONDS)


def test_a_call_on_a_connection_that_died_while_it_was_idle_reaches_the_server_at_its_new_port() -> None:
    with (
        serving() as (_, before),
        serving() as (_, after),
        black_hole(before.port) as hole,
        channel(hole.address) as opened,
    ):
        stub = ingest_pb2_grpc.IngestStub(opened)
        assert stub.Polls(pb.PollsRequest(), timeout=LATE_SECONDS) == pb.PollsReply()
        states: list[grpc.ChannelConnectivity] = []
        lost = threading.Event()

        def note(state: grpc.ChannelConnectivity) -> None:
            states.append(state)
            if state is not grpc.ChannelConnectivity.READY and grpc.ChannelConnectivity.READY in states:
                lost.set()

        opened.subscribe(note)
        hole.drop()
        assert lost.wait(LATE_SECONDS)  # no call was made
        before.stop(0)
        hole.restore(after.port)
        assert stub.Polls(pb.PollsRequest(), timeout=LATE_SECONDS, wait_for_ready=True) == pb.PollsReply()


def test_a_call_without_a_deadline_gets_that_of_a_short_call() -> None:
    deadlines: list[float] = []

    class Deadlines(Servicer):
        def Polls(self, request: pb.PollsRequest, context: grpc.ServicerContext) -> pb.PollsReply:  # noqa: N802
            deadlines.append(context.time_remaining())
            return pb.PollsReply()

    def register(server: grpc.Server) -> tuple[str, ...]:
        ingest_pb2_grpc.add_IngestServicer_to_server(Deadlines(), server)
        return (NAME,)

    server = serve("127.0.0.1:0", register)
    with channel(f"127.0.0.1:{server.port}") as opened:
        stub = ingest_pb2_grpc.IngestStub(opened)
        stub.Polls(pb.PollsRequest())
        stub.Polls(pb.PollsRequest(), timeout=1000)
    server.stop(0)
    assert 0 < deadlines[0] < 2 * CALL_TIMEOUT_SECONDS < deadlines[1]
