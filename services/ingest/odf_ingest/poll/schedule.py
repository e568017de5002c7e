"""Polls datasets at the interval in their source's settings, on the instance of ingest that owns them.

A dataset whose poll fails for a transient reason is polled again sooner, with growing pauses. Times of polls are
not stored: after a restart each dataset is polled once, which costs one conditional request where nothing is new.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import structlog

from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.errors import OdfError, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Backoff
from odf_common.ports.store import BlobStore, Catalog
from odf_ingest.poll.poller import Attempt, Poller
from odf_ingest.source_settings import Milliseconds, load_settings

log = structlog.stdlib.get_logger(__name__)

# All datasets' settings files are read again after this time, as other processes may change them.
INTERVAL_RESCAN_SECONDS: Final = 120.0
TICK_SECONDS: Final = 0.5
FAILED_POLL_BACKOFF: Final = Backoff(first=10.0, most=3600.0)


class PollState(StrEnum):
    """The activity of a polling source."""

    IDLE = "idle"  # nothing is wrong
    POLLING = "polling"
    FAILED = "failed"  # the last poll failed


@dataclass(frozen=True, slots=True, kw_only=True)
class PollView:
    """A dataset's polling source; `interval` in seconds, 0: only on demand. Times are None if there was or is none."""

    dataset: DatasetId
    interval: int
    state: PollState
    last: Timestamp | None = None
    next: Timestamp | None = None
    error: OdfError | None = None
    since: Timestamp | None = None
    """Time of the first of the current consecutive failures."""


@dataclass(eq=False, kw_only=True)
class PollSchedule:
    """Starts polls that are due; thread-safe.

    Poll on `pool` the datasets for which `is_ours` returns True: assigned to this instance, with their key.
    """

    poller: Poller
    catalog: Catalog
    blobs: BlobStore
    current: Callable[[DatasetId], ChainState | None]
    is_ours: Callable[[DatasetId], bool]
    pool: Executor

    def __post_init__(self) -> None:
        self._intervals: dict[DatasetId, int] = {}
        self._started: set[DatasetId] = set()  # by this schedule, and not ended
        self._lock = threading.Lock()
        self._changed = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Poll the datasets that are due until `stop` is set."""
        scan_due = 0.0
        while not stop.wait(TICK_SECONDS):
            if time.monotonic() >= scan_due or self._changed.is_set():
                self._changed.clear()
                self._intervals = dict(self._scan())
                scan_due = time.monotonic() + INTERVAL_RESCAN_SECONDS
            for dataset, interval in self._intervals.items():
                if self._is_due(dataset, interval):
                    self._start(dataset, stop)

    def rescan(self) -> None:
        """Read the settings of all datasets again soon, because some have changed."""
        self._changed.set()

    def views(self) -> Iterator[PollView]:
        """Iterate over the datasets that have a schedule here."""
        for dataset, interval in sorted(self._intervals.items(), key=lambda item: str(item[0])):
            yield self.view(dataset, interval)

    def failing(self) -> Iterator[PollView]:
        """Iterate over the datasets whose last poll failed, at an interval or on demand."""
        for dataset in self.poller.failing():
            try:
                state = self.current(dataset)
            except OdfError:  # such as one that was deleted
                continue
            if state is not None and state.polling_source is not None:
                yield self.view(dataset)

    def view(self, dataset: DatasetId, interval: int | None = None) -> PollView:
        """Return the state of a dataset's polling source, as far as this process knows."""
        interval = self._intervals.get(dataset, 0) if interval is None else interval
        attempt = self.poller.last_attempt(dataset)
        if attempt is None:
            return PollView(dataset=dataset, interval=interval, state=PollState.IDLE)
        next_at = (
            None
            if not interval
            else Timestamp.from_ms(attempt.ended.ms + int(1000 * _pause(attempt, interval)))
        )
        state = PollState.IDLE if attempt.error is None else PollState.FAILED
        return PollView(
            dataset=dataset,
            interval=interval,
            state=PollState.POLLING if self.poller.is_polling(dataset) else state,
            last=attempt.ended,
            next=next_at,
            error=attempt.error,
            since=attempt.failing_since,
        )

    def _scan(self) -> Iterator[tuple[DatasetId, int]]:
        for entry in self.catalog.entries():
            dataset = entry.dataset_id
            try:
                # In this order: of thousands of datasets, few have a schedule.
                interval = seconds_of(load_settings(self.blobs, dataset, DEFAULT_SOURCE).poll_interval)
                state = self.current(dataset) if interval and self.is_ours(dataset) else None
            except OdfError as error:
                log.warning(
                    "cannot read a poll interval",
                    dataset=entry.alias,
                    dataset_id=str(entry.dataset_id),
                    why=str(error),
                )
                continue
            if state is not None and state.polling_source is not None:
                yield dataset, interval

    def _is_due(self, dataset: DatasetId, interval: int) -> bool:
        attempt = self.poller.last_attempt(dataset)
        with self._lock:
            if dataset in self._started:
                return False
        return attempt is None or time.monotonic() >= attempt.ended_monotonic + _pause(attempt, interval)

    def _start(self, dataset: DatasetId, stop: threading.Event) -> None:
        with self._lock:
            self._started.add(dataset)

        def poll() -> None:
            try:
                self.poller.poll(dataset, lambda _: None, lambda: not stop.is_set())
            except OdfError as error:
                log.warning("a scheduled poll failed", dataset_id=str(dataset), why=str(error))
            except Exception:
                log.exception("a scheduled poll failed: a bug", dataset_id=str(dataset))
            finally:
                with self._lock:
                    self._started.discard(dataset)

        self.pool.submit(poll)


def seconds_of(interval: Milliseconds) -> int:
    """Return the whole seconds between polls; 0 if the source is polled only on demand."""
    return interval // 1000 if interval.is_limited else 0


def _pause(attempt: Attempt, interval: int) -> float:
    """Return the seconds from the end of a poll to the next one."""
    if attempt.failures and isinstance(attempt.error, Unavailable):
        return min(FAILED_POLL_BACKOFF.pause(attempt.failures), interval)
    return interval
