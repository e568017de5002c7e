"""The units of ingestion: a batch of messages of a topic, or a file."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

import numpy as np

from odf_common.metadata.scalars import Timestamp
from odf_ingest.message_columns import NO_COLUMNS, MessageColumns
from odf_ingest.read.input_format import SOURCES_OWN, InputFormat
from odf_ingest.read.message_buffer import Int64Array, MessageBuffer

MessagePosition = tuple[int, int]  # partition and offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipSearch:
    """A search for the message to skip, at which the source stopped because of `why`; it is before `until`.

    Batches have at most `count` messages, fewer each time, until one message fails alone. Half of a correction whose
    other half is missing fails only in the partition `half_in`: in others the other half may follow.
    """

    count: int
    until: Mapping[int, int]
    why: str
    half_in: int | None = None
    found: "Future[MessagePosition | None]" = field(default_factory=Future, compare=False)
    """The place of the skipped message; None if none failed this time."""

    def halve(self, count: int) -> Self:
        """Return the search after a failed batch of `count` messages."""
        return replace(self, count=max(count // 2, 1))

    def is_over(self, position: Mapping[int, int]) -> bool:
        """Return whether the search is complete at a position."""
        return all(offset >= self.until.get(number, 0) for number, offset in position.items())

    def finish(self, result: MessagePosition | Exception | None) -> None:
        """Set the result for the waiting command; only the first one counts."""
        if self.found.done():
            return
        if isinstance(result, Exception):
            self.found.set_exception(result)
        else:
            self.found.set_result(result)

    def double(self, count: int) -> Self:
        """Return the search after a batch of `count` messages that was too short to decide."""
        return replace(self, count=count * 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Messages of one partition in order; `timestamps`: their Kafka times in ms since the epoch, if needed."""

    partition: int
    values: MessageBuffer
    offsets: Sequence[int]
    timestamps: Int64Array | None
    keys: Sequence[bytes | None] = ()
    """Only if columns are read from them."""
    headers: Mapping[str, Sequence[bytes | None]] = field(default_factory=dict)
    """The last value of each header by name, for those that columns are read from."""

    @property
    def sizes(self) -> Int64Array:
        """Return the cumulative bytes of the messages, as far as they are kept, up to and including each one."""
        sizes = self.values.sizes
        for others in (self.keys, *self.headers.values()):
            if others:
                sizes = sizes + np.cumsum([len(partition or b"") for partition in others])
        return sizes

    def only(self, rows: Sequence[int]) -> "Part":
        """Return the messages with these indices."""
        return Part(
            partition=self.partition,
            values=MessageBuffer.pack(self.values.take(rows)),
            offsets=[self.offsets[row] for row in rows],
            timestamps=None if self.timestamps is None else self.timestamps[list(rows)],
            keys=[self.keys[row] for row in rows] if self.keys else (),
            headers={name: [values[row] for row in rows] for name, values in self.headers.items()},
        )

    def between(self, start: int, stop: int) -> "Part":
        """Return the messages with indices from `start` up to `stop`."""
        if start == 0 and stop == len(self.values):
            return self
        return Part(
            partition=self.partition,
            values=self.values[start:stop],
            offsets=self.offsets[start:stop],
            timestamps=None if self.timestamps is None else self.timestamps[start:stop],
            keys=self.keys[start:stop],
            headers={name: values[start:stop] for name, values in self.headers.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicActivity:
    """Another topic of a batch's source, when the batch was cut."""

    unread: frozenset[int] | None
    """Partitions that may have messages that are not committed; None: the topic is not being read."""
    quiet: Mapping[int, float] = field(default_factory=dict)
    """Seconds since the last message of each partition."""


NOT_READ: Final = TopicActivity(unread=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBatch:
    """Messages of one topic."""

    topic: str
    topic_id: str
    partitions: int
    """Number of partitions of the topic."""
    parts: tuple[Part, ...]
    start: Mapping[int, int]
    """First offset by partition."""
    end: Mapping[int, int]
    """Offset after the last message by partition."""
    beginning: Mapping[int, int]
    """First offset of each partition of the topic, for those that the chain does not know yet."""
    begun: float
    """When the first message arrived (seconds, monotonic)."""
    size: int
    """Bytes of all messages."""
    unread: frozenset[int] = frozenset()
    """Partitions that may have more messages."""
    quiet: Mapping[int, float] = field(default_factory=dict)
    """Seconds since the last message of each partition."""
    tries: int = 0
    """Number of batches from the same position that were too short to be committed."""
    may_grow: bool = True
    """Whether a longer batch may be tried."""
    columns: MessageColumns = NO_COLUMNS
    """The columns that are read from keys, headers and timestamps."""
    others: Mapping[str, TopicActivity] = field(default_factory=dict)
    """The source's other topics, by name."""
    search: SkipSearch | None = None
    """The search for a message to skip that this batch is part of."""
    is_skipped: bool = False
    """Whether this is the message to skip."""

    @property
    def count(self) -> int:
        """Return the number of messages."""
        return sum(len(part.values) for part in self.parts)

    @property
    def reads_several(self) -> bool:
        """Return whether its source reads several partitions."""
        return self.partitions > 1 or bool(self.others)

    def before(self, record: int, bad: AbstractSet[tuple[int, int]]) -> "MessageBatch | None":
        """Return the messages before a record's, partition by partition; None if there are none.

        `record` is the index among messages that are not in `bad` (partition and offset).
        """
        stops: list[int] = []
        for part in self.parts:
            good = [index for index, offset in enumerate(part.offsets) if (part.partition, offset) not in bad]
            stops.append(good[record] if record < len(good) else len(part.values))
            if stops[-1] < len(part.values):
                break
            record -= len(good)
        return self._until(stops)

    def before_bad(self, bad: AbstractSet[tuple[int, int]]) -> "MessageBatch | None":
        """Return each partition's messages before its first in `bad` (partition and offset); None if there are none."""
        return self._until(
            [
                next(
                    (index for index, offset in enumerate(part.offsets) if (part.partition, offset) in bad),
                    len(part.values),
                )
                for part in self.parts
            ]
        )

    def _until(self, stops: Sequence[int]) -> "MessageBatch | None":
        """Return the messages before an index in each part; parts beyond `stops` are left out."""
        parts: list[Part] = []
        end = dict(self.start)
        for part, stop in zip(self.parts, stops, strict=False):
            if stop:
                parts.append(part.between(0, stop))
                end[part.partition] = part.offsets[stop - 1] + 1
        cut = {number for number, offset in end.items() if offset != self.end[number]}
        size = sum(int(part.sizes[-1]) for part in parts)
        return (
            replace(self, parts=tuple(parts), end=end, size=size, unread=self.unread | cut) if parts else None
        )


def as_batch(label: str, values: Sequence[bytes], event_time: Timestamp) -> MessageBatch:
    """Return messages as a batch of one partition, with their indices as offsets."""
    count = len(values)
    part = Part(
        partition=0,
        values=MessageBuffer.pack(values),
        offsets=range(count),
        timestamps=np.full(count, event_time.ms),
    )
    return MessageBatch(
        topic=label,
        topic_id="",
        partitions=1,
        parts=(part,),
        start={0: 0},
        end={0: count},
        beginning={0: 0},
        begun=0.0,
        size=sum(map(len, values)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBatch:
    """One file; `key` identifies a repeat."""

    file: Path
    event_time: Timestamp
    """For records of a file without event times."""
    fills_event_times: bool = False
    """Whether the client gave the event time, so that it also replaces single nulls; else they are bad rows."""
    key: str
    is_key_generated: bool = False
    """Whether the key is generated, so that no client can repeat it."""
    format: InputFormat = SOURCES_OWN
    """The file's format; by default the source's own."""
    label: str = "the file"
    """Its name in reasons of rejected rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A message that is not a record of the source, or a row of a batch, whose number is the offset; and why."""

    partition: int
    offset: int
    value: bytes | None
    reason: str
    header_bytes: int = 0
    """Number of bytes of the value that precede a row of a file, and were not next to it there."""
