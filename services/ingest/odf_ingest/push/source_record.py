"""What is known of a push source while it is owned here: one record, changed only by the machine's events."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from odf_common.chain.state import ChainState
from odf_common.errors import OdfError
from odf_common.identity.did import DatasetId
from odf_ingest.errors import HalfCorrection, SourceStopped, is_storage_fault
from odf_ingest.prepare.batch import Search
from odf_ingest.push.state_machine import LIVE, Event, Phase, after

if TYPE_CHECKING:
    from odf_ingest.push.source import PushSource

Key = tuple[DatasetId, str]
FIRST: Final = 0.2  # seconds before the first retry
LONGEST: Final = 10.0  # seconds between two retries
SAME_TROUBLE: Final = 30.0  # seconds of work after which a failure begins another trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Why a source waits: the batches up to `seen` lacked something, `tries` times, for a message in `first`."""

    seen: Mapping[int, int]
    tries: int
    why: str
    first: int = 0
    """The partition of the batch's first message, which is the one that lacks something."""

    @property
    def search(self) -> Search:
        """Return how to leave that message out."""
        return Search(count=1, until=self.seen, why=self.why, half_in=self.first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why something cannot be done for now: since when (seconds since the epoch), and how often it was tried."""

    since: float
    why: str
    advice: str = ""
    tries: int = 1
    last: float = field(default_factory=time.monotonic)
    """When it was tried last (seconds, monotonic)."""
    is_of_storage: bool = False
    """Whether it is the dataset's files that cannot be used; then only a commit shows that it is over."""

    @classmethod
    def of(cls, error: OdfError, before: "Trouble | None") -> Self:
        """Return the trouble after one more try; it began with the first one."""
        since, tries = (time.time(), 1) if before is None else (before.since, before.tries + 1)
        return cls(
            since=since,
            why=str(error),
            advice=error.advice(),
            tries=tries,
            is_of_storage=is_storage_fault(error),
        )

    @property
    def delay(self) -> float:
        """Return the seconds until it should be tried again."""
        return min(FIRST * 2.0 ** min(self.tries - 1, 16), LONGEST)

    @property
    def is_recent(self) -> bool:
        """Return whether a failure now still belongs to it."""
        return time.monotonic() - self.last < self.delay + SAME_TROUBLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Messages of a topic, by partition: up to `end`, `count` in all; the first one lies in the partition `first`."""

    end: Mapping[int, int]
    count: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why a source is stopped, what the chain said then, and the batch that could not be committed, if it was one."""

    why: SourceStopped
    chain: object
    batch: Span | None = None

    @property
    def search(self) -> Search | None:
        """Return how to leave out the message that stops the source, None where it is not one that does."""
        batch = self.batch
        if batch is None:
            return None
        half_in = batch.first if self.why.reason == HalfCorrection.__name__ else None
        search = Search(count=batch.count, until=batch.end, why=str(self.why), half_in=half_in)
        return search.narrowed(batch.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """A source in one of its phases; `source` is set while its messages are taken."""

    key: Key
    alias: str
    phase: Phase = Phase.OPENING
    since: float = field(default_factory=time.time)
    """When it came into this phase (seconds since the epoch)."""
    source: "PushSource | None" = None
    wait: Wait | None = None
    """Why the batch that is read next has to be longer than the one before."""
    search: Search | None = None
    stop: Stop | None = None
    trouble: Trouble | None = None
    """Kept until messages come, or are committed: opening alone does not show that a source gets on."""
    last_trouble: Trouble | None = None
    """Kept even then: a source that fails after each few messages is tried less and less often."""
    suspect: Mapping[int, int] | None = None
    """Where it was when the chain was found elsewhere; that may have been a moment before its own commit."""

    @property
    def skips(self) -> Search | None:
        """Return how to leave out the message that holds the source up, None where it is not one that does."""
        if self.stop is not None:
            return self.stop.search
        if self.phase is not Phase.WAITING or self.source is None or self.source.wait is None:
            return None
        return self.source.wait.search

    def moved(
        self,
        event: Event,
        *,
        source: "PushSource | None" = None,
        wait: Wait | None = None,
        search: Search | None = None,
        stop: Stop | None = None,
        trouble: Trouble | None = None,
    ) -> Self:
        """Return the record after an event, with what still holds in its new phase; raises `IllegalTransition`."""
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


def as_of(state: ChainState, source: str) -> object:
    """Return what the chain says of a source: while that stays the same, so does what stopped it."""
    return state.push_sources.get(source), state.source_states.get(source)
