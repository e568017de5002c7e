"""The progress of a request, how long it has taken, and whether its caller still waits for it."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from odf_common.ports.engine import EngineProgress


class RequestCancelled(RuntimeError):
    """The caller no longer waits for the result."""


class Progress:
    """The progress of one request. Thread-safe."""

    def __init__(self, stop: Callable[[], object] = lambda: None) -> None:
        """`stop` ends the jobs of the request, without waiting for that."""
        self.stop = stop
        self._guard = threading.Lock()
        self._now = EngineProgress()
        self._is_cancelled = False
        self.lacks_memory = False
        """Whether the request is ended since it fills the heap."""
        self._is_first_shown = False

    @property
    def now(self) -> EngineProgress:
        """Return the last report."""
        with self._guard:
            return self._now

    def report(self, stage: str, *, rows: int = 0, total: int = 0) -> None:
        """Record a stage and how many of its rows are done; raises `RequestCancelled` after a cancellation."""
        with self._guard:
            if self._is_cancelled:
                raise RequestCancelled(stage)
            self._now = replace(self._now, stage=stage, rows=rows, total=total)

    def late(self, rows: int) -> None:
        """Count rows that arrived too late for their windows, and were dropped."""
        with self._guard:
            self._now = replace(self._now, late=self._now.late + rows)

    def hold(self, rows: int, until: int, by: str, *, is_shown: bool = True) -> None:
        """Count rows that a step keeps for results that depend on the watermark, the first `until` one (ms).

        Those that come out (`is_shown`) say until when, if there are any: others are only partners of a join.
        """
        with self._guard:
            first = self._now.held_until
            if first is None or is_shown > self._is_first_shown:
                first, self._is_first_shown = until, is_shown
            elif is_shown == self._is_first_shown:
                first = min(until, first)
            steps = [step for step in self._now.held_by.split(" and ") if step]
            self._now = replace(
                self._now,
                held=self._now.held + rows,
                held_until=first,
                held_by=" and ".join(steps if by in steps else [*steps, by]),
            )

    @property
    def is_cancelled(self) -> bool:
        """Return whether the request was cancelled."""
        with self._guard:
            return self._is_cancelled

    def cancel(self) -> None:
        """Make the next report raise."""
        with self._guard:
            self._is_cancelled = True


def ms_since(begun: float) -> int:
    """Return the milliseconds since `begun`, a time of the monotonic clock."""
    return round((time.monotonic() - begun) * 1000)
