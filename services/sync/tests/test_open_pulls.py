"""Idle pulls leave their places to others; those through which objects are downloaded do not."""

import json
import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import pytest
from odf_testing.builders import a_dataset
from odf_testing.sync_node import SyncNode

from odf_common.hashing.physical import physical_hash_of
from odf_common.ports.store import ObjectKind
from odf_sync.http import open_pulls
from odf_sync.http.open_pulls import DIRECT_SECONDS, IDLE_PULL_SECONDS, OpenPull, OpenPulls
from odf_sync.http.smart_protocol import routes
from odf_sync.smart.message_json import encode
from odf_sync.smart.messages import VERSION, VERSION_HEADER, DownloadsRequest, MetadataRequest, PullRequest

ORDERS, CITIES = a_dataset("orders"), a_dataset("cities")
PLACES: Final = 3
PAUSE: Final = 0.5
OBJECT: Final = random.Random(4).randbytes(32 * 1024**2)  # more than the buffers of a connection


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def opened(pulls: OpenPulls, *callers: str) -> Iterator[list[OpenPull]]:
    with ExitStack() as stack:
        request = cast("Any", None)
        yield [stack.enter_context(pulls.opened(request, caller, ORDERS)) for caller in callers]


def test_the_pull_that_has_been_idle_for_longest_is_that_whose_client_was_silent_for_longest() -> None:
    clock = Clock()
    pulls = OpenPulls(clock)
    with opened(pulls, "ann", "bob", "bob", "bob") as (ann, early, late, working), ExitStack() as waits:
        for pull in (ann, late):
            waits.enter_context(pull.waiting())
        clock.now -= 10
        waits.enter_context(early.waiting())
        clock.now += 10 + IDLE_PULL_SECONDS
        assert [pulls.longest_idle(caller) for caller in (None, "ann", "bob", "carl")] == [
            early,
            None,
            early,
            None,
        ]
        clock.now += 0.1
        assert [pulls.longest_idle(caller) for caller in (None, "ann", "bob")] == [early, ann, early]
        early.idle_since = None
        assert pulls.longest_idle("bob") is late
        assert working.idle_since is None
    assert ann.idle_since is None
    assert pulls.longest_idle() is None


def test_a_pull_is_not_idle_while_its_caller_downloads_objects_of_the_dataset() -> None:
    clock = Clock()
    pulls = OpenPulls(clock)
    with opened(pulls, "ann") as (pull,), pull.waiting():
        for caller, dataset in (("bob", ORDERS), ("ann", CITIES)):
            clock.now += IDLE_PULL_SECONDS + 1
            with pulls.downloading(caller, dataset):
                assert pulls.longest_idle() is pull
        with pulls.downloading("ann", ORDERS), pulls.downloading("ann", ORDERS):
            clock.now += IDLE_PULL_SECONDS + 1
            assert pulls.longest_idle() is None
        clock.now += IDLE_PULL_SECONDS
        assert pulls.longest_idle() is None
        clock.now += 1
        assert pulls.longest_idle() is pull
        assert not pulls._downloads, "downloads that have ended take no memory"
        with pulls.downloading("ann", ORDERS):
            pull.idle_since = None
        assert pull.idle_since is None


def test_a_pull_is_not_idle_while_a_list_arrives_slowly() -> None:
    clock = Clock()
    pulls = OpenPulls(clock)
    with opened(pulls, "ann") as (pull,), pull.waiting():
        clock.now += IDLE_PULL_SECONDS + 1
        pull.note_use()
        assert pulls.longest_idle() is None
        clock.now += IDLE_PULL_SECONDS + 1
        assert pulls.longest_idle() is pull
    pull.note_use()
    assert pull.idle_since is None


def test_a_pull_from_a_bucket_may_be_silent_for_longer() -> None:
    clock = Clock()
    pulls = OpenPulls(clock)
    with opened(pulls, "ann") as (pull,), pull.waiting():
        pull.is_direct = True
        clock.now += DIRECT_SECONDS
        assert pulls.longest_idle() is None
        clock.now += 1
        assert pulls.longest_idle() is pull


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SyncNode:
    monkeypatch.setattr(open_pulls, "IDLE_PULL_SECONDS", PAUSE)
    monkeypatch.setattr(routes, "EXCHANGES_OF_CALLER", PLACES)
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


def test_the_pull_that_is_idle_for_longest_ends_with_a_reason_when_its_place_is_needed(
    node: SyncNode,
) -> None:
    with node.served() as base, pulling(base, PLACES) as (first, second, third):
        time.sleep(2 * PAUSE)
        assert b"object_transfer_strategies" in first.send(DownloadsRequest(object_files=()))
        assert next_status(base) == 101
        closed = second.receive()
        assert int.from_bytes(closed[:2]) == 1013
        assert closed[2:] == b"it was idle, and another pull needs its place"
        for client in (first, third):
            assert json.loads(client.send(DownloadsRequest(object_files=()))) == {
                "object_transfer_strategies": []
            }


def test_pulls_that_are_not_idle_keep_their_places(node: SyncNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_pulls, "IDLE_PULL_SECONDS", 60)
    with node.served() as base, pulling(base, PLACES):
        assert next_status(base) == 503


def test_a_push_is_not_ended_for_another(node: SyncNode) -> None:
    with node.served() as base, ExitStack() as stack:
        pushes = [Client(base, "/cities/push") for _ in range(PLACES)]
        for client in pushes:
            stack.enter_context(closing(client))
            assert client.status() == 101
        time.sleep(2 * PAUSE)
        assert next_status(base, "push") == 503


def test_any_caller_gets_the_place_of_an_idle_pull_when_all_are_taken(
    node: SyncNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "EXCHANGES", PLACES - 1)
    with node.served() as base, pulling(base, PLACES - 1) as idle, ExitStack() as stack:
        assert next_status(base) == 503
        time.sleep(2 * PAUSE)
        others = [stack.enter_context(closing(Client(base, "/cities/pull"))) for _ in range(PLACES)]
        assert sorted(client.status() for client in others) == [101, 101, 503]
        assert [int.from_bytes(client.receive()[:2]) for client in idle] == [1013, 1013]


def test_a_client_that_downloads_an_object_slowly_keeps_its_pulls(node: SyncNode) -> None:
    entry, name = node.catalog.by_alias("cities"), physical_hash_of(OBJECT)
    assert entry is not None
    node.blobs.put(entry.dataset_id, ObjectKind.DATA, name, OBJECT)
    with node.served() as base, pulling(base, PLACES):
        download = Client(base, f"/cities/data/{name}")
        with closing(download):
            assert download.status() == 200
            time.sleep(2 * PAUSE)
            assert next_status(base) == 503
        deadline = time.monotonic() + 20
        while next_status(base) == 503:
            assert time.monotonic() < deadline
            time.sleep(0.1)
