import os
import socket
from pathlib import Path

import pytest
from odf_testing.actors import VirtualTime

from odf_cli import clients
from odf_cli.embedded.node_file import Node
from odf_common.adapters.grpc.client import ServiceFailed, ServiceUnreachable
from odf_common.adapters.grpc.server import serve
from odf_common.proto.odf.node.v1.coordinator_pb2 import DeleteRequest
from odf_common.service.protection import peer_credentials
from odf_common.service.settings import Settings


@pytest.fixture
def listener() -> socket.socket:
    """A port at which no process listens yet."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    return made


def node(listener: socket.socket) -> Node:
    host, port = listener.getsockname()
    return Node(home=Path(), pid=1, grpc={"coordinator": f"{host}:{port}"})


def test_a_service_that_is_being_restarted_is_waited_for(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock(VirtualTime):
        pauses = 0

        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            self.pauses += 1
            if self.pauses == 3:
                listener.listen()

    clock = Clock(monkeypatch)
    with listener, clients.coordinator(node(listener)) as coordinator:
        assert coordinator is not None
    assert clock.pauses == 3


def test_a_service_that_stays_down_is_reported_with_advice(listener: socket.socket) -> None:
    with (
        listener,
        pytest.raises(ServiceUnreachable) as caught,
        clients.coordinator(node(listener), timeout=0),
    ):
        pass
    assert str(caught.value).startswith("coordinator cannot be reached: no server answers at 127.0.0.1:")
    assert "`odf status`" in caught.value.advice()


def test_a_call_that_ctrl_c_made_fail_is_an_interrupt(listener: socket.socket) -> None:
    """A command that goes on after a failed call would go on after Ctrl-C."""

    def interrupted() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("cannot release un-acquired lock")

    listener.listen()
    with listener, pytest.raises(KeyboardInterrupt), clients.coordinator(node(listener)):
        interrupted()


def test_a_call_carries_the_secret_of_the_home_of_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODF_HOME", str(tmp_path / "another"))
    home = tmp_path / "home"
    credentials = peer_credentials(Settings(home=home), "127.0.0.1:0")
    server = serve("127.0.0.1:0", lambda _: (), credentials=credentials)
    there = Node(home=home, pid=os.getpid(), grpc={"coordinator": f"127.0.0.1:{server.port}"})
    try:
        with (
            pytest.raises(ServiceFailed, match="Method not found"),
            clients.coordinator(there) as coordinator,
        ):
            coordinator.Delete(DeleteRequest(ref="orders"), timeout=10)
    finally:
        server.stop(0)
