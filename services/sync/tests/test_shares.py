"""To which caller limits attribute a request, and how much of a resource each may use at a time."""

from contextlib import ExitStack, suppress

import pytest

from odf_common.adapters.networks import Networks
from odf_sync.access.rate_limits import (
    Pace,
    Shares,
    counted_address,
    forwarded_address,
    pace_of_body,
    shares_of_bodies,
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
