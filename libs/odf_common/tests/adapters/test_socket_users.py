"""The kernel says whose program is at the other end of a connection."""

import os
import socket
import subprocess
import sys

import pytest

from odf_common.adapters import socket_users
from odf_common.adapters.socket_users import are_users_known, user_of_client, user_of_server

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
