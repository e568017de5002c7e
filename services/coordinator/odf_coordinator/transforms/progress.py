"""Transforms at work: the last that the engine said of each."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from odf_common.identity.did import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import EngineProgress

SHORT: Final = 1.0  # seconds
QUIET: Final = 10.0  # seconds without a report, of which there is one a second
Tell = Callable[[DatasetId, EngineProgress], None]
Clock = Callable[[], float]  # seconds


class Work:
    """One transform at the engine."""

    def __init__(self, tell: Callable[[EngineProgress], None], clock: Clock) -> None:
        """Begin with nothing heard."""
        self.now = EngineProgress()
        self._tell = tell
        self._clock = clock
        self._begun = self._heard = clock()
        self._is_told = False

    def note(self, now: EngineProgress) -> None:
        """Take in a report; it is passed on if the transform is not one of the many short ones."""
        self.now = now
        self._heard = self._clock()
        if self._heard - self._begun >= SHORT:
            self._is_told = True
            self._tell(now)

    @property
    def silence(self) -> float:
        """Return the seconds since the last report."""
        return self._clock() - self._heard

    def end(self) -> None:
        """Tell that it is over, if others were told that it goes on."""
        if self._is_told:
            self._tell(EngineProgress())


class Underway:
    """What is known of transforms, by dataset; since this process began."""

    def __init__(self, tell: Tell = lambda *_: None, clock: Clock = time.monotonic) -> None:
        """Begin with none at work; what is not `SHORT` is passed on to `tell`."""
        self._tell = tell
        self._clock = clock
        self._guard = threading.Lock()
        self._at_work: dict[DatasetId, Work] = {}

    @contextmanager
    def at_work(self, dataset: DatasetId) -> Iterator[Work]:
        """Give a place for the engine's reports, which is there while the block runs."""
        work = Work(partial(self._tell, dataset), self._clock)
        with self._guard:
            self._at_work[dataset] = work
        try:
            yield work
        finally:
            with self._guard:
                self._at_work.pop(dataset, None)
            work.end()

    def of(self, dataset: DatasetId) -> EngineProgress | None:
        """Return how far a dataset's transform is, None while there is none at work."""
        with self._guard:
            work = self._at_work.get(dataset)
            return None if work is None else work.now

    def silent_since(self, dataset: DatasetId) -> Timestamp | None:
        """Return since when the engine has said nothing of a dataset's transform, None unless that is long."""
        with self._guard:
            work = self._at_work.get(dataset)
        if work is None or work.silence < QUIET:
            return None
        return Timestamp(time.time_ns() - int(work.silence * 1e9))
