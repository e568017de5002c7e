"""Limits how many requests one caller sends: a token bucket each, in bounded memory."""

import math
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final

from prometheus_client import Counter

BURST_SECONDS: Final = 5  # a caller that was quiet may send so many seconds' requests at once
MOST_CALLERS: Final = 10_000  # remembered; more of them share one bucket

LIMITED: Final = Counter(
    "odf_http_rate_limited_total", "Requests answered 429 because their caller exceeded the rate limit."
)


@dataclass(slots=True)
class _Bucket:
    tokens: float
    filled_at: float


class RequestRate:
    """The buckets of all callers; thread-safe."""

    def __init__(self, per_second: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Allow each caller `per_second` requests, 0: any number."""
        self._per_second = per_second
        self._most = float(per_second * BURST_SECONDS)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._buckets: dict[Hashable, _Bucket] = {}

    def wait_seconds(self, caller: Hashable) -> int:
        """Count a request; return 0 if it is allowed, else after how many whole seconds the next one is."""
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
        if caller not in self._buckets and len(self._buckets) >= MOST_CALLERS:
            since = now - BURST_SECONDS  # a bucket that was last used before is full, as a new one is
            self._buckets = {key: one for key, one in self._buckets.items() if one.filled_at > since}
            if len(self._buckets) >= MOST_CALLERS:
                caller = None
        bucket = self._buckets.setdefault(caller, _Bucket(self._most, now))
        bucket.tokens = min(self._most, bucket.tokens + (now - bucket.filled_at) * self._per_second)
        bucket.filled_at = now
        return bucket
