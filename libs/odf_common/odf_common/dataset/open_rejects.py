"""Rejected messages of a dataset: the number that await a decision, and why the first one was rejected.

The state of each source contains the number of messages rejected so far. It is committed together with the position
of the batch, so a crash neither loses nor doubles the count. Rows of files, polled or pushed, count as messages; the
state also contains which of them were retried. The messages themselves are dead letters (topic
`odf.dead-letters.v1`). The other decisions of users, and the reason of the first message, are notes of this node,
which copies of a dataset do not have.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Self

import structlog

from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.errors import OdfError
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import SourceState
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.bus import PUSH_TOPICS
from odf_common.ports.store import BlobStore

log = structlog.stdlib.get_logger(__name__)

KIND: Final = "odf/kafka"  # of the states of push sources
POLLED: Final = "odf/polled"  # of the states of polling sources that have rejected messages
REASONS: Final = "rejected"
HANDLED: Final = "rejected-handled"
REASON_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePosition:
    """The position of a rejected message; `topic_id` (see `reading_id`) differs for a recreated topic of the same name.

    A row of a file, or a message of a polling source, has no topic. Its offset is its number among the rejected rows
    and messages of the source.
    """

    topic_id: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejects:
    """The rejected messages of a dataset that await a decision by the user."""

    count: int = 0
    reason: str = ""
    """The reason why the first of these messages was rejected; empty if unknown."""
    since: Timestamp | None = None
    """Time at which the first of these messages was rejected; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstReject:
    """The reason of a source's first open rejection, and its time (None if unknown)."""

    reason: str
    since: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """A set of numbers of rejected rows, as ascending intervals with exclusive ends and a gap between any two."""

    intervals: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_numbers(cls, numbers: Iterable[int]) -> Self:
        """Return the set of these numbers."""
        intervals: list[tuple[int, int]] = []
        for number in sorted(set(numbers)):
            if intervals and intervals[-1][1] == number:
                intervals[-1] = intervals[-1][0], number + 1
            else:
                intervals.append((number, number + 1))
        return cls(intervals=tuple(intervals))

    @classmethod
    def parse(cls, plain: Any) -> Self:  # noqa: ANN401 - JSON
        """Parse intervals from the JSON of a source state; raises `ValueError`, `TypeError`."""
        intervals = tuple((int(start), int(end)) for start, end in plain)
        ends = [end for interval in intervals for end in interval]
        if any(end <= before for before, end in pairwise((-1, *ends))):
            raise ValueError(plain)
        return cls(intervals=intervals)

    def __contains__(self, number: int) -> bool:
        """Return whether the number is in the set."""
        return any(start <= number < end for start, end in self.intervals)

    def __or__(self, other: Self) -> Self:
        """Return the union of both sets."""
        intervals: list[tuple[int, int]] = []
        for start, end in sorted((*self.intervals, *other.intervals)):
            if intervals and intervals[-1][1] >= start:
                intervals[-1] = intervals[-1][0], max(intervals[-1][1], end)
            else:
                intervals.append((start, end))
        return replace(self, intervals=tuple(intervals))

    def count_from(self, first: int) -> int:
        """Return the number of elements that are `first` or greater."""
        return sum(max(end - max(start, first), 0) for start, end in self.intervals)


NO_NUMBERS: Final = Numbers()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceProgress:
    """The progress of a source: number of messages rejected so far, and next offset by topic id and partition."""

    rejected: int = 0
    ends: Mapping[tuple[str, int], int] = field(default_factory=dict)
    retried: Numbers = NO_NUMBERS
    """Numbers of the rows and polled messages that were rejected at first and committed by a later retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandledRejects:
    """Rejected messages that the user has already decided on: they were retried or dropped."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of handled messages by source."""
    through: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Offset by topic id and partition before which all rejected messages were handled."""
    positions: frozenset[MessagePosition] = frozenset()
    """Positions of the messages that were handled one by one."""

    def holds(self, position: MessagePosition) -> bool:
        """Return whether a message was handled."""
        return position in self.positions or position.offset < self.through.get(
            (position.topic_id, position.partition), 0
        )

    def with_positions(self, source: str, positions: Iterable[MessagePosition]) -> Self:
        """Return these and `positions` as handled; positions that are already handled are not counted again."""
        fresh = {position for position in positions if not self.holds(position)}
        counts = {**self.counts, source: self.counts.get(source, 0) + len(fresh)}
        return replace(self, counts=counts, positions=self.positions | fresh)

    def with_all(self, source: str, progress: SourceProgress) -> Self:
        """Return these and all messages that a source has rejected so far as handled."""
        through = {**self.through, **progress.ends}
        left = frozenset(
            position
            for position in self.positions
            if position.offset >= through.get((position.topic_id, position.partition), 0)
        )
        counts = {**self.counts, source: progress.rejected}
        return replace(self, counts=counts, through=through, positions=left)

    def open_count(self, source: str, progress: SourceProgress) -> int:
        """Return the number of a source's rejected messages that await a decision."""
        handled = self.as_of(source, progress)
        rows = rows_part(source)
        dropped = sum(
            (position.topic_id, position.partition) == rows and position.offset in progress.retried
            for position in handled.positions
        )
        retried = progress.retried.count_from(handled.through.get(rows, 0)) - dropped
        return progress.rejected - handled.counts[source] - retried

    def as_of(self, source: str, progress: SourceProgress) -> Self:
        """Return the handled messages that are before the current position of the source.

        Messages that the source reads again after a reset need a new decision.
        """
        behind = {
            position
            for position in self.positions
            if position.offset >= progress.ends.get((position.topic_id, position.partition), math.inf)
        }
        through = {key: min(offset, progress.ends.get(key, offset)) for key, offset in self.through.items()}
        count = self.counts.get(source, 0) - len(behind)
        if through != self.through:
            count = progress.rejected  # all messages before the mark were handled
        counts = {**self.counts, source: max(min(count, progress.rejected), 0)}
        return replace(self, counts=counts, through=through, positions=self.positions - behind)


def reading_id(source: str, topic: str, topic_id: str) -> str:
    """Return the topic id for positions of rejected messages; several sources may read the same external topic."""
    return topic_id if PUSH_TOPICS in topic else f"{source} {topic_id}"


def rows_part(source: str) -> tuple[str, int]:
    """Return the topic id and partition that stand for the rejected rows of a source, which have no topic."""
    return reading_id(source, "", ""), 0


def source_progress(state: SourceState | None) -> SourceProgress:
    """Return the progress of a source; an empty progress if its state does not contain any."""
    if state is None or state.kind not in (KIND, POLLED):
        return SourceProgress()
    try:
        plain = json.loads(state.value)
        if state.kind == POLLED:
            return parse_polling_progress(plain)
        ends = {
            (reading_id(state.source_name, name, str(topic["id"])), int(part)): int(offset)
            for name, topic in plain["topics"].items()
            for part, offset in topic["next"].items()
        }
        count, retried = rows_in(plain)
        ends[rows_part(state.source_name)] = (
            count  # also 0: after a reset to before the first row, none is handled
        )
        return SourceProgress(rejected=int(plain.get("rejected", 0)), ends=ends, retried=retried)
    except (ValueError, KeyError, TypeError, AttributeError):
        return SourceProgress()


def rows_in(plain: Any) -> tuple[int, Numbers]:  # noqa: ANN401 - JSON
    """Return the number of rejected rows of pushed files, and the numbers of the rows that a retry has committed.

    Raises `ValueError`, `KeyError`, `TypeError`.
    """
    rows = plain.get("rows", {})
    return int(rows.get("rejected", 0)), Numbers.parse(rows.get("retried", ()))


def parse_polling_progress(plain: Any) -> SourceProgress:  # noqa: ANN401 - JSON
    """Parse the progress in the state of a polling source; raises `ValueError`, `KeyError`, `TypeError`."""
    return polling_progress(int(plain["rejected"]), Numbers.parse(plain.get("retried", ())))


def polling_progress(rejected: int, retried: Numbers) -> SourceProgress:
    """Return the progress of a polling source from its number of rejected rows and messages, and those retried."""
    return SourceProgress(rejected=rejected, ends={rows_part(DEFAULT_SOURCE): rejected}, retried=retried)


def rejecting_sources(state: ChainState) -> tuple[str, ...]:
    """Return the names of all sources of a dataset; each of them can reject messages."""
    return (*state.push_sources, *polling_sources(state))


def polling_sources(state: ChainState) -> tuple[str, ...]:
    """Return the name of the polling source in a tuple, which is empty if there is no polling source."""
    return () if state.polling_source is None else (DEFAULT_SOURCE,)


def rejected_by_source(state: ChainState, sources: Iterable[str]) -> Mapping[str, SourceProgress]:
    """Return the progress of those sources that have rejected messages, by name."""
    progress = {name: source_progress(state.source_states.get(name)) for name in sources}
    return {name: rejects for name, rejects in progress.items() if rejects.rejected > 0}


def open_rejects(blobs: BlobStore, state: ChainState, sources: Iterable[str]) -> Rejects:
    """Return the number of rejected messages of these sources that await a decision, with the first reason and time."""
    by_source = rejected_by_source(state, sources)
    if not by_source:
        return Rejects()
    handled = load_handled(blobs, state.dataset_id)
    left = {name: handled.open_count(name, progress) for name, progress in by_source.items()}
    waiting = {name: count for name, count in left.items() if count > 0}
    noted = load_first_rejects(blobs, state.dataset_id)
    first = [noted[name] for name in waiting if name in noted]
    return Rejects(
        count=sum(waiting.values()),
        reason=next((reject.reason for reject in first), ""),
        since=min((reject.since for reject in first if reject.since is not None), default=None),
    )


def current_rejects(blobs: BlobStore, state: ChainState, sources: Iterable[str]) -> Rejects:
    """Return the same as `open_rejects`; if that fails, log the error and return no messages."""
    try:
        return open_rejects(blobs, state, sources)
    except OdfError as error:
        log.warning("cannot count rejected messages", dataset_id=str(state.dataset_id), why=str(error))
        return Rejects()


def load_reasons(blobs: BlobStore, dataset: DatasetId) -> Mapping[str, str]:
    """Return the reason of the first open rejection by source; empty if the note cannot be read."""
    return {name: reject.reason for name, reject in load_first_rejects(blobs, dataset).items()}


def load_first_rejects(blobs: BlobStore, dataset: DatasetId) -> Mapping[str, FirstReject]:
    """Return the first open rejection by source; empty if the note cannot be read."""
    try:
        plain = json.loads(blobs.note(dataset, REASONS) or "{}")
        return {str(name): _first(reject) for name, reject in plain.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def note_reason(
    blobs: BlobStore, dataset: DatasetId, source: str, reason: str | None, *, now: Timestamp
) -> None:
    """Store the reason of a source's first open rejection, None if no message is open any more.

    The time is `now` if there was no open rejection before; otherwise it stays.
    """
    with blobs.lock_notes(dataset):
        noted = dict(load_first_rejects(blobs, dataset))
        before = noted.pop(source, None)
        if reason is not None:
            since = now if before is None or before.since is None else before.since
            noted[source] = FirstReject(reason=reason[:REASON_CHARACTERS], since=since)
        plain = {
            name: {"reason": reject.reason, "since": None if reject.since is None else reject.since.ns}
            for name, reject in noted.items()
        }
        blobs.set_note(dataset, REASONS, json.dumps(plain) if plain else None)


def load_handled(blobs: BlobStore, dataset: DatasetId) -> HandledRejects:
    """Return the handled messages; none if the note is missing or damaged, so that all rejected messages are open."""
    try:
        plain = json.loads(blobs.note(dataset, HANDLED) or "{}")
        return HandledRejects(
            counts={str(name): int(count) for name, count in plain["counts"].items()},
            through={(str(topic), int(part)): int(offset) for topic, part, offset in plain["through"]},
            positions=frozenset(_message_position(position) for position in plain["places"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return HandledRejects()


def save_handled(blobs: BlobStore, dataset: DatasetId, handled: HandledRejects) -> None:
    """Store the handled messages durably."""
    plain = {
        "counts": dict(handled.counts),
        "through": sorted([topic, part, offset] for (topic, part), offset in handled.through.items()),
        "places": sorted(
            [position.topic_id, position.partition, position.offset] for position in handled.positions
        ),
    }
    blobs.set_note(dataset, HANDLED, json.dumps(plain))


def _first(plain: Any) -> FirstReject:  # noqa: ANN401 - JSON
    if isinstance(plain, str):  # written by an earlier release
        return FirstReject(reason=plain)
    since = plain["since"]
    return FirstReject(reason=str(plain["reason"]), since=None if since is None else Timestamp(int(since)))


def _message_position(plain: Any) -> MessagePosition:  # noqa: ANN401 - JSON
    topic, partition, offset = plain
    return MessagePosition(topic_id=str(topic), partition=int(partition), offset=int(offset))
