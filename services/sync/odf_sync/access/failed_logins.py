"""Limits how often a password can be tried."""

import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

WINDOW_SECONDS: Final = 60.0
MOST_KEYS: Final = 10_000  # remembered; more of them are counted together


class FailedLogins:
    """Counts failures in the last minute by key, such as an address, in bounded memory."""

    def __init__(self, most: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Allow `most` failures per key and minute."""
        self._most = most
        self._monotonic = monotonic
        self._failures: dict[Hashable, deque[float]] = {}  # the times of the last `most`, oldest first

    def wait_seconds(self, key: Hashable) -> float:
        """Return how long the next attempt has to wait, 0 if it need not."""
        times = self._failures.get(self._counted(key), deque())
        return max(0.0, times[0] + WINDOW_SECONDS - self._monotonic()) if len(times) == self._most else 0.0

    def note(self, key: Hashable) -> None:
        """Note a failure."""
        key = self._counted(key)
        self._failures.setdefault(key, deque(maxlen=self._most)).append(self._monotonic())

    def _counted(self, key: Hashable) -> Hashable:
        """Return the key, or the one of all others while there are too many keys."""
        if key in self._failures or len(self._failures) < MOST_KEYS:
            return key
        since = self._monotonic() - WINDOW_SECONDS
        self._failures = {known: times for known, times in self._failures.items() if times[-1] > since}
        return key if len(self._failures) < MOST_KEYS else None
