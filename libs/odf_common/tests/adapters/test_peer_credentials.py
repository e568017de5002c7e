"""Calls without the node's secret are refused, whatever they call; clients send it to no other user's server."""

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from odf_testing.certificates import self_signed

from odf_common.adapters import socket_users
from odf_common.adapters.grpc.client import ServiceSilent, await_channel, calling, channel
from odf_common.adapters.grpc.peer_credentials import CallerUnknown, PeerSecret, PeerTls
from odf_common.adapters.grpc.server import GrpcServer, serve
from odf_common.adapters.socket_users import (
    ServerOfAnotherUser,
    are_users_known,
    user_of_client,
    user_of_server,
)
from odf_common.errors import InvalidInput, OdfError, Refused, Unavailable
from odf_common.proto.odf.node.v1 import ingest_pb2 as pb
from odf_common.proto.odf.node.v1 import ingest_pb2_grpc

SECRET: Final = PeerSecret(text="correct horse battery staple", users=frozenset({0}))
METHODS: Final = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
FOREIGN_SERVER: Final = """
import os, socket, sys
os.setresuid(65534, 65534, 65534)
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
server.accept()[0].recv(100)
"""

# It takes one connection, as that of a server that is down for a moment, speaks HTTP/2, and listens no more.
FOREIGN_CONNECTION: Final = """
import os, socket, sys, time
os.setresuid(65534, 65534, 65534)
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
connection = server.accept()[0]
server.close()
connection.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
print("connected", flush=True)
time.sleep(60)
"""

# It connects from the port of the server that it is given, at another address of this machine.
FOREIGN_CLIENT: Final = """
import os, socket, sys, time
os.setresuid(65534, 65534, 65534)
client = socket.socket()
client.bind(("127.0.0.2", int(sys.argv[1])))
client.connect(("127.0.0.1", int(sys.argv[2])))
print("connected", flush=True)
time.sleep(60)
"""


class Servicer(ingest_pb2_grpc.IngestServicer):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def Push(self, request_iterator: Iterator[pb.PushPart], context: grpc.ServicerContext) -> pb.PushReply:  # noqa: N802
        self.calls.append("Push")
        return pb.PushReply(records=sum(len(part.content) for part in request_iterator))

    def Drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> Iterator[pb.DrainProgress]:  # noqa: N802
        self.calls.append("Drain")
        yield pb.DrainProgress(done=True)

    def Polls(self, request: pb.PollsRequest, context: grpc.ServicerContext) -> pb.PollsReply:  # noqa: N802
        self.calls.append("Polls")
        return pb.PollsReply()


Served = tuple[Servicer, GrpcServer]


@pytest.fixture
def served() -> Iterator[Served]:
    servicer = Servicer()

    def register(server: grpc.Server) -> tuple[str, ...]:
        ingest_pb2_grpc.add_IngestServicer_to_server(servicer, server)
        return ("odf.node.v1.Ingest",)

    server = serve("127.0.0.1:0", register, credentials=SECRET)
    yield servicer, server
    server.stop(0)


def call_all(open_channel: grpc.Channel) -> None:
    stub = ingest_pb2_grpc.IngestStub(open_channel)
    assert stub.Push(iter([pb.PushPart(content=b"abc")]), timeout=5).records == 3
    assert [progress.done for progress in stub.Drain(pb.DrainRequest(), timeout=5)] == [True]
    assert stub.Polls(pb.PollsRequest(), timeout=5) == pb.PollsReply()
    assert stub.Polls.future(pb.PollsRequest(), timeout=5).result(5) == pb.PollsReply()
    check: Any = health_pb2_grpc.HealthStub(open_channel).Check
    assert check(health_pb2.HealthCheckRequest(), timeout=5).status == health_pb2.HealthCheckResponse.SERVING


def test_calls_of_all_kinds_carry_the_secret(served: Served) -> None:
    servicer, server = served
    address = f"127.0.0.1:{server.port}"
    with channel(address, SECRET) as plain, await_channel("ingest", address, credentials=SECRET) as watched:
        call_all(plain)
        call_all(watched)
    assert servicer.calls == ["Push", "Drain", "Polls", "Polls"] * 2


def test_a_connection_of_another_user_from_the_port_of_a_server_stops_no_calls(served: Served) -> None:
    _, server = served
    with socket.create_server(("127.0.0.1", 0)) as own:
        ports = str(server.port), str(own.getsockname()[1])
        command = [sys.executable, "-c", FOREIGN_CLIENT, *ports]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as foreign, own.accept()[0]:
            assert foreign.stdout is not None
            assert foreign.stdout.readline() == "connected\n"
            with channel(f"127.0.0.1:{server.port}", SECRET) as plain:
                call_all(plain)
            foreign.kill()


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", "Basic correct horse battery staple"),),
        (("authorization", "Bearer correct horse battery staple "),),
        (("authorization", "Bearer correct horse battery staple"), ("authorization", "Bearer b")),
        (("authorization", ""),),
        (("authorization-bin", b"Bearer correct horse battery staple"),),
    ],
)
@pytest.mark.parametrize(
    "method",
    [
        "/odf.node.v1.Ingest/Push",
        "/odf.node.v1.Ingest/Drain",
        "/odf.node.v1.Ingest/Polls",
        "/odf.node.v1.Ingest/NoSuchMethod",
        "/no.such.Service/Method",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ],
)
def test_without_it_every_method_is_refused_unread(
    served: Served, method: str, metadata: tuple[tuple[str, str | bytes], ...]
) -> None:
    servicer, server = served
    codes = []
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as open_channel:
        for kind in METHODS:
            call: Callable[..., Any] = getattr(open_channel, kind)(method)
            request = iter([b"\xff no message"]) if kind.startswith("stream") else b"\xff no message"
            with pytest.raises(grpc.RpcError) as refused:
                list(call(request, timeout=5, metadata=metadata))
            codes.append(refused.value.code())
    assert codes == [grpc.StatusCode.UNAUTHENTICATED] * 4
    assert servicer.calls == []


def test_a_stream_is_refused_before_its_first_message(served: Served) -> None:
    _, server = served

    def endless() -> Iterator[pb.PushPart]:
        while True:
            yield pb.PushPart(content=bytes(1000))

    with (
        grpc.insecure_channel(f"127.0.0.1:{server.port}") as open_channel,
        pytest.raises(Refused, match="lacks its secret") as refused,
        calling("ingest"),
    ):
        ingest_pb2_grpc.IngestStub(open_channel).Push(endless(), timeout=5)
    assert refused.value.code == CallerUnknown.__name__
    assert "secrets/grpc" in refused.value.advice()


def test_a_secret_that_differs_is_refused_with_the_same_error(served: Served) -> None:
    _, server = served
    other = PeerSecret(text="another home's")
    with (
        channel(f"127.0.0.1:{server.port}", other) as open_channel,
        pytest.raises(Refused, match="another home"),
        calling("ingest"),
    ):
        ingest_pb2_grpc.IngestStub(open_channel).Polls(pb.PollsRequest(), timeout=5)


@pytest.fixture
def foreign_address() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-c", FOREIGN_SERVER], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield f"127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


def test_a_server_of_another_user_is_sent_nothing(foreign_address: str) -> None:
    with channel(foreign_address, SECRET) as open_channel:
        stub = ingest_pb2_grpc.IngestStub(open_channel)
        calls: list[Callable[[], object]] = [
            lambda: stub.Polls(pb.PollsRequest(), timeout=5),
            lambda: list(stub.Drain(pb.DrainRequest(), timeout=5)),
            lambda: stub.Push(iter([]), timeout=5),
            lambda: stub.Polls.future(pb.PollsRequest(), timeout=5).result(),
        ]
        for call in calls:
            with pytest.raises(ServerOfAnotherUser, match="65534"), calling("ingest"):
                call()


def test_a_server_of_another_user_is_sent_nothing_once_it_listens_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as reserved:
        port = reserved.getsockname()[1]
    with (
        channel(f"127.0.0.1:{port}", SECRET) as open_channel,
        subprocess.Popen(
            [sys.executable, "-c", FOREIGN_CONNECTION, str(port)], stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        stub = ingest_pb2_grpc.IngestStub(open_channel)
        states = list[grpc.ChannelConnectivity]()
        open_channel.subscribe(states.append, try_to_connect=True)
        assert process.stdout.readline() == "connected\n"
        open_channel.unsubscribe(states.append)
        try:
            with pytest.raises(ServerOfAnotherUser, match="65534"), calling("ingest"):
                stub.Polls(pb.PollsRequest(), timeout=5)
        finally:
            process.kill()
            time.sleep(
                0.5
            )  # gRPC's thread looks each 0.2 s whether someone subscribes; a closed channel is an error to it


def test_one_that_listens_for_several_users_is_sent_the_secret(foreign_address: str) -> None:
    shared = PeerSecret(text=SECRET.text)
    with channel(foreign_address, shared) as open_channel, pytest.raises(ServiceSilent), calling("ingest"):
        ingest_pb2_grpc.IngestStub(open_channel).Polls(pb.PollsRequest(), timeout=1)


def test_an_address_without_a_server_fails_as_without_a_secret() -> None:
    with channel("127.0.0.1:1", SECRET) as open_channel, pytest.raises(ServiceSilent), calling("ingest"):
        ingest_pb2_grpc.IngestStub(open_channel).Polls(pb.PollsRequest(), timeout=1)


def test_the_secret_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger(__name__).warning("%r %s", SECRET, CallerUnknown())
    assert "horse" not in caplog.text
    assert isinstance(CallerUnknown(), OdfError)


def peer(folder: Path) -> PeerTls:
    folder.mkdir(exist_ok=True)
    certificate, key = self_signed(folder)
    return PeerTls.read(certificate=certificate, key=key, authority=certificate)


@pytest.fixture
def tls(tmp_path: Path) -> PeerTls:
    return peer(tmp_path)


@pytest.fixture
def port(tls: PeerTls) -> Iterator[int]:
    server = serve("127.0.0.1:0", lambda _: (), credentials=tls)
    yield server.port
    server.stop(0)


def is_serving(open_channel: grpc.Channel) -> bool:
    stub = health_pb2_grpc.HealthStub(open_channel)
    with calling("the service"):
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def test_peers_with_certificates_of_one_authority_connect(tls: PeerTls, port: int) -> None:
    address = f"127.0.0.1:{port}"
    with channel(address, tls) as plain, await_channel("the service", address, credentials=tls) as watched:
        assert is_serving(plain)
        assert is_serving(watched)


def test_others_are_refused(tmp_path: Path, tls: PeerTls, port: int) -> None:
    stranger = peer(tmp_path / "stranger")
    trusting = PeerTls(certificate=stranger.certificate, key=stranger.key, authority=tls.authority)
    for own in (None, stranger, trusting):
        with channel(f"127.0.0.1:{port}", own) as open_channel, pytest.raises(Unavailable):
            is_serving(open_channel)


def test_a_client_without_a_certificate_is_refused(tls: PeerTls, port: int) -> None:
    anonymous = grpc.ssl_channel_credentials(tls.authority)
    with grpc.secure_channel(f"127.0.0.1:{port}", anonymous) as open_channel, pytest.raises(Unavailable):
        is_serving(open_channel)


def test_a_server_whose_certificate_names_another_host_is_refused(tls: PeerTls, port: int) -> None:
    with channel(f"localhost:{port}", tls) as open_channel, pytest.raises(Unavailable):
        is_serving(open_channel)


def test_a_key_of_another_certificate_is_named_when_it_is_read(tmp_path: Path, tls: PeerTls) -> None:
    del tls
    (tmp_path / "other").mkdir()
    certificate, _ = self_signed(tmp_path)
    _, key = self_signed(tmp_path / "other")
    with pytest.raises(
        InvalidInput, match=r"cert\.pem, .*other/key\.pem: not a certificate and its private key"
    ):
        PeerTls.read(certificate=certificate, key=key, authority=certificate)


NOBODY = 65534
CLIENT = """
import encodings.idna, os, socket, sys
os.setresuid(65534, 65534, 65534)
client = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print(client.getsockname()[1], flush=True)
sys.stdin.read()
"""
SERVER = """
import encodings.idna, os, socket, sys
os.setresuid(65534, 65534, 65534)
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["netlink", "/proc/net"])
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "/proc/net":

        def refuse(*_: object) -> None:
            raise PermissionError

        monkeypatch.setattr(socket_users, "_query_netlink", refuse)
    return str(request.param)


def a_server(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::")


def test_the_kernel_of_this_machine_answers(source: str) -> None:
    are_users_known.cache_clear()
    assert are_users_known()


@pytest.mark.parametrize(
    ("listens", "connects"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("::", "127.0.0.1"),
        ("::", "::ffff:127.0.0.1"),
        ("::", "::1"),
    ],
)
def test_a_connection_of_this_process_is_ours(source: str, listens: str, connects: str) -> None:
    with a_server(listens) as server, socket.create_connection((connects, server.getsockname()[1])) as client:
        accepted, peer = server.accept()
        with accepted:
            assert user_of_client(peer[:2], accepted.getsockname()[:2]) == os.geteuid()
            assert user_of_server((connects, server.getsockname()[1])) == os.geteuid()
            assert client.getsockname()[1] == peer[1]


def test_a_connection_of_another_user_is_that_user_s(source: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            server.settimeout(10)
            accepted, peer = server.accept()
            with accepted:
                assert user_of_client(peer, accepted.getsockname()) == NOBODY
            process.communicate()


def test_a_client_that_has_closed_its_socket_is_no_user(source: str) -> None:
    """Such a socket is shown as that of user 0, whoever had it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, peer = server.accept()
        with accepted:
            client.sendall(b"PUT / HTTP/1.1")
            client.close()
            assert user_of_client(peer, accepted.getsockname()) is None


def test_a_client_that_has_only_finished_sending_is_still_known(source: str) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        accepted, peer = server.accept()
        with accepted:
            client.shutdown(socket.SHUT_WR)
            assert user_of_client(peer, accepted.getsockname()) == os.geteuid()


def test_a_server_on_the_port_of_a_client_that_has_gone_is_not_taken_for_it(source: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_server(("127.0.0.1", 0)) as server:
        assert user_of_client(other.getsockname(), server.getsockname()) is None


def test_the_server_of_another_user_is_that_user_s(source: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = ("127.0.0.1", int(process.stdout.readline()))
        assert user_of_server(address) == NOBODY
        process.communicate()
    assert user_of_server(address) is None
