"""Timeouts for a peer that should send messages regularly: a watchdog per call, a silence detector for all calls."""

import math
import threading
import time
from collections.abc import Callable


class Watchdog:
    """Calls `give_up` once, from its own thread, unless reset within `seconds`."""

    def __init__(self, seconds: float, give_up: Callable[[], object]) -> None:
        self._seconds = seconds
        self._give_up = give_up
        self._until = time.monotonic() + seconds
        self._ended = threading.Event()
        self.has_expired = False
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def reset(self) -> None:
        """Restart the timer."""
        self._until = time.monotonic() + self._seconds

    def pause(self) -> None:
        """Stop the timer until it is reset."""
        self._until = math.inf

    def cancel(self) -> None:
        """Stop the timer."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(min(max(self._until - time.monotonic(), 0), self._seconds)):
            if time.monotonic() >= self._until:
                self.has_expired = True
                self._give_up()
                return


class Attention:
    """Whether a peer that sends messages regularly during calls is silent; thread-safe."""

    def __init__(self, seconds: float) -> None:
        """The peer counts as silent after `seconds` without a message during calls."""
        self._seconds = seconds
        self._questions = 0
        self._heard = 0.0
        self._mutex = threading.Lock()

    def begin(self) -> None:
        """Record the start of a call."""
        with self._mutex:
            if self._questions == 0:
                self._heard = time.monotonic()
            self._questions += 1

    def hear(self) -> None:
        """Record a message."""
        self._heard = time.monotonic()

    def end(self) -> None:
        """Record the end of a call."""
        with self._mutex:
            self._questions -= 1

    @property
    def is_silent(self) -> bool:
        """Return whether calls are in flight and no message arrives."""
        return self._questions > 0 and time.monotonic() - self._heard > self._seconds
