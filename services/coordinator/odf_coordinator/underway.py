"""Transforms at work: the last that the engine said of each, and how many rows it dropped as too late."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import prometheus_client

from odf_common.identity.did import DatasetId
from odf_common.ports.engine import EngineProgress
from odf_coordinator.datasets import Known

LATE: Final = prometheus_client.Counter(
    "odf_transform_late_records_total", "Input records that came too late for their windows.", ("dataset",)
)


SHORT: Final = 1.0  # seconds
Tell = Callable[[DatasetId, EngineProgress], None]
Clock = Callable[[], float]  # seconds


class Work:
    """One transform at the engine."""

    def __init__(self, tell: Callable[[EngineProgress], None], clock: Clock) -> None:
        """Begin with nothing heard."""
        self.now = EngineProgress()
        self._tell = tell
        self._clock = clock
        self._begun = clock()
        self._is_told = False

    def note(self, now: EngineProgress) -> None:
        """Take in a report; it is passed on if the transform is not one of the many short ones."""
        self.now = now
        if self._clock() - self._begun >= SHORT:
            self._is_told = True
            self._tell(now)

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
        self._late: Counter[DatasetId] = Counter()

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

    def committed(self, known: Known, work: Work) -> None:
        """Count what a transform dropped, now that it will not be repeated."""
        if work.now.late:
            with self._guard:
                self._late[known.id] += work.now.late
            LATE.labels(known.alias).inc(work.now.late)

    def of(self, dataset: DatasetId) -> EngineProgress | None:
        """Return how far a dataset's transform is, None while there is none at work."""
        with self._guard:
            work = self._at_work.get(dataset)
            return None if work is None else work.now

    def late(self, dataset: DatasetId) -> int:
        """Return how many rows came too late so far."""
        with self._guard:
            return self._late[dataset]
