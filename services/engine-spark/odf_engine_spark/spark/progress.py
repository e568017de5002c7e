"""The progress of a request, and whether its caller still waits for it."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from odf_common.ports.engine import EngineProgress


class RequestCancelled(RuntimeError):
    """The caller of the request no longer waits for the result."""


class Progress:
    """The progress of one request. Thread-safe."""

    def __init__(self, stop: Callable[[], object] = lambda: None) -> None:
        """Start with no progress; `stop` cancels the jobs of the request without waiting for their end."""
        self.stop = stop
        self._guard = threading.Lock()
        self._now = EngineProgress()
        self._is_cancelled = False
        self.lacks_memory = False
        """Whether the request is being ended because it fills the heap."""
        self._is_first_shown = False

    @property
    def now(self) -> EngineProgress:
        """Return the latest progress."""
        with self._guard:
            return self._now

    def report(self, stage: str, *, rows: int = 0, total: int = 0) -> None:
        """Record the current stage and how many of its rows are done; raises `RequestCancelled` after `cancel`."""
        with self._guard:
            if self._is_cancelled:
                raise RequestCancelled(stage)
            self._now = replace(self._now, stage=stage, rows=rows, total=total)

    def late(self, rows: int) -> None:
        """Add to the number of rows that were dropped because they arrived too late for their windows."""
        with self._guard:
            self._now = replace(self._now, late=self._now.late + rows)

    def hold(self, rows: int, until: int, by: str, *, is_shown: bool = True) -> None:
        """Add to the number of rows that a step holds until the watermark passes.

        `until` is the earliest watermark, in ms, at which some of them are released. Rows that are then emitted
        (`is_shown`) take precedence for the reported `held_until` over rows that are only held as partners in a join.
        `by` names the step.
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
        """Mark the request as cancelled: its next report raises `RequestCancelled`."""
        with self._guard:
            self._is_cancelled = True


def ms_since(begun: float) -> int:
    """Return the milliseconds since `begun`, a reading of the monotonic clock."""
    return round((time.monotonic() - begun) * 1000)
