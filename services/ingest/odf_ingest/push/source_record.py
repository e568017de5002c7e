"""The record of an assigned push source, changed only by events of the state machine."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from odf_common.chain.state import ChainState
from odf_common.errors import OdfError
from odf_common.identity.did import DatasetId
from odf_common.ports.clock import Backoff
from odf_ingest.commit.committer import position_of
from odf_ingest.errors import IncompleteCorrection, RegistryUnavailable, SourceStopped, pauses_source
from odf_ingest.prepare.batch import Search
from odf_ingest.push.state_machine import LIVE, Event, Phase, after

if TYPE_CHECKING:
    from odf_ingest.push.source import PushSource


class Key(NamedTuple):
    """What is read: a source's own topic, or an external one."""

    dataset: DatasetId
    source: str
    topic: str = ""
    """The name of an external topic; empty for the source's own."""


RETRY: Final = Backoff(first=0.2, most=10.0)
TOPIC_UNREADABLE: Final = "TopicUnreadable"
SAME_TROUBLE_SECONDS: Final = 30.0  # without failure after which the next one counts as a new trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Why a source waits: `tries` batches up to `seen` lacked a message."""

    seen: Mapping[int, int]
    tries: int
    why: str
    first: int = 0
    """The partition of the batch's first message, whose other half is missing."""

    @property
    def search(self) -> Search:
        """Return the search that skips that message."""
        return Search(count=1, until=self.seen, why=self.why, half_in=self.first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Why an operation fails for now: since when (seconds since the epoch), and the number of tries."""

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
    def of(cls, error: OdfError, before: "Trouble | None") -> Self:
        """Return the trouble after one more try; `since` is that of the first."""
        since, tries = (time.time(), 1) if before is None else (before.since, before.tries + 1)
        return cls(
            since=since,
            why=str(error),
            advice=error.advice(),
            tries=tries,
            reason=error.code if isinstance(error, RegistryUnavailable) else TOPIC_UNREADABLE,
            lasts_until_commit=pauses_source(error),
        )

    @property
    def delay(self) -> float:
        """Return the seconds until the next retry."""
        return RETRY.pause(self.tries)

    @property
    def is_recent(self) -> bool:
        """Return whether a failure now still belongs to it."""
        return time.monotonic() - self.last < self.delay + SAME_TROUBLE_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """`count` messages of a topic, up to `end` by partition; the first one is in the partition `first`."""

    end: Mapping[int, int]
    count: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Why a source is stopped, the chain's facts then, and the batch that failed, if any."""

    why: SourceStopped
    chain: object
    batch: Span | None = None

    @property
    def search(self) -> Search | None:
        """Return the search that skips the message that stops the source; None if no message does."""
        batch = self.batch
        if batch is None:
            return None
        half_in = batch.first if self.why.reason == IncompleteCorrection.__name__ else None
        search = Search(count=batch.count, until=batch.end, why=str(self.why), half_in=half_in)
        return search.narrowed(batch.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRecord:
    """A source in one of its phases; `source` is set while it is being read."""

    key: Key
    alias: str
    phase: Phase = Phase.OPENING
    since: float = field(default_factory=time.time)
    """When it entered this phase (seconds since the epoch)."""
    source: "PushSource | None" = None
    wait: Wait | None = None
    """Why the next batch must be longer than the last one."""
    search: Search | None = None
    stop: Stop | None = None
    trouble: Trouble | None = None
    """Kept until messages arrive or are committed: opening alone is no proof of progress."""
    last_trouble: Trouble | None = None
    """Kept even then, so that the backoff grows for a source that fails after every few messages."""
    suspect: Mapping[int, int] | None = None
    """Its position when the chain's was found to differ; the inspection may have preceded its own commit."""

    @property
    def skips(self) -> Search | None:
        """Return the search that skips the message that blocks the source; None if no message does."""
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


def as_of(state: ChainState, key: Key) -> object:
    """Return the chain's definition and state of a source: while they are unchanged, so is the reason for a stop.

    For an external topic only its own position counts: the source continues to read the others.
    """
    source = state.push_sources.get(key.source)
    if not key.topic:
        return source, state.source_states.get(key.source)
    position = position_of(state, key.source)
    return source, position.topics.get(key.topic), position.receipts
