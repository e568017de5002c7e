"""Limits per caller, in bounded memory: rate of requests, failed logins, and number and rate of uploads."""

import asyncio
import math
import threading
import time
from collections import Counter as Tally
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final

from prometheus_client import Counter

from odf_common.adapters.networks import Networks

BURST_SECONDS: Final = 5  # an idle caller may send the requests of this many seconds at once
MAX_CALLERS: Final = 10_000  # remembered; more of them are counted together
WINDOW_SECONDS: Final = 60.0  # in which failed logins are counted
# Of bodies, such as uploads and pushes:
MAX_BODIES: Final = 64  # received at a time
MAX_BODIES_OF_CALLER: Final = 32  # of these
BODY_PAUSE_SECONDS: Final = 60.0  # without a byte
BODY_BYTES_PER_SECOND: Final = 1024  # a slow line that sends several at a time has more

LIMITED: Final = Counter(
    "odf_http_rate_limited_total", "Requests answered 429 because their caller exceeded the rate limit."
)


def counted_address(remote: str | None) -> str:
    """Return the key for the limits of an address.

    For IPv6 this is the /64 network, which usually belongs to one host.
    """
    try:
        address = ip_address((remote or "").partition("%")[0])
    except ValueError:
        return remote or ""
    if not isinstance(address, IPv6Address):
        return str(address)
    mapped = address.ipv4_mapped
    return str(ip_network((address, 64), strict=False)) if mapped is None else str(mapped)


def is_proxy(proxies: Networks, peer: str) -> bool:
    """Return whether a peer's address is in the networks of trusted proxies; handles IPv4 addresses written as IPv6."""
    try:
        address = ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return proxies.include(str(mapped or address))


def forwarded_address(proxies: Networks, peer: str, forwarded_for: Sequence[str]) -> str:
    """Return the address of the client: the peer's, or the one that trusted proxies forwarded the request for.

    `forwarded_for` are the `X-Forwarded-For` headers in their order. Each proxy appends an address, so addresses are
    read from the end while their sender is a trusted proxy; those that the client itself wrote are ignored.
    """
    address = peer
    hops = [hop.strip() for header in forwarded_for for hop in header.split(",")]
    with suppress(ValueError):
        while hops and is_proxy(proxies, address):
            address = str(ip_address(hops.pop().partition("%")[0]))
    return address


class Shares:
    """Limits on the size of concurrent work, in total and per caller; not thread-safe."""

    def __init__(self, *, most: int, of_caller: int) -> None:
        """Allow concurrent work of total size `most`, and `of_caller` per caller.

        While there is no other work, a single piece may have any size.
        """
        self._most = most
        self._of_caller = of_caller
        self._counts: Tally[Hashable] = Tally()

    def has_room(self, caller: Hashable, size: int = 1) -> bool:
        """Return whether work of this size may start."""
        total, of_caller = self._counts.total(), self._counts[caller]
        return not total or (total + size <= self._most and of_caller + size <= self._of_caller)

    @contextmanager
    def acquire(self, caller: Hashable, size: int = 1) -> Iterator[bool]:
        """Reserve `size` for the `with` block; yields False, without reserving, if there is no room."""
        if not self.has_room(caller, size):
            yield False
            return
        self._counts[caller] += size
        try:
            yield True
        finally:
            self._counts[caller] -= size
            self._counts += Tally()  # forgets callers without work


class Pace:
    """A minimum rate for a sender: the time that it may still take for the next bytes.

    Occasional single bytes are not enough to extend this time. Only the time spent waiting for bytes counts.
    """

    def __init__(
        self,
        pause_seconds: float,
        bytes_per_second: float,
        *,
        total_seconds: float = math.inf,
        subject: str = " of the body",
    ) -> None:
        """Allow a pause of `pause_seconds`.

        Each `bytes_per_second` bytes that arrive add a second, up to that pause again.
        """
        self._pause_seconds = self._pause_left = pause_seconds
        self._bytes_per_second = bytes_per_second
        self._total_seconds = self._total_left = total_seconds
        self._subject = subject

    @property
    def seconds_left(self) -> float:
        """Return the seconds within which the next bytes must arrive; 0 or less if the sender was too slow."""
        return min(self._pause_left, self._total_left)

    def note(self, size: int, seconds: float) -> None:
        """Record that `size` bytes, possibly none, arrived after a wait of `seconds`."""
        earned = size / self._bytes_per_second
        self._pause_left = min(self._pause_seconds, self._pause_left - seconds + earned)
        self._total_left -= seconds

    async def read(self, reading: Awaitable[bytes]) -> bytes:
        """Return the next bytes, and record them; raises `TimeoutError` if they arrive too late."""
        began = time.monotonic()
        content = await asyncio.wait_for(reading, self.seconds_left)
        self.note(len(content), time.monotonic() - began)
        return content

    def too_slow(self) -> str:
        """Return the error message for a sender that was too slow."""
        if self._total_left <= 0:
            return f"no end{self._subject} in {self._total_seconds:g} s"
        rate = f"less than {self._bytes_per_second:g} a second"
        return f"no byte{self._subject} for {self._pause_seconds:g} s, or {rate}"


def shares_of_bodies() -> Shares:
    """Return the limits on the number of request bodies that are received at the same time."""
    return Shares(most=MAX_BODIES, of_caller=MAX_BODIES_OF_CALLER)


def pace_of_body() -> Pace:
    """Return the minimum rate of a request body."""
    return Pace(BODY_PAUSE_SECONDS, BODY_BYTES_PER_SECOND)


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


class RequestRate:
    """Limits the requests per second of each caller by a token bucket; thread-safe."""

    def __init__(self, per_second: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Allow each caller `per_second` requests per second; 0 means no limit."""
        self._per_second = per_second
        self._most = float(per_second * BURST_SECONDS)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._buckets: dict[Hashable, _Bucket] = {}

    def wait_seconds(self, caller: Hashable) -> int:
        """Count a request, and return 0 if it is allowed, else the seconds after which to retry."""
        if not self._per_second:
            return 0
        with self._lock:
            bucket = self._bucket(caller)
            if bucket.tokens >= 1:
                bucket.tokens -= 1
                return 0
        LIMITED.inc()
        return math.ceil((1 - bucket.tokens) / self._per_second)

    def _bucket(self, caller: Hashable) -> _Bucket:
        now = self._monotonic()
        if caller not in self._buckets and len(self._buckets) >= MAX_CALLERS:
            since = now - BURST_SECONDS  # a bucket that was last used before is full, as a new one is
            self._buckets = {key: bucket for key, bucket in self._buckets.items() if bucket.filled_at > since}
            if len(self._buckets) >= MAX_CALLERS:
                caller = None
        bucket = self._buckets.setdefault(caller, _Bucket(self._most, now))
        bucket.tokens = min(self._most, bucket.tokens + (now - bucket.filled_at) * self._per_second)
        bucket.filled_at = now
        return bucket


class FailedLogins:
    """Counts failed logins in the last minute by key, such as an address, in bounded memory."""

    def __init__(self, most: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Allow `most` failures per key and minute."""
        self._most = most
        self._monotonic = monotonic
        self._failures: dict[Hashable, deque[float]] = {}  # the times of the last `most`, oldest first

    def wait_seconds(self, key: Hashable) -> float:
        """Return the seconds until the next attempt is allowed, 0 if it is allowed now."""
        times = self._failures.get(self._counted_key(key), deque())
        return max(0.0, times[0] + WINDOW_SECONDS - self._monotonic()) if len(times) == self._most else 0.0

    def note(self, key: Hashable) -> None:
        """Count a failed attempt, or one whose outcome is still open."""
        key = self._counted_key(key)
        self._failures.setdefault(key, deque(maxlen=self._most)).append(self._monotonic())

    def forget_one(self, key: Hashable) -> None:
        """Remove one counted attempt because it succeeded.

        With concurrent attempts, it does not matter which one is removed.
        """
        key = self._counted_key(key)
        times = self._failures.get(key)
        if times:
            times.pop()
        if not times:
            self._failures.pop(key, None)

    def _counted_key(self, key: Hashable) -> Hashable:
        """Return the key itself, or a key shared by all further callers while there are too many keys."""
        if key in self._failures or len(self._failures) < MAX_CALLERS:
            return key
        since = self._monotonic() - WINDOW_SECONDS
        self._failures = {other: times for other, times in self._failures.items() if times[-1] > since}
        return key if len(self._failures) < MAX_CALLERS else None
