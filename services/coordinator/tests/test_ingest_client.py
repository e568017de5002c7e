import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from odf_testing.actors import VirtualTime
from odf_testing.builders import a_dataset

from odf_common.adapters.grpc.client import ServiceUnreachable
from odf_common.proto.odf.node.v1.ingest_pb2 import PollProgress, PollRequest
from odf_common.proto.odf.node.v1.ingest_pb2_grpc import IngestServicer, add_IngestServicer_to_server
from odf_coordinator.operations.ingest_client import IngestClient


def test_an_unreachable_ingest_is_waited_for_once_and_not_for_each_dataset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualTime(monkeypatch)
    began = clock.now
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = IngestClient("127.0.0.1:{1}".format(*unused.getsockname()), timeout=0.2)
        ends = []
        for _ in range(2):
            with pytest.raises(ServiceUnreachable, match="ingest cannot be reached: no server answers"):
                list(client.drain(a_dataset()))
            ends.append(clock.now)
    assert ends[0] >= began + 0.2
    assert ends[1] == ends[0]


class Ingest(IngestServicer):
    """Answers polls, and notes on which connections."""

    def __init__(self) -> None:
        self.peers: list[str] = []
        self.left = threading.Event()

    def Poll(self, request: PollRequest, context: grpc.ServicerContext) -> Iterator[PollProgress]:  # noqa: N802
        self.peers.append(context.peer())
        context.add_callback(self.left.set)
        yield PollProgress(stage="one")
        yield PollProgress(done=True)


@contextmanager
def serving(ingest: Ingest, port: int = 0) -> Iterator[int]:
    server = grpc.server(ThreadPoolExecutor(2))
    add_IngestServicer_to_server(ingest, server)
    chosen = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield chosen
    finally:
        server.stop(None).wait()


def test_calls_share_a_connection_and_open_another_after_a_restart() -> None:
    ingest = Ingest()
    with serving(ingest) as port:
        client = IngestClient(f"127.0.0.1:{port}")
        for _ in range(3):
            assert list(client.poll(a_dataset())) == ["one", ""]
    with serving(ingest, port):
        assert list(client.poll(a_dataset())) == ["one", ""]
    first, second, third, restarted = ingest.peers
    assert first == second == third != restarted


def test_an_ingest_that_is_back_is_reached_whatever_failed_before() -> None:
    """Channels would share the pause after failed attempts to connect."""
    ingest = Ingest()
    with serving(ingest) as port:
        client = IngestClient(f"127.0.0.1:{port}", timeout=0)
        assert list(client.poll(a_dataset())) == ["one", ""]
    for _ in range(5):
        with pytest.raises(ServiceUnreachable):
            list(client.poll(a_dataset()))
        time.sleep(0.15)
    with serving(ingest, port):
        assert list(client.poll(a_dataset())) == ["one", ""]


def test_a_caller_who_leaves_cancels_the_call() -> None:
    ingest = Ingest()
    with serving(ingest) as port:
        client = IngestClient(f"127.0.0.1:{port}")
        for _ in range(2):  # on a new connection, and on a kept one
            ingest.left.clear()
            progress = client.poll(a_dataset())
            assert next(progress) == "one"
            progress.close()
            assert ingest.left.wait(10)
            assert list(client.poll(a_dataset())) == ["one", ""]
