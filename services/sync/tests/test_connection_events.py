"""What a connection does at each event, without a client: transports here only record what is done to them."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from aiohttp.web_request import BaseRequest
from prometheus_client import REGISTRY

from odf_sync.http import connections
from odf_sync.http.connections import (
    TOO_SLOW,
    ClientConnection,
    Connections,
    bytes_received,
    hold_received,
    in_flight,
    is_held,
    limit_received,
)

HERE: Final = ("127.0.0.1", 1)
TURNS: Final = 2 * connections.GRACE_TURNS + 9


class Transport:
    """A connection that only records its end."""

    def __init__(self, peer: tuple[str, int] | None = HERE, *, can_write_eof: bool = False) -> None:
        self.written = b""
        self.is_closed = False
        self.is_read = True
        self.has_eof = False
        self.options: dict[int, int] = {}
        self._peer = peer
        self._can_write_eof = can_write_eof

    def get_extra_info(self, name: str) -> object:
        return self._peer if name == "peername" else self

    def setsockopt(self, _: int, option: int, value: int) -> None:
        self.options[option] = value

    def write(self, raw: bytes) -> None:
        self.written += raw

    def is_closing(self) -> bool:
        return self.is_closed

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def can_write_eof(self) -> bool:
        return self._can_write_eof

    def write_eof(self) -> None:
        assert self._can_write_eof
        self.has_eof = True

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True


class Inner(asyncio.Protocol):
    """The protocol of the HTTP server, which notes each event."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.events.append(data)

    def eof_received(self) -> bool:
        self.events.append("eof")
        return True

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")


class Opened:
    """A connection between a transport and a protocol that record what they are told."""

    def __init__(self, limits: Connections, peer: tuple[str, int] | None = HERE, **more: bool) -> None:
        self.inner, self.transport = Inner(), Transport(peer, **more)
        self.connection = ClientConnection(limits, lambda: self.inner)
        self.connection.connection_made(cast("asyncio.Transport", self.transport))

    @property
    def is_open(self) -> bool:
        return not self.transport.is_closed and not self.transport.written


def limits_of(header_seconds: float = 10) -> Connections:
    return Connections(header_seconds)


async def some_turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def in_a_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test in an event loop of its own."""

    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


def closed_by_reason() -> dict[str, float]:
    reasons = ("slow", "large")
    name = "odf_http_connections_closed_total"
    return {reason: REGISTRY.get_sample_value(name, {"reason": reason}) or 0.0 for reason in reasons}


@in_a_loop
async def test_each_closed_connection_is_counted_with_its_reason() -> None:
    before, limits = closed_by_reason(), limits_of(header_seconds=0)
    first, second = Opened(limits), Opened(limits)
    second.connection.begin()
    second.connection.limit(0)
    second.connection.data_received(b"!")
    await some_turns()
    assert {reason: count - before[reason] for reason, count in closed_by_reason().items()} == {
        "large": 1,
        "slow": 1,
    }
    assert [one.transport.written for one in (first, second)] == [TOO_SLOW, b""]


@in_a_loop
async def test_the_protocol_is_told_of_each_event() -> None:
    one = Opened(limits_of())
    one.connection.data_received(b"ab")
    one.connection.data_received(b"c")
    one.connection.pause_writing()
    one.connection.resume_writing()
    assert one.connection.eof_received()
    one.connection.connection_lost(None)
    assert one.inner.events == ["made", b"ab", b"c", "pause", "resume", "eof", "lost"]
    assert one.connection.received == 3


@in_a_loop
async def test_a_client_that_takes_nothing_is_given_up_by_the_system() -> None:
    one = Opened(limits_of(), None)
    assert one.transport.options[socket.TCP_USER_TIMEOUT] == 60_000


@in_a_loop
async def test_headers_have_their_time_until_the_request_begins_and_those_of_the_next_again() -> None:
    one = Opened(limits_of(header_seconds=0))
    one.connection.data_received(b"GET")
    one.connection.begin()
    one.connection.data_received(b"body")
    await some_turns()
    assert one.is_open
    one.connection.finish()
    await some_turns()
    assert one.is_open, "between requests there is no such limit"
    one.connection.data_received(b"GET")
    await some_turns()
    assert one.transport.written == TOO_SLOW
    one.connection.data_received(b" /")
    assert one.inner.events == ["made", b"GET", b"body", b"GET"]


@pytest.mark.parametrize("is_lost", [False, True], ids=["open", "lost"])
def test_only_an_open_connection_is_ended_for_being_slow(*, is_lost: bool) -> None:
    async def is_ended() -> bool:
        one = Opened(limits_of(header_seconds=0))
        if is_lost:
            one.connection.connection_lost(None)
        await some_turns()
        return one.transport.written != b""

    assert asyncio.run(is_ended()) == (not is_lost)


@in_a_loop
async def test_the_end_of_what_is_sent_is_said_and_nothing_to_what_has_gone() -> None:
    limits = limits_of()
    slow = Transport(can_write_eof=True)
    limits.end(cast("asyncio.Transport", slow), b"slow")
    assert slow.has_eof
    gone = Transport()
    gone.is_closed = True
    limits.end(cast("asyncio.Transport", gone), b"busy")
    assert gone.written == b""


def test_some_ended_connections_stay_until_their_clients_have_read_why_and_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_LINGERING_CONNECTIONS", 1)
    monkeypatch.setattr(connections, "CLOSING_SECONDS", 0.0)

    async def end_four() -> list[tuple[bytes, bool]]:
        limits = limits_of()
        first, second, third, fourth = transports = [Transport() for _ in range(4)]
        for transport in (first, second):
            limits.end(cast("asyncio.Transport", transport), b"busy")
        are_closed = [first.is_closed, second.is_closed]
        await some_turns()
        assert first.is_closed
        for transport in (third, fourth):
            limits.end(cast("asyncio.Transport", transport), b"busy")
        answers = [one.written for one in transports]
        return list(zip(answers, [*are_closed, third.is_closed, fourth.is_closed], strict=True))

    assert asyncio.run(end_four()) == [(b"busy", False), (b"busy", True)] * 2


@in_a_loop
async def test_a_connection_takes_as_many_bytes_as_were_announced_and_not_one_more() -> None:
    one = Opened(limits_of())
    one.connection.data_received(b"head")
    one.connection.limit(4)
    one.connection.data_received(b"bo")
    one.connection.data_received(b"dy")
    assert one.is_open
    one.connection.limit(None)
    one.connection.data_received(b"any")
    one.connection.limit(0)
    assert Opened(limits_of()).is_open
    one.connection.data_received(b"!")
    one.connection.data_received(b"more")
    assert one.inner.events == ["made", b"head", b"bo", b"dy", b"any"]
    assert one.connection.received == len(b"headbodyany!")


def request_on(protocol: object) -> BaseRequest:
    """Return a request; None for one whose connection has gone."""
    transport = None if protocol is None else SimpleNamespace(get_protocol=lambda: protocol)
    return cast("BaseRequest", SimpleNamespace(transport=transport))


@in_a_loop
async def test_the_bytes_of_a_request_are_counted_and_limited() -> None:
    one = Opened(limits_of())
    request = request_on(one.connection)
    with in_flight(request):
        one.connection.data_received(b"abc")
        assert bytes_received(request) == 3
        limit_received(request, 0)
        limit_received(request, None)
        one.connection.data_received(b"d")
    assert one.is_open


@in_a_loop
async def test_a_connection_on_hold_passes_on_what_has_come_and_is_read_again_after_the_next_limit() -> None:
    one = Opened(limits_of())
    request = request_on(one.connection)
    hold_received(request, 2)
    one.connection.data_received(b"ab")
    assert (one.transport.is_read, is_held(request)) == (True, False)
    for sent in (b"c", b"d"):  # the HTTP server has resumed it meanwhile
        one.transport.is_read = True
        one.connection.data_received(sent)
        assert (one.transport.is_read, is_held(request)) == (False, True)
    limit_received(request, 1)
    assert (one.transport.is_read, is_held(request)) == (True, False)
    one.connection.data_received(b"e")
    hold_received(request, 0)
    one.connection.data_received(b"f")
    assert not one.transport.is_read
    hold_received(request, 1)
    assert (one.transport.is_read, is_held(request), one.is_open) == (True, False, True)
    one.transport.is_read = False  # by the HTTP server
    limit_received(request, 1)
    assert not one.transport.is_read
    one.connection.data_received(b"gh")
    assert one.inner.events[1:] == [b"ab", b"c", b"d", b"e", b"f"], "it is closed"


@pytest.mark.parametrize("protocol", [None, asyncio.Protocol()])
def test_a_request_without_such_a_connection_has_no_limits(protocol: object) -> None:
    request = request_on(protocol)
    with in_flight(request):
        limit_received(request, 0)
        hold_received(request, 0)
        assert bytes_received(request) == 0
        assert not is_held(request)


@in_a_loop
async def test_the_server_tells_its_protocol_of_a_lost_connection() -> None:
    lost = asyncio.Event()

    class Told(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            lost.set()

    async with await limits_of().listen(Told, "127.0.0.1", 0, None) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.close()
        await asyncio.wait_for(lost.wait(), 10)
