"""How far a request is, and whether anybody still waits for it."""

import threading
from dataclasses import replace

from odf_common.ports.engine import EngineProgress


class RequestCancelled(RuntimeError):
    """Nobody waits for the answer any more."""


class Progress:
    """What one request has come to. Several threads may report and look."""

    def __init__(self) -> None:
        """Begin with nothing done."""
        self._guard = threading.Lock()
        self._now = EngineProgress()
        self._is_cancelled = False

    @property
    def now(self) -> EngineProgress:
        """Return the last report."""
        with self._guard:
            return self._now

    def report(self, stage: str, *, rows: int = 0, total: int = 0) -> None:
        """Note a stage and how many of its rows are done; raises `RequestCancelled` once nobody waits any more."""
        with self._guard:
            if self._is_cancelled:
                raise RequestCancelled(stage)
            self._now = replace(self._now, stage=stage, rows=rows, total=total)

    def late(self, rows: int) -> None:
        """Note more rows that came too late for their windows, and were dropped."""
        with self._guard:
            self._now = replace(self._now, late=self._now.late + rows)

    @property
    def is_cancelled(self) -> bool:
        """Tell whether nobody waits any more."""
        with self._guard:
            return self._is_cancelled

    def cancel(self) -> None:
        """Have the next report raise."""
        with self._guard:
            self._is_cancelled = True
