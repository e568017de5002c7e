"""Running transforms, and the engine's last report on each."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from odf_common.identity.did import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import EngineProgress

REPORT_AFTER_SECONDS: Final = 1.0  # shorter transforms are not reported
SILENCE_SECONDS: Final = 10.0  # without a report; the engine sends one per second
Announce = Callable[[DatasetId, EngineProgress], None]
Clock = Callable[[], float]  # seconds


class RunningTransform:
    """One running transform."""

    def __init__(self, announce: Callable[[EngineProgress], None], clock: Clock) -> None:
        self.now = EngineProgress()
        self._announce = announce
        self._clock = clock
        self._begun = self._heard = clock()
        self._is_reported = False

    def note(self, now: EngineProgress) -> None:
        """Record a report; it is forwarded once the transform has run for `REPORT_AFTER_SECONDS` seconds."""
        self.now = now
        self._heard = self._clock()
        if self._heard - self._begun >= REPORT_AFTER_SECONDS:
            self._is_reported = True
            self._announce(now)

    @property
    def silence(self) -> float:
        """Return the seconds since the last report."""
        return self._clock() - self._heard

    @property
    def is_silent(self) -> bool:
        """Return whether the engine has sent no report lately."""
        return self.silence >= SILENCE_SECONDS

    def end(self) -> None:
        """Report the end, if progress was reported."""
        if self._is_reported:
            self._announce(EngineProgress())


class RunningTransforms:
    """The running transforms of this process, by dataset."""

    def __init__(self, announce: Announce = lambda *_: None, clock: Clock = time.monotonic) -> None:
        """No transform is running yet; `announce` is called with reports of longer ones."""
        self._announce = announce
        self._clock = clock
        self._guard = threading.Lock()
        self._running: dict[DatasetId, RunningTransform] = {}

    @contextmanager
    def track(self, dataset: DatasetId) -> Iterator[RunningTransform]:
        """Register a running transform while the block runs."""
        work = RunningTransform(partial(self._announce, dataset), self._clock)
        with self._guard:
            self._running[dataset] = work
        try:
            yield work
        finally:
            with self._guard:
                self._running.pop(dataset, None)
            work.end()

    def progress_of(self, dataset: DatasetId) -> EngineProgress | None:
        """Return the progress of a dataset's transform; None if none is running."""
        with self._guard:
            work = self._running.get(dataset)
            return None if work is None else work.now

    def has_silence(self) -> bool:
        """Return whether the engine has sent no report lately on a running transform; then it runs no other either."""
        with self._guard:
            return any(work.is_silent for work in self._running.values())

    def silent_since(self, dataset: DatasetId) -> Timestamp | None:
        """Return since when the engine has sent no report on a dataset's transform; None if it has lately."""
        with self._guard:
            work = self._running.get(dataset)
        if work is None or not work.is_silent:
            return None
        return Timestamp(time.time_ns() - int(work.silence * 1e9))
