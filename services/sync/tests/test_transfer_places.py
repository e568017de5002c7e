"""Transfers by the Smart Transfer Protocol have places, in total and per caller; none is closed for another."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from odf_testing.builders import a_dataset
from odf_testing.sync_node import SyncNode

from odf_sync.http import smart_routes
from odf_sync.smart.message_json import encode
from odf_sync.smart.messages import VERSION, VERSION_HEADER, DownloadsRequest, MetadataRequest, PullRequest

ORDERS, CITIES = a_dataset("orders"), a_dataset("cities")

PLACES = 3


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyncNode:
    monkeypatch.setattr(smart_routes, "EXCHANGES_OF_CALLER", PLACES)
    node = SyncNode(tmp_path)
    node.add_cities(["Oslo"])
    return node


class Client:
    """A client in raw frames, whose mask is zero."""

    def __init__(self, base: str, path: str) -> None:
        split = urlsplit(base)
        assert split.hostname is not None
        self.socket = socket.create_connection((split.hostname, split.port or 80), timeout=20)
        lines = (
            f"GET {path} HTTP/1.1",
            f"Host: {split.netloc}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: bm9uY2Vub25jZW5vbmNlbg==",
            f"{VERSION_HEADER}: {VERSION}",
        )
        self.socket.sendall("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n")
        self._file = self.socket.makefile("rb")

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def status(self) -> int:
        status = int(self._file.readline().split()[1])
        while self._file.readline() != b"\r\n":
            pass
        return status

    def send(self, message: PullRequest | MetadataRequest | DownloadsRequest) -> bytes:
        """Return the answer."""
        text = encode(message).encode()
        self.socket.sendall(bytes([0x81, 0x80 | 126]) + len(text).to_bytes(2) + bytes(4) + text)
        return self.receive()

    def receive(self) -> bytes:
        """Return the payload of the next frame."""
        short = self._file.read(2)[1]
        size = short if short < 126 else int.from_bytes(self._file.read(2))
        return self._file.read(size)


@contextmanager
def pulling(base: str, count: int) -> Iterator[list[Client]]:
    """Yield clients that have the blocks, in the order in which they have waited since."""
    with ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = Client(base, "/cities/pull")
            stack.enter_context(closing(client))
            assert client.status() == 101
            for message in (PullRequest(force_update_if_diverged=False), MetadataRequest()):
                client.send(message)
            clients.append(client)
        yield clients


def next_status(base: str, action: str = "pull") -> int:
    client = Client(base, f"/cities/{action}")
    with closing(client):
        return client.status()


def test_pulls_keep_their_places_and_free_them_at_their_end(node: SyncNode) -> None:
    with node.served() as base:
        with pulling(base, PLACES) as clients:
            assert next_status(base) == 503
            assert next_status(base, "push") == 101, "readers leave room for those who may write"
            for client in clients:
                assert b"object_transfer_strategies" in client.send(DownloadsRequest(object_files=()))
        deadline = time.monotonic() + 20
        while next_status(base) == 503:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_all_callers_together_have_a_limit(node: SyncNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smart_routes, "EXCHANGES", PLACES - 1)
    with node.served() as base, pulling(base, PLACES - 1):
        assert next_status(base) == 503


def test_pushes_keep_their_places(node: SyncNode) -> None:
    with node.served() as base, ExitStack() as stack:
        pushes = [stack.enter_context(closing(Client(base, "/cities/push"))) for _ in range(PLACES)]
        assert [client.status() for client in pushes] == [101] * PLACES
        assert next_status(base, "push") == 503
