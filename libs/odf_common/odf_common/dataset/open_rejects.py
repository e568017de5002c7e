"""Rejected messages of a dataset: how many await a decision, and why the first of them was rejected.

The total is part of each source's state, committed with the position of the batch they were in, so a kill neither
loses nor doubles the count. Rows of files, polled or pushed, count as messages; which of them were retried is part of
the state too. The messages themselves are dead letters (topic `odf.dead-letters.v1`). The users' other decisions and
the first reason are notes of this node: copies of a dataset have neither.
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
    """The position of a rejected message; its topic's `reading_id` distinguishes it from a later topic of that name.

    A row of a file, or a message of a polling source, has no topic; its offset is its number among the rejected rows
    and messages of the source.
    """

    topic_id: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejects:
    """Rejected messages of a dataset that await a decision."""

    count: int = 0
    reason: str = ""
    """The reason why the first of them was rejected; empty if unknown."""
    since: Timestamp | None = None
    """When the first of them was rejected; None if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstReject:
    """Reason and time of the first open rejection of a source; None if unknown."""

    reason: str
    since: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Numbers of rejected rows, as intervals with an exclusive end: ascending, with a gap between each two."""

    intervals: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_numbers(cls, numbers: Iterable[int]) -> Self:
        """Return these numbers."""
        intervals: list[tuple[int, int]] = []
        for number in sorted(set(numbers)):
            if intervals and intervals[-1][1] == number:
                intervals[-1] = intervals[-1][0], number + 1
            else:
                intervals.append((number, number + 1))
        return cls(intervals=tuple(intervals))

    @classmethod
    def parse(cls, plain: Any) -> Self:  # noqa: ANN401 - JSON
        """Read what a source state has; raises `ValueError`, `TypeError`."""
        intervals = tuple((int(start), int(end)) for start, end in plain)
        ends = [end for interval in intervals for end in interval]
        if any(end <= before for before, end in pairwise((-1, *ends))):
            raise ValueError(plain)
        return cls(intervals=intervals)

    def __contains__(self, number: int) -> bool:
        """Return whether a number is one of these."""
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
        """Return the count of numbers that are `first` or greater."""
        return sum(max(end - max(start, first), 0) for start, end in self.intervals)


NO_NUMBERS: Final = Numbers()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceProgress:
    """The progress of a source: messages rejected so far, and the next offset by topic id and partition."""

    rejected: int = 0
    ends: Mapping[tuple[str, int], int] = field(default_factory=dict)
    retried: Numbers = NO_NUMBERS
    """Numbers of rows, and of polled messages, that were rejected, and committed since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandledRejects:
    """Rejected messages that were retried or dropped."""

    counts: Mapping[str, int] = field(default_factory=dict)
    """Number of messages by source."""
    through: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """By topic id and partition: all messages before this offset were handled."""
    positions: frozenset[MessagePosition] = frozenset()
    """Messages handled one by one."""

    def holds(self, position: MessagePosition) -> bool:
        """Return whether a message was handled."""
        return position in self.positions or position.offset < self.through.get(
            (position.topic_id, position.partition), 0
        )

    def with_positions(self, source: str, positions: Iterable[MessagePosition]) -> Self:
        """Return these plus `positions`, of which only open ones count."""
        fresh = {position for position in positions if not self.holds(position)}
        counts = {**self.counts, source: self.counts.get(source, 0) + len(fresh)}
        return replace(self, counts=counts, positions=self.positions | fresh)

    def with_all(self, source: str, progress: SourceProgress) -> Self:
        """Return these plus all messages that a source has rejected so far."""
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
        """Return the rejects that still apply at the source's position.

        Messages read again after a reset need a new decision.
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
    """Return the identity of a source's reading of a topic: other sources may read an external topic too."""
    return topic_id if PUSH_TOPICS in topic else f"{source} {topic_id}"


def rows_part(source: str) -> tuple[str, int]:
    """Return the stand-in for a topic's id and partition in rejected rows of a source."""
    return reading_id(source, "", ""), 0


def source_progress(state: SourceState | None) -> SourceProgress:
    """Return the progress of a source; empty if its state does not contain it."""
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
    """Return the number of rejected rows of pushed files, and those that were committed since; raises as above."""
    rows = plain.get("rows", {})
    return int(rows.get("rejected", 0)), Numbers.parse(rows.get("retried", ()))


def parse_polling_progress(plain: Any) -> SourceProgress:  # noqa: ANN401 - JSON
    """Return the progress in a state of a polling source; raises `ValueError`, `KeyError`, `TypeError`."""
    return polling_progress(int(plain["rejected"]), Numbers.parse(plain.get("retried", ())))


def polling_progress(rejected: int, retried: Numbers) -> SourceProgress:
    """Return the progress of a polling source that has rejected that many rows and messages, and retried some."""
    return SourceProgress(rejected=rejected, ends={rows_part(DEFAULT_SOURCE): rejected}, retried=retried)


def rejecting_sources(state: ChainState) -> tuple[str, ...]:
    """Return the sources of a dataset of this node, which may have rejected messages."""
    return (*state.push_sources, *polling_sources(state))


def polling_sources(state: ChainState) -> tuple[str, ...]:
    """Return the name of the polling source, if there is one."""
    return () if state.polling_source is None else (DEFAULT_SOURCE,)


def rejected_by_source(state: ChainState, sources: Iterable[str]) -> Mapping[str, SourceProgress]:
    """Return the progress of each source that has rejected any message."""
    progress = {name: source_progress(state.source_states.get(name)) for name in sources}
    return {name: rejects for name, rejects in progress.items() if rejects.rejected > 0}


def open_rejects(blobs: BlobStore, state: ChainState, sources: Iterable[str]) -> Rejects:
    """Return the rejected messages of these sources that await a decision."""
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
    """Return the rejected messages that await a decision; none, with a log line, if they cannot be read."""
    try:
        return open_rejects(blobs, state, sources)
    except OdfError as error:
        log.warning("cannot count rejected messages", dataset_id=str(state.dataset_id), why=str(error))
        return Rejects()


def load_reasons(blobs: BlobStore, dataset: DatasetId) -> Mapping[str, str]:
    """Return the reason of the first open message by source; empty if the note cannot be read."""
    return {name: reject.reason for name, reject in load_first_rejects(blobs, dataset).items()}


def load_first_rejects(blobs: BlobStore, dataset: DatasetId) -> Mapping[str, FirstReject]:
    """Return the first open message by source; empty if the note cannot be read."""
    try:
        plain = json.loads(blobs.note(dataset, REASONS) or "{}")
        return {str(name): _first(reject) for name, reject in plain.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def note_reason(
    blobs: BlobStore, dataset: DatasetId, source: str, reason: str | None, *, now: Timestamp
) -> None:
    """Store why a source's first open message was rejected, and since when there is one; None if no message is open."""
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
    """Return the handled messages; none if there is no note, or none that can be read: all messages are open then."""
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
    """Store durably what was handled."""
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
