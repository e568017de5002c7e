"""What is brought in at once: messages of a topic, or a file."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from odf_common.metadata.scalars import Timestamp
from odf_ingest.read.message_buffer import Places, Values

MessagePosition = tuple[int, int]  # partition and offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Someone wants the message left out at which the source stopped because of `why`; it lies before `until`.

    Batches have at most `count` messages, fewer each time, until one message fails alone. A half of a correction
    whose other half has not come fails only in the partition `half_in`: elsewhere the other half may follow.
    """

    count: int
    until: Mapping[int, int]
    why: str
    half_in: int | None = None
    found: "Future[MessagePosition | None]" = field(default_factory=Future, compare=False)
    """Where the message was that has been left out; None when none failed this time."""

    def narrowed(self, count: int) -> Self:
        """Return the search after a batch of so many messages that has failed."""
        return replace(self, count=max(count // 2, 1))

    def is_over(self, position: Mapping[int, int]) -> bool:
        """Return whether nothing is left to be searched at a position."""
        return all(at >= self.until.get(number, 0) for number, at in position.items())

    def ended(self, found: MessagePosition | Exception | None) -> None:
        """Tell who waits for it how the search has ended; the first word counts."""
        if self.found.done():
            return
        if isinstance(found, Exception):
            self.found.set_exception(found)
        else:
            self.found.set_result(found)

    def widened(self, count: int) -> Self:
        """Return the search after a batch of so many messages that was too short to be judged."""
        return replace(self, count=count * 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Messages of one partition in order; `timestamps` has their Kafka times in ms since the epoch, if asked for."""

    partition: int
    values: Values
    offsets: Sequence[int]
    timestamps: Places | None

    def between(self, start: int, stop: int) -> "Part":
        """Return the messages from the place `start` up to `stop`."""
        if start == 0 and stop == len(self.values):
            return self
        return Part(
            partition=self.partition,
            values=self.values[start:stop],
            offsets=self.offsets[start:stop],
            timestamps=None if self.timestamps is None else self.timestamps[start:stop],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBatch:
    """Messages of one topic from position `start` up to `end`, both by partition.

    `beginning` has the offsets at which partitions begin that the chain does not know yet.
    `unread` are the partitions that were not seen to have been read to their ends.
    `begun` is when the first of them came (seconds, monotonic), `size` their bytes, `partitions` how many the
    topic has. `tries` counts the batches from the same position that were too short to be committed, `may_grow`
    tells whether a longer one may be tried. With a `search` it is one of those that look for a message to be left
    out; `is_skipped` says that it is that message.
    """

    topic: str
    topic_id: str
    partitions: int
    parts: tuple[Part, ...]
    start: Mapping[int, int]
    end: Mapping[int, int]
    beginning: Mapping[int, int]
    begun: float
    size: int
    unread: frozenset[int] = frozenset()
    tries: int = 0
    may_grow: bool = True
    search: Search | None = None
    is_skipped: bool = False

    @property
    def count(self) -> int:
        """Return how many messages there are."""
        return sum(len(part.values) for part in self.parts)

    def before(self, record: int, bad: AbstractSet[tuple[int, int]]) -> "MessageBatch | None":
        """Return the messages before that of a record, partition by partition; None when there are none.

        `record` counts messages from 0, but for those in `bad` (partition and offset).
        """
        stops: list[int] = []
        for part in self.parts:
            good = [place for place, at in enumerate(part.offsets) if (part.partition, at) not in bad]
            stops.append(good[record] if record < len(good) else len(part.values))
            if stops[-1] < len(part.values):
                break
            record -= len(good)
        return self._until(stops)

    def before_bad(self, bad: AbstractSet[tuple[int, int]]) -> "MessageBatch | None":
        """Return each partition's messages before its first in `bad` (partition and offset); None for no messages."""
        return self._until(
            [
                next(
                    (place for place, at in enumerate(part.offsets) if (part.partition, at) in bad),
                    len(part.values),
                )
                for part in self.parts
            ]
        )

    def _until(self, stops: Sequence[int]) -> "MessageBatch | None":
        """Return the messages before a place in each part; nothing of parts after the last place given."""
        parts: list[Part] = []
        end = dict(self.start)
        for part, stop in zip(self.parts, stops, strict=False):
            if stop:
                parts.append(part.between(0, stop))
                end[part.partition] = part.offsets[stop - 1] + 1
        cut = {number for number, at in end.items() if at != self.end[number]}
        size = sum(int(part.values.sizes[-1]) for part in parts)
        return (
            replace(self, parts=tuple(parts), end=end, size=size, unread=self.unread | cut) if parts else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBatch:
    """One file; `event_time` is for records that have none, `key` identifies a repeat."""

    file: Path
    event_time: Timestamp
    key: str
    is_key_generated: bool = False
    """No client will come back with the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A message that is no record of the source, and why."""

    partition: int
    offset: int
    value: bytes | None
    reason: str
