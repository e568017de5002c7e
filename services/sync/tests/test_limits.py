"""Limits of callers and of connections, without a client: transports here only record what is done to them."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from aiohttp.web_request import BaseRequest
from prometheus_client import REGISTRY

from odf_common.adapters.networks import Networks
from odf_sync.access.rate_limits import (
    Pace,
    Shares,
    counted_address,
    forwarded_address,
    pace_of_body,
    shares_of_bodies,
)
from odf_sync.http import connections
from odf_sync.http.connections import (
    TOO_SLOW,
    ClientConnection,
    connection_of,
    in_flight,
    listen,
)


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("", ""),
        (None, ""),
        ("a socket", "a socket"),
    ],
)
def test_a_host_is_counted_once_whatever_address_of_its_network_it_uses(
    address: str | None, counted: str
) -> None:
    assert counted_address(address) == counted


@pytest.mark.parametrize(
    ("peer", "headers", "address"),
    [
        ("192.0.2.7", ["198.51.100.1"], "192.0.2.7"),  # not a proxy of ours
        ("10.0.0.2", [], "10.0.0.2"),
        ("10.0.0.2", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.2", ["203.0.113.9, 198.51.100.1"], "198.51.100.1"),  # what the client wrote itself
        ("10.0.0.2", ["203.0.113.9", "198.51.100.1,10.0.0.3"], "198.51.100.1"),  # two proxies of ours
        ("::ffff:10.0.0.2", ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.2", ["203.0.113.9, unknown"], "10.0.0.2"),
        ("10.0.0.2", ["198.51.100.1:4711"], "10.0.0.2"),
        ("10.0.0.2", [""], "10.0.0.2"),
        ("", ["198.51.100.1"], ""),
    ],
)
def test_a_trusted_proxy_says_which_client_it_has_a_request_from(
    peer: str, headers: list[str], address: str
) -> None:
    assert forwarded_address(Networks.parse(("10.0.0.0/8",)), peer, headers) == address


def test_no_caller_has_more_than_its_share_and_all_together_no_more_than_the_total() -> None:
    shares = Shares(most=3, of_caller=2)
    with shares.acquire("ann") as first, shares.acquire("ann") as second:
        assert first
        assert second
        with shares.acquire("ann") as third:
            assert not third
        with shares.acquire("bob") as of_bob, shares.acquire("carl") as of_carl:
            assert of_bob
            assert not of_carl
        with shares.acquire("carl") as later:
            assert later
    with suppress(ValueError), shares.acquire("ann"), shares.acquire("ann"):
        raise ValueError
    with shares.acquire("ann") as first, shares.acquire("ann") as second:
        assert first
        assert second


def test_a_body_may_pause_but_has_to_arrive_at_a_rate() -> None:
    pace = Pace(60.0, 1024, total_seconds=1000.0)
    assert pace.seconds_left == 60
    pace.note(1, 50)
    assert pace.seconds_left == pytest.approx(10, abs=0.01), "a byte gains next to nothing"
    pace.note(20 * 1024, 0)
    assert pace.seconds_left == pytest.approx(30, abs=0.01)
    pace.note(10**9, 0)
    assert pace.seconds_left == 60, "no pause is longer, whatever has arrived"
    pace.note(0, 61)
    assert pace.seconds_left < 0
    assert pace.too_slow() == "no byte of the body for 60 s, or less than 1024 a second"


def test_a_body_has_an_end_at_any_pace() -> None:
    pace = Pace(60.0, 1024, total_seconds=100.0)
    pace.note(10**9, 90)
    assert pace.seconds_left == 10
    pace.note(10**9, 10)
    assert (pace.seconds_left, pace.too_slow()) == (0, "no end of the body in 100 s")


def test_bodies_have_a_separate_pace_and_shares() -> None:
    with ExitStack() as taken:
        found = [
            taken.enter_context(shares.acquire("ann")) for shares in [shares_of_bodies()] for _ in range(33)
        ]
    assert found == [True] * 32 + [False]
    pace = pace_of_body()
    assert pace.seconds_left == 60
    assert pace.too_slow() == "no byte of the body for 60 s, or less than 1024 a second"


HERE: Final = ("127.0.0.1", 1)
TURNS: Final = 2 * connections.GRACE_TURNS + 9


class Transport:
    """A connection that only records its end."""

    def __init__(self, peer: tuple[str, int] | None = HERE) -> None:
        self.written = b""
        self.is_closed = False
        self.is_read = True
        self.options: dict[int, int] = {}
        self._peer = peer

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

    def close(self) -> None:
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

    def __init__(self, peer: tuple[str, int] | None = HERE, *, header_seconds: float = 10) -> None:
        self.inner, self.transport = Inner(), Transport(peer)
        self.connection = ClientConnection(header_seconds, lambda: self.inner)
        self.connection.connection_made(cast("asyncio.Transport", self.transport))

    @property
    def is_open(self) -> bool:
        return not self.transport.is_closed and not self.transport.written


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
    before = closed_by_reason()
    first, second = Opened(header_seconds=0), Opened(header_seconds=0)
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
    one = Opened()
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
    one = Opened(None)
    assert one.transport.options[socket.TCP_USER_TIMEOUT] == 60_000


@in_a_loop
async def test_headers_have_their_time_until_the_request_begins_and_those_of_the_next_again() -> None:
    one = Opened(header_seconds=0)
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
        one = Opened(header_seconds=0)
        if is_lost:
            one.connection.connection_lost(None)
        await some_turns()
        return one.transport.written != b""

    assert asyncio.run(is_ended()) == (not is_lost)


@in_a_loop
async def test_a_connection_takes_as_many_bytes_as_were_announced_and_not_one_more() -> None:
    one = Opened()
    one.connection.data_received(b"head")
    one.connection.limit(4)
    one.connection.data_received(b"bo")
    one.connection.data_received(b"dy")
    assert one.is_open
    one.connection.limit(None)
    one.connection.data_received(b"any")
    one.connection.limit(0)
    assert Opened().is_open
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
    one = Opened()
    request = request_on(one.connection)
    with in_flight(request):
        one.connection.data_received(b"abc")
        assert connection_of(request).received == 3
        connection_of(request).limit(0)
        connection_of(request).limit(None)
        one.connection.data_received(b"d")
    assert one.is_open


@in_a_loop
async def test_a_connection_on_hold_passes_on_what_has_come_and_is_read_again_after_the_next_limit() -> None:
    one = Opened()
    connection, transport = one.connection, one.transport
    connection.hold(2)
    connection.data_received(b"ab")
    assert (transport.is_read, connection.is_held) == (True, False)
    for sent in (b"c", b"d"):  # the HTTP server has resumed it meanwhile
        transport.is_read = True
        connection.data_received(sent)
        assert (transport.is_read, connection.is_held) == (False, True)
    connection.limit(1)
    assert (transport.is_read, connection.is_held) == (True, False)
    connection.data_received(b"e")
    connection.hold(0)
    connection.data_received(b"f")
    assert not transport.is_read
    connection.hold(1)
    assert (transport.is_read, connection.is_held, one.is_open) == (True, False, True)
    transport.is_read = False  # by the HTTP server
    connection.limit(1)
    assert not transport.is_read
    connection.data_received(b"gh")
    assert one.inner.events[1:] == [b"ab", b"c", b"d", b"e", b"f"], "it is closed"


@pytest.mark.parametrize("protocol", [None, asyncio.Protocol()])
def test_a_request_without_such_a_connection_has_no_limits(protocol: object) -> None:
    request = request_on(protocol)
    with in_flight(request):
        connection_of(request).limit(0)
        connection_of(request).hold(0)
        assert connection_of(request).received == 0
        assert not connection_of(request).is_held


@in_a_loop
async def test_the_server_tells_its_protocol_of_a_lost_connection() -> None:
    lost = asyncio.Event()

    class Told(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            lost.set()

    async with await listen(Told, "127.0.0.1", 0, None, header_seconds=10) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.close()
        await asyncio.wait_for(lost.wait(), 10)
