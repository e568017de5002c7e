"""A server in a separate process with 2,000 slow or greedy clients: its memory is bounded, others are served."""

import http.client
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from odf_testing.sync_node import SyncNode

from odf_cli.embedded.parts.tcp_ports import allocate
from odf_common.hashing.multihash import physical_hash_of
from odf_common.ports.store import ObjectKind
from odf_sync.smart.messages import VERSION, VERSION_HEADER

OBJECT: Final = os.urandom(1 << 20) * 16  # more than sockets hold
SILENT, STALLED, GREEDY = 1300, 640, 60
OF_ADDRESS: Final = 10  # greedy clients; 16 exchanges of one address are served
FRAME_BYTES, SENT_BYTES = 15 << 20, 1 << 20  # of a message: announced, and sent
MIB: Final = 1024
GROWTH_MIB: Final = 300
OTHERS: Final = "127.0.9.9"
SERVE: Final = """
import sys, threading
from pathlib import Path
from odf_common.service.settings import Settings
from odf_sync.http.authorization import Authorizer
from odf_sync.http.simple_protocol import SimpleProtocol
from odf_sync.http.object_uploads import OpenPushes
from odf_sync.http.server import serve_http
from odf_sync.http.smart_routes import SmartProtocol
from odf_testing.sync_node import SyncNode
home, address = sys.argv[1:]
node, pushes = SyncNode(Path(home)), OpenPushes()
authorizer = Authorizer(catalog=node.catalog, local_writers="off")
simple = SimpleProtocol(node.datasets, Path(home), pushes)
rooms = simple, SmartProtocol(node.datasets, node.settings, node.replies, authorizer, pushes)
served = tuple(one for room in rooms for one in room.endpoints())
serve_http(authorizer, served, Settings(home=Path(home), sync_http=address), threading.Event())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    port: int
    pid: int

    def connect(self, address: str, sent: bytes) -> socket.socket:
        """Open a connection from an address of this machine, and send something."""
        opened = socket.socket()
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.settimeout(20)
        opened.bind((address, 0))
        opened.connect(("127.0.0.1", self.port))
        opened.sendall(sent)
        return opened

    def ask(self, path: str) -> tuple[int, int]:
        """Return status and length of an answer to another client."""
        with closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=20, source_address=(OTHERS, 0))
        ) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, len(answer.read())

    def most_mib(self) -> int:
        """Return the most memory that it has had."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) // MIB


@pytest.fixture
def files() -> Iterator[None]:
    """Allow as many open files as the system does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def server(tmp_path: Path, files: None) -> Iterator[Server]:
    node = SyncNode(tmp_path)
    node.add_cities()
    dataset = node.coordinator.find("cities").id
    node.blobs.put(dataset, ObjectKind.DATA, physical_hash_of(OBJECT), OBJECT)
    port = allocate(tmp_path, ("sync",))["sync"]
    process = subprocess.Popen([sys.executable, "-c", SERVE, str(tmp_path), f"127.0.0.1:{port}"])
    server = Server(port=port, pid=process.pid)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                assert server.ask("/cities/refs/head")[0] == 200
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield server
    finally:
        process.kill()
        process.wait()


def requested(path: str, **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode()


def test_thousands_of_slow_clients_cost_little_memory_and_others_are_served(server: Server) -> None:
    large = f"/cities/data/{physical_hash_of(OBJECT)}"
    upgrade = requested(
        "/cities/pull",
        Connection="Upgrade",
        Upgrade="websocket",
        Sec_WebSocket_Version="13",
        Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
        **{VERSION_HEADER: str(VERSION)},
    )
    frame = b"\x81\xff" + FRAME_BYTES.to_bytes(8) + bytes(4) + b"[" * SENT_BYTES
    assert server.ask(large) == (200, len(OBJECT))
    before = server.most_mib()
    with ExitStack() as opened:
        for number in range(GREEDY):
            greedy = opened.enter_context(server.connect(f"127.0.3.{number // OF_ADDRESS + 1}", upgrade))
            assert b" 101 " in greedy.recv(4096)
            greedy.sendall(frame)
        for number in range(STALLED):
            opened.enter_context(server.connect(f"127.0.2.{number // 100 + 1}", requested(large)))
        for number in range(SILENT):
            opened.enter_context(server.connect(f"127.0.1.{number // 100 + 1}", b"GET /cit"))
            if number % 100 == 0:
                assert server.ask("/cities/refs/head")[0] == 200
        begun = time.monotonic()
        assert server.ask(large) == (200, len(OBJECT))
        seconds, growth = time.monotonic() - begun, server.most_mib() - before
        assert growth < GROWTH_MIB
        assert seconds < 10
