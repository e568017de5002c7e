"""Servers that send single bytes slowly: each response ends, and an object is not requested endlessly."""

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, cast

import pytest
import urllib3

from odf_common.errors import NotFound, Unavailable
from odf_common.hashing.multihash import physical_hash_of
from odf_common.ports.store import ObjectKind
from odf_sync.repositories import http_dataset, node_client
from odf_sync.repositories.http_dataset import HttpDataset
from odf_sync.repositories.node_client import MAX_DISCARDED_BYTES

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

RETRY = http_dataset.READ_RETRY
OK = b"HTTP/1.1 200 OK\r\n"
HASH = str(physical_hash_of(b"")).encode()
NAME = physical_hash_of(b"content")


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_dataset, "READ_RETRY", urllib3.Retry(0, redirect=0))
    monkeypatch.setattr(http_dataset, "READ_TIMEOUT", urllib3.Timeout(connect=10, read=10))
    monkeypatch.setattr(node_client, "HEADERS_SECONDS", 0.3)
    monkeypatch.setattr(node_client, "WINDOW_SECONDS", 0.3)
    monkeypatch.setattr(node_client, "WINDOW_BYTES", 1000)


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[HttpDataset]:
    """Serve one connection after another, each with the same answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # closed
                    return
                with connection:
                    connection.recv(65536)
                    try:
                        answer(connection)
                    except OSError:  # the client has gone
                        continue

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield HttpDataset(f"http://127.0.0.1:{server.getsockname()[1]}/cities")
        server.shutdown(socket.SHUT_RDWR)
    serving.join(10)


def dripping(first: bytes, drop: bytes, *, every: float = 0.02) -> Callable[[socket.socket], None]:
    """Return a response that continues a few bytes at a time until the client has gone."""

    def answer(connection: socket.socket) -> None:
        connection.sendall(first)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            connection.sendall(drop)
            time.sleep(every)

    return answer


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (dripping(b"HTTP/1.1 2", b"0"), "no complete headers"),
        (dripping(OK + b"X: ", b"x"), "no complete headers"),
        (dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 200), "no complete headers"),
        (dripping(OK + b"Content-Length: 900\r\n\r\n", b"x"), "no byte of the response for 0.3 s"),
        (
            dripping(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
            "no byte of the response for 0.3 s",
        ),
        (
            dripping(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
            "no byte of the response for 0.3 s",
        ),
    ],
    ids=["status", "header", "100", "body", "chunks", "trailers"],
)
def test_a_dripping_response_times_out(answer: Callable[[socket.socket], None], why: str) -> None:
    with answering(answer) as there, pytest.raises(Unavailable, match=why):
        there.head()


def test_a_silent_server_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def answer(connection: socket.socket) -> None:
        asked.append(time.monotonic())
        connection.recv(1)  # until the client has gone

    monkeypatch.setattr(http_dataset, "READ_RETRY", RETRY)
    monkeypatch.setattr(http_dataset, "READ_TIMEOUT", urllib3.Timeout(connect=10, read=0.3))
    with answering(answer) as there, pytest.raises(Unavailable, match="Read timed out"):
        there.head()
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("length", "connections"), [(100, 1), (MAX_DISCARDED_BYTES, 1), (MAX_DISCARDED_BYTES + 1, 2)]
)
def test_the_rest_of_a_refusal_is_not_read_as_the_next_response(length: int, connections: int) -> None:
    asked: list[int] = []

    def answer(connection: socket.socket) -> None:
        asked.append(connection.fileno())
        if len(asked) == 1:
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % length + b"x" * 50)
            time.sleep(0.05)
            connection.sendall(b"x" * (length - 50))
            connection.recv(65536)
        connection.sendall(OK + b"Content-Length: %d\r\n\r\n" % len(HASH) + HASH)

    with answering(answer) as there:
        with pytest.raises(NotFound):
            there.head()
        assert there.head() == physical_hash_of(b"")
    assert len(asked) == connections


def test_a_request_whose_connection_is_closed_without_a_response_is_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [b"", OK + b"Content-Length: %d\r\n\r\n" % len(HASH) + HASH]
    monkeypatch.setattr(http_dataset, "READ_RETRY", RETRY)
    with answering(lambda connection: connection.sendall(answers.pop(0))) as there:
        assert str(there.head()).encode() == HASH


def test_no_response_lasts_forever_at_any_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_client, "RESPONSE_SECONDS", 1.0)
    endless = dripping(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 1000)
    with answering(endless) as there, pytest.raises(Unavailable, match="no end of the response in 1 s"):
        there.head()


def test_a_response_at_the_least_pace_is_read_to_its_end() -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(OK + b"Content-Length: 6000\r\n\r\n")
        for _ in range(10):
            time.sleep(0.1)
            connection.sendall(b"x" * 600)

    with answering(answer) as there:
        there.fetch(ObjectKind.DATA, NAME, out := io.BytesIO(), 6000)
    assert out.tell() == 6000


def test_a_response_that_is_closed_closes_its_connection() -> None:
    gone = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(OK + b"Content-Length: 10\r\n\r\nabc")
        connection.settimeout(5)
        if connection.recv(1) == b"":
            gone.set()

    with answering(answer) as there:
        response = there.get("refs/head")
        assert response.read1(3) == b"abc"
        response.close()
        assert gone.wait(10)


def test_the_callers_processing_time_does_not_count() -> None:
    content = HASH + b" " * 100_000

    def answer(connection: socket.socket) -> None:
        connection.sendall(OK + b"Content-Length: %d\r\n\r\n" % len(content) + content)

    with answering(answer) as there, there.get("refs/head") as response:
        read = b""
        while chunk := response.read1(30_000):
            time.sleep(0.2)
            read += chunk
    assert read == content


class Trickle:
    """A socket that delivers bytes at given seconds of a clock, and the clock."""

    def __init__(self, *arrivals: tuple[float, int]) -> None:
        self.now = 0.0
        self._arrivals = iter(arrivals)

    def monotonic(self) -> float:
        return self.now

    def makefile(self, mode: str, *, buffering: int) -> "Trickle":
        assert (mode, buffering) == ("rb", 0)
        return self

    def readinto(self, buffer: "WriteableBuffer") -> int:
        self.now, count = next(self._arrivals)
        return count

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("count", "is_enough"), [(332, False), (334, True)])
def test_the_bytes_that_come_late_earn_no_more_time_than_their_pace(
    monkeypatch: pytest.MonkeyPatch, count: int, *, is_enough: bool
) -> None:
    for before in ((), ((0.2, 100_000),)):  # a fast start earns none
        start = before[-1][0] if before else 0.0
        server = Trickle(*before, (start + 0.4, count))
        monkeypatch.setattr(node_client, "time", server)
        reading = node_client._PacedSocket(cast("socket.socket", server))
        reading.has_headers = True
        for _ in before:
            reading.readinto(bytearray(1000))
        with nullcontext() if is_enough else pytest.raises(node_client.TooSlow, match="less than"):
            reading.readinto(bytearray(1000))
