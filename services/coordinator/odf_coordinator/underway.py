"""Transforms at work: the last that the engine said of each, and how many rows it dropped as too late."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import prometheus_client

from odf_common.identity.did import DatasetId
from odf_common.ports.engine import EngineProgress
from odf_coordinator.datasets import Known

LATE: Final = prometheus_client.Counter(
    "odf_transform_late_records_total", "Input records that came too late for their windows.", ("dataset",)
)


class Work:
    """One transform at the engine."""

    def __init__(self) -> None:
        """Begin with nothing heard."""
        self.now = EngineProgress()

    def note(self, now: EngineProgress) -> None:
        """Take in a report."""
        self.now = now


class Underway:
    """What is known of transforms, by dataset; since this process began."""

    def __init__(self) -> None:
        """Begin with none at work."""
        self._guard = threading.Lock()
        self._at_work: dict[DatasetId, Work] = {}
        self._late: Counter[DatasetId] = Counter()

    @contextmanager
    def at_work(self, dataset: DatasetId) -> Iterator[Work]:
        """Give a place for the engine's reports, which is there while the block runs."""
        work = Work()
        with self._guard:
            self._at_work[dataset] = work
        try:
            yield work
        finally:
            with self._guard:
                self._at_work.pop(dataset, None)

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
