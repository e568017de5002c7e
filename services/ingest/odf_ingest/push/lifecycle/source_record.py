"""The record of an assigned push source, and its state machine of phases, events and transitions.

A record changes only by an event, on the reader's thread. The functions are pure.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

from odf_common.errors import InternalError
from odf_ingest.errors import IncompleteCorrection, SourceStopped
from odf_ingest.prepare.batch import SkipSearch
from odf_ingest.push.batches.source import PushSource, Trouble, Wait
from odf_ingest.push.source_topics import Key


class Phase(StrEnum):
    """The phase of a source."""

    OPENING = "opening"  # its chain and topic are being inspected
    READING = "reading"
    PAUSED = "paused"  # it is ahead of its commits
    WAITING = "waiting"  # for the other half of a correction
    RETRYING = "retrying"  # it could not be opened or read; it is retried
    STOPPED = "stopped"  # until the chain changes, or a user resumes it
    CLOSED = "closed"  # removed, or read by another instance


class Event(StrEnum):
    """An event of a source."""

    OPENED = "opened"  # it is being read from the chain's position
    OPENED_SHORT = "opened-short"  # the same, after a batch that was too short
    AHEAD = "ahead"  # full batches are waiting for commits
    CAUGHT_UP = "caught-up"
    MORE = "more"  # a message arrived for a waiting source
    REOPEN = "reopen"  # it must be read again from the chain's position
    FAIL = "fail"  # it cannot be opened or read for now
    RETRY = "retry"
    STOP = "stop"  # it cannot continue without a user
    RESUME = "resume"  # a user or a change of the chain resumes it
    CLOSE = "close"


TRANSITIONS: Final[Mapping[Phase, Mapping[Event, Phase]]] = {
    Phase.OPENING: {
        Event.OPENED: Phase.READING,
        Event.OPENED_SHORT: Phase.WAITING,
        Event.FAIL: Phase.RETRYING,
        Event.STOP: Phase.STOPPED,
        Event.CLOSE: Phase.CLOSED,
    },
    Phase.READING: {
        Event.AHEAD: Phase.PAUSED,
        Event.REOPEN: Phase.OPENING,
        Event.FAIL: Phase.RETRYING,
        Event.STOP: Phase.STOPPED,
        Event.CLOSE: Phase.CLOSED,
    },
    Phase.PAUSED: {
        Event.CAUGHT_UP: Phase.READING,
        Event.REOPEN: Phase.OPENING,
        Event.FAIL: Phase.RETRYING,
        Event.STOP: Phase.STOPPED,
        Event.CLOSE: Phase.CLOSED,
    },
    Phase.WAITING: {
        Event.MORE: Phase.READING,
        Event.REOPEN: Phase.OPENING,
        Event.FAIL: Phase.RETRYING,
        Event.STOP: Phase.STOPPED,
        Event.CLOSE: Phase.CLOSED,
    },
    Phase.RETRYING: {
        Event.RETRY: Phase.OPENING,
        Event.CLOSE: Phase.CLOSED,
    },
    Phase.STOPPED: {
        Event.RESUME: Phase.OPENING,
        Event.CLOSE: Phase.CLOSED,
    },
    Phase.CLOSED: {},
}
LIVE: Final = frozenset({Phase.READING, Phase.PAUSED, Phase.WAITING})  # its partitions are assigned


class IllegalTransition(InternalError):
    """A push source got an event that is invalid in its phase."""

    phase: Phase
    event: Event


def after(phase: Phase, event: Event) -> Phase:
    """Return the next phase; raises `IllegalTransition`."""
    following = TRANSITIONS[phase].get(event)
    if following is None:
        raise IllegalTransition(phase=phase, event=event)
    return following


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The messages of a failed batch: `count` messages before the offsets `end`, by partition.

    The first message is in the partition `first`.
    """

    end: Mapping[int, int]
    count: int
    first: int
    is_first_rejected: bool = False
    """Whether the source stops at the first message because it cannot be read as a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The reason why a source is stopped, and the batch that failed, if any.

    `chain` is the result of `as_of` at that time: the source continues when it differs.
    """

    why: SourceStopped
    chain: object
    batch: Span | None = None

    @property
    def search(self) -> SkipSearch | None:
        """Return the search for the message that stopped the source; None if no message did."""
        batch = self.batch
        if batch is None:
            return None
        # A rejected -C whose +C is in the next batch fails as half a correction when it is tried alone.
        is_half = self.why.reason == IncompleteCorrection.__name__ or batch.is_first_rejected
        half_in = batch.first if is_half else None
        search = SkipSearch(count=batch.count, until=batch.end, why=str(self.why), half_in=half_in)
        return search.halve(batch.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """An assigned source and its phase; `source` is set while it is being read."""

    key: Key
    alias: str
    phase: Phase = Phase.OPENING
    since: float = field(default_factory=time.time)
    """The time when the phase began (seconds since the epoch)."""
    source: PushSource | None = None
    wait: Wait | None = None
    """The reason why the next batch must be longer than the last one."""
    search: SkipSearch | None = None
    stop: Stop | None = None
    trouble: Trouble | None = None
    """The current trouble, until messages arrive or are committed: opening alone does not prove progress."""
    last_trouble: Trouble | None = None
    """The latest trouble, even if it is over, so that the backoff grows for a source that fails every few messages."""
    suspect: Mapping[int, int] | None = None
    """The source's position when an inspection found another one in the chain.

    If the next inspection finds the same, the source is reopened. A single one may have preceded the source's commit.
    """

    @property
    def skips(self) -> SkipSearch | None:
        """Return the search for the message that blocks the source; None if no message does."""
        if self.stop is not None:
            return self.stop.search
        if self.phase is not Phase.WAITING or self.source is None or self.source.wait is None:
            return None
        return self.source.wait.search

    @property
    def ongoing_search(self) -> SkipSearch | None:
        """Return the search in progress, whose result a command may wait for."""
        return self.search or (None if self.source is None else self.source.search)

    def move(
        self,
        event: Event,
        *,
        source: PushSource | None = None,
        wait: Wait | None = None,
        search: SkipSearch | None = None,
        stop: Stop | None = None,
        trouble: Trouble | None = None,
    ) -> Self:
        """Return the record after an event, without fields that no longer apply; raises `IllegalTransition`."""
        phase = after(self.phase, event)
        is_to_be_opened = phase in {Phase.OPENING, Phase.RETRYING}
        return type(self)(
            key=self.key,
            alias=self.alias,
            phase=phase,
            source=source or (self.source if phase in LIVE else None),
            wait=wait or (self.wait if is_to_be_opened else None),
            search=search or (self.search if is_to_be_opened else None),
            stop=stop,
            trouble=trouble or (self.trouble if is_to_be_opened or phase in LIVE else None),
            last_trouble=trouble or self.last_trouble,
        )
