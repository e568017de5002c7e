"""Uploads in parts, over real sockets: contradictory requests are refused, and do not affect received bytes."""

import gzip
import http.client
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from odf_testing.builders import a_hash
from odf_testing.sync_node import SyncNode

from odf_common.hashing.multihash import physical_hash_of
from odf_common.ports.store import ObjectKind
from odf_sync.access import rate_limits
from odf_sync.http import object_uploads
from odf_sync.http.authorization import Authorizer
from odf_sync.http.object_uploads import upload_file
from odf_sync.transfer.partial_files import KEPT_SECONDS, sweep
from odf_sync.transfer.push_source import OFFSET

OBJECT = b"0123456789"
NAME = physical_hash_of(OBJECT)
PATH = f"/cities/data/{NAME}"
BEGUN = 4  # bytes of it that have arrived
LARGE = os.urandom(1 << 20)  # more than sockets hold


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    offset: int | None
    retry_after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A node with a dataset, and a client of its uploads."""

    node: SyncNode
    home: Path
    url: str

    def put(self, body: bytes, content_range: str | None = None, path: str = PATH) -> Answer:
        """Send a request, and return its answer."""
        with closing(http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=20)) as connection:
            headers = {} if content_range is None else {"Content-Range": content_range}
            connection.request("PUT", path, body, {"Content-Length": str(len(body)), **headers})
            return answer_of(connection.getresponse())

    def ask(self, size: int = len(OBJECT), path: str = PATH) -> Answer:
        """Ask how much has arrived."""
        return self.put(b"", f"bytes */{size}", path)

    def begin(self, content: bytes = OBJECT, sent: int = BEGUN, path: str = PATH) -> socket.socket:
        """Send the first bytes, and return the connection when the node receives them."""
        before = self.kept()
        host, _, port = urlsplit(self.url).netloc.partition(":")
        connection = socket.create_connection((host, int(port)), timeout=20)
        head = f"PUT {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content[:sent])
        deadline = time.monotonic() + 20
        while self.kept() == before and time.monotonic() < deadline:
            time.sleep(0.005)
        return connection

    def cut(self, content: bytes = OBJECT, sent: int = BEGUN, path: str = PATH) -> None:
        """Have the first bytes arrive of an upload whose connection is lost.

        They are written before: what the node has not read when it notices the loss is lost, too.
        """
        with closing(self.begin(content, sent, path)):
            deadline = time.monotonic() + 20
            while sum(file.stat().st_size for file in self.kept()) < sent and time.monotonic() < deadline:
                time.sleep(0.005)
        self.await_answer(204, sent, len(content), path)

    def await_answer(self, status: int, offset: int | None, size: int, path: str = PATH) -> None:
        """Wait until the node reports that number of bytes, or completion."""
        deadline = time.monotonic() + 20
        while (found := self.ask(size, path)) != Answer(status, offset, None):
            assert time.monotonic() < deadline, found
            time.sleep(0.01)

    def kept(self) -> list[Path]:
        return sorted(self.home.glob("uploads/*"))

    def stored(self, content: bytes = OBJECT) -> bool:
        entry = self.node.catalog.by_alias("cities")
        assert entry is not None
        name = physical_hash_of(content)
        has = self.node.blobs.has(entry.dataset_id, ObjectKind.DATA, name)
        assert not has or self.node.blobs.read(entry.dataset_id, ObjectKind.DATA, name) == content
        return has


def answer_of(response: http.client.HTTPResponse) -> Answer:
    response.read()
    offset = response.getheader(OFFSET)
    return Answer(response.status, None if offset is None else int(offset), response.getheader("Retry-After"))


@pytest.fixture(params=[False, True], ids=["direct", "behind-a-proxy"])
def server(
    request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[Server]:
    node = SyncNode(tmp_path)
    node.add_cities()
    anywhere = Authorizer(catalog=node.catalog, local_writers="anywhere")
    with node.served(anywhere, proxy=tmp_path / "proxy" if request.param else None) as url:
        yield Server(node=node, home=tmp_path, url=url)
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("content_range", "body"),
    [
        ("bytes 4-9/10", OBJECT),  # more bytes than the range
        ("bytes 4-9/10", OBJECT[5:]),  # fewer
        ("bytes 4-9/20", OBJECT[4:]),  # ends before the end
        ("bytes 4-9/8", OBJECT[4:]),  # ends after it
        ("bytes 9-4/10", OBJECT[4:]),  # backwards
        ("bytes 4-9/*", OBJECT[4:]),  # without a length
        ("bytes */10", OBJECT[4:]),  # a status request with a body
        ("bytes 4-9", OBJECT[4:]),
        ("items 4-9/10", OBJECT[4:]),
        ("bytes -4-9/10", OBJECT[4:]),
        ("bytes 4-9/10, 4-9/10", OBJECT[4:]),
        ("bytes ٤-9/10".encode().decode("latin-1"), OBJECT[4:]),
    ],
)
def test_a_range_that_contradicts_itself_is_refused_and_received_bytes_are_kept(
    server: Server, content_range: str, body: bytes
) -> None:
    server.cut()
    assert server.put(body, content_range) == Answer(400, None, None)
    assert server.ask() == Answer(204, BEGUN, None)
    assert server.put(OBJECT[BEGUN:], "bytes 4-9/10").status == 200
    assert server.stored()


@pytest.mark.parametrize("start", [1, 3, 5, 9], ids=["overlap", "overlap of one", "gap of one", "gap"])
def test_a_part_that_does_not_follow_gets_the_received_offset(server: Server, start: int) -> None:
    server.cut()
    assert server.put(OBJECT[start:], f"bytes {start}-9/10") == Answer(409, BEGUN, None)
    assert server.put(OBJECT[BEGUN:], "bytes 4-9/10").status == 200
    assert server.stored()
    assert server.kept() == []


def test_nothing_is_received_for_a_name_without_a_dataset(server: Server) -> None:
    path = f"/nowhere/data/{NAME}"
    assert server.put(OBJECT, path=path).status == 404
    assert server.ask(path=path).status == 404
    assert server.kept() == []


def test_a_part_of_an_unknown_upload_is_refused(server: Server) -> None:
    assert server.put(OBJECT[BEGUN:], "bytes 4-9/10") == Answer(409, 0, None)
    assert server.kept() == []


def test_a_status_request_leaves_no_file(server: Server) -> None:
    assert server.ask() == Answer(204, 0, None)
    assert server.kept() == []


@pytest.mark.parametrize(
    ("rest", "size"),
    [(b"changed", 11), (b"456789", 10), (b"45678", 9), (b"4567890", 11)],
    ids=["changed", "right", "too short", "too long"],
)
def test_the_hash_decides_whether_the_parts_are_of_one_object(server: Server, rest: bytes, size: int) -> None:
    server.cut()
    is_right = OBJECT[:BEGUN] + rest == OBJECT
    assert server.put(rest, f"bytes {BEGUN}-{size - 1}/{size}").status == (200 if is_right else 400)
    assert server.stored() == is_right
    assert server.kept() == [], "wrong bytes cannot be continued"
    assert server.put(OBJECT).status == 200
    assert server.stored()


def test_first_bytes_of_another_object_are_dropped_and_the_whole_is_accepted(server: Server) -> None:
    server.cut(b"xxxx" + OBJECT[BEGUN:])
    assert server.put(OBJECT[BEGUN:], "bytes 4-9/10").status == 400
    assert server.ask() == Answer(204, 0, None)
    assert server.put(OBJECT, "bytes 0-9/10").status == 200
    assert server.stored()


@pytest.mark.parametrize("content_range", [None, "bytes 0-9/10"])
def test_a_client_that_starts_over_replaces_received_bytes(server: Server, content_range: str | None) -> None:
    server.cut()
    assert server.put(OBJECT, content_range).status == 200
    assert server.stored()
    assert server.kept() == []


def test_a_total_below_the_received_bytes_starts_over(server: Server) -> None:
    server.cut()
    assert server.ask(BEGUN - 1).status == 400
    assert server.put(OBJECT).status == 200
    assert server.ask() == Answer(200, None, None), "it is stored"


def test_a_total_above_the_limit_is_refused_before_a_byte_is_sent(server: Server) -> None:
    assert server.ask(object_uploads.MAX_OBJECT_BYTES + 1) == Answer(413, None, None)
    assert server.ask(10**14).status == 413
    assert server.put(OBJECT, f"bytes 0-9/{10**20}").status == 400


def test_a_total_at_the_limit_is_allowed(server: Server) -> None:
    assert server.ask(object_uploads.MAX_OBJECT_BYTES).status == 204


def test_two_clients_that_send_the_same_object_at_once_are_both_served(server: Server) -> None:
    path = f"/cities/data/{physical_hash_of(LARGE)}"
    with closing(server.begin(LARGE, 100, path)) as slow:
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(lambda _: server.put(LARGE, path=path).status, range(2)))
        assert both == [200, 200]
        assert server.stored(LARGE)
        slow.sendall(LARGE[100:])
        response = http.client.HTTPResponse(slow)
        response.begin()
        assert response.status == 200
    assert server.stored(LARGE)
    assert server.kept() == []


def test_while_one_client_sends_another_cannot_resume_and_retries(server: Server) -> None:
    path, rest = f"/cities/data/{physical_hash_of(LARGE)}", f"bytes 100-{len(LARGE) - 1}/{len(LARGE)}"
    with closing(server.begin(LARGE, 100, path)) as first:
        assert server.put(LARGE[100:], rest, path) == Answer(503, None, "1")
        assert server.ask(len(LARGE), path) == Answer(503, None, "1")
        first.sendall(LARGE[100:])
        server.await_answer(200, None, len(LARGE), path)
    assert server.kept() == []


def test_a_second_interrupted_upload_leaves_no_file_that_cannot_be_resumed(server: Server) -> None:
    path = f"/cities/data/{physical_hash_of(LARGE)}"
    with closing(server.begin(LARGE, 100, path)) as first:
        second = server.begin(LARGE, 200, path)
        assert len(server.kept()) == 2
        second.close()
        deadline = time.monotonic() + 20
        while len(server.kept()) > 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        first.sendall(LARGE[100:])
        server.await_answer(200, None, len(LARGE), path)
    assert server.kept() == []


def test_a_client_that_stops_sending_is_disconnected_and_resumes_later(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "BODY_PAUSE_SECONDS", 0.2)
    with closing(server.begin()) as stuck:
        response = http.client.HTTPResponse(stuck)
        response.begin()
        assert response.status == 408
    assert server.ask() == Answer(204, BEGUN, None)
    assert server.put(OBJECT[BEGUN:], "bytes 4-9/10").status == 200


def answer_to_bytes(connection: socket.socket) -> bytes:
    """Return the response to a client that sends one byte ten times a second."""
    connection.settimeout(0.1)
    for _ in range(50):
        try:
            return connection.recv(100)
        except TimeoutError:
            connection.sendall(b"x")
    raise AssertionError("the client is not ended")


def test_a_client_that_sends_single_bytes_slowly_is_ended(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rate_limits, "BODY_PAUSE_SECONDS", 0.4)
    path = f"/cities/data/{physical_hash_of(LARGE)}"
    with closing(server.begin(LARGE, 100, path)) as slow:
        assert answer_to_bytes(slow).startswith(b"HTTP/1.1 408")


def test_an_abandoned_upload_is_collected(server: Server) -> None:
    server.cut()
    (kept,) = server.kept()
    sweep(server.home)
    assert server.kept() == [kept]
    long_ago = time.time() - KEPT_SECONDS - 60
    os.utime(kept, (long_ago, long_ago))
    sweep(server.home)
    assert server.kept() == []
    assert server.ask() == Answer(204, 0, None)


def test_a_body_that_is_compressed_for_the_transfer_is_refused(server: Server) -> None:
    """It would be decompressed while it arrives, to any size, whatever its Content-Length says."""
    content = bytes(1 << 20)
    body, path = gzip.compress(content), f"/cities/data/{physical_hash_of(content)}"
    with closing(http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)) as connection:
        connection.request("PUT", path, body, {"Content-Encoding": "gzip"})
        assert answer_of(connection.getresponse()).status == 415
    assert server.ask(len(content), path).offset == 0
    assert server.put(content, path=path).status == 200


def test_each_dataset_has_separate_uploads_whatever_the_case_of_its_name(tmp_path: Path) -> None:
    files = [upload_file(tmp_path, alias, a_hash("x")) for alias in ("cities", "Cities", "towns")]
    assert files[0] == files[1] != files[2]
    assert upload_file(tmp_path, "cities", a_hash("y")) != files[0]
