"""The batches of a source that are being read, queried or committed, and why one does not get on."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Self

from odf_common.chain.build_blocks import ClockBehind
from odf_common.errors import OdfError, advice_while_retried
from odf_common.ports.clock import Backoff
from odf_ingest.errors import RegistryUnavailable, pauses_source
from odf_ingest.prepare.preparer import PreparedRecords

BATCH_BACKOFF: Final = Backoff(first=0.2, most=5.0)
TOPIC_UNREADABLE: Final = "TopicUnreadable"
SAME_TROUBLE_SECONDS: Final = 30.0  # without failure after which the next one counts as a new trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The reason why an operation fails for now, its begin (seconds since the epoch), and the number of tries."""

    since: float
    why: str
    advice: str = ""
    tries: int = 1
    last: float = field(default_factory=time.monotonic)
    """Time of the last try (seconds, monotonic)."""
    reason: str = TOPIC_UNREADABLE
    lasts_until_commit: bool = False
    """Whether the topic is not the cause, so that only a commit proves that it is over."""

    @classmethod
    def after_try(cls, error: OdfError, before: "Trouble | None") -> Self:
        """Return the trouble after one more try; `since` is that of the first."""
        since, tries = (time.time(), 1) if before is None else (before.since, before.tries + 1)
        return cls(
            since=since,
            why=str(error),
            advice=advice_while_retried(error),
            tries=tries,
            reason=error.code if isinstance(error, RegistryUnavailable | ClockBehind) else TOPIC_UNREADABLE,
            lasts_until_commit=pauses_source(error),
        )

    @property
    def delay(self) -> float:
        """Return the seconds until the next retry."""
        return BATCH_BACKOFF.pause(self.tries)

    @property
    def is_recent(self) -> bool:
        """Return whether a failure now still belongs to it."""
        return time.monotonic() - self.last < self.delay + SAME_TROUBLE_SECONDS


class BatchesInFlight:
    """State that threads share about them: each attribute is written by one thread only."""

    def __init__(self) -> None:
        self.begun = 0
        self.settled = 0
        self.is_stale = False  # all are to be dropped
        self.last_lag = 0  # messages after the last one that was committed
        # Written by the batch's thread; times in seconds since the epoch.
        self.trouble: Trouble | None = None  # why the commit is stalled
        self.committing_since: float | None = None
        self.querying_since: float | None = None  # when the source's query was started or queued
        self._placed: Future[None] = Future()  # done when the last batch is in its dataset's queue
        self._placed.set_result(None)

    @property
    def count(self) -> int:
        """Return their number."""
        return self.begun - self.settled

    def in_order(self, reading: "Future[PreparedRecords]", place: Callable[[], None]) -> None:
        """Call `place` once a batch is read and those before it are placed; no thread waits for either."""
        before, placed = self._placed, Future[None]()
        self._placed = placed

        def place_next(_: object) -> None:
            try:
                place()
            finally:
                placed.set_result(None)

        reading.add_done_callback(lambda _: before.add_done_callback(place_next))
