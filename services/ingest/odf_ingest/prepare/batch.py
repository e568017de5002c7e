"""The units of ingestion: a batch of messages from a topic, or a file."""

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
    """A search for the message to skip: the one because of which the source stopped, with the reason `why`.

    The message is before the offsets `until`. Batches have at most `count` messages, halved after each failure, until a
    single message fails. An incomplete correction counts as a failure only in the partition `half_in`: in other
    partitions its other half may still follow.
    """

    count: int
    until: Mapping[int, int]
    why: str
    half_in: int | None = None
    found: "Future[MessagePosition | None]" = field(default_factory=Future, compare=False)
    """The position of the skipped message; None if no message failed when the messages were read again."""

    def halve(self, count: int) -> Self:
        """Return the search after a failed batch of `count` messages."""
        return replace(self, count=max(count // 2, 1))

    def is_over(self, position: Mapping[int, int]) -> bool:
        """Return whether this position is after all messages to search."""
        return all(offset >= self.until.get(number, 0) for number, offset in position.items())

    def finish(self, result: MessagePosition | Exception | None) -> None:
        """Set the result for the waiting command; later results are ignored."""
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
    """Messages of one partition in order; `timestamps` are those of Kafka in ms since the epoch, if needed."""

    partition: int
    values: MessageBuffer
    offsets: Sequence[int]
    timestamps: Int64Array | None
    keys: Sequence[bytes | None] = ()
    """The keys of the messages; empty unless columns are read from keys."""
    headers: Mapping[str, Sequence[bytes | None]] = field(default_factory=dict)
    """By name of a header, its last value in each message; only headers from which columns are read."""

    @property
    def sizes(self) -> Int64Array:
        """Return for each message the size in bytes of all messages up to and including it.

        A size includes those keys and headers that are kept.
        """
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
    """The state of another topic of the same source at the time when a batch was cut."""

    unread: frozenset[int] | None
    """Partitions that may have messages that are not committed; None: the topic is not being read."""
    quiet: Mapping[int, float] = field(default_factory=dict)
    """Seconds since the last message of each partition."""


NOT_READ: Final = TopicActivity(unread=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBatch:
    """A batch of messages from one topic."""

    topic: str
    topic_id: str
    partitions: int
    """Number of partitions of the topic."""
    parts: tuple[Part, ...]
    start: Mapping[int, int]
    """Per partition the first offset of the batch."""
    end: Mapping[int, int]
    """Per partition the offset after the last message of the batch."""
    beginning: Mapping[int, int]
    """Per partition the offset at which reading begins while the chain has no position for the partition."""
    begun: float
    """Arrival time of the first message (seconds, monotonic)."""
    size: int
    """Size of all messages in bytes."""
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
    """Whether the batch is the message to skip, alone."""

    @property
    def count(self) -> int:
        """Return the number of messages."""
        return sum(len(part.values) for part in self.parts)

    @property
    def reads_several(self) -> bool:
        """Return whether its source reads several partitions."""
        return self.partitions > 1 or bool(self.others)

    def before(self, record: int, bad: AbstractSet[tuple[int, int]]) -> "MessageBatch | None":
        """Return the messages before that of a record; None if there are none.

        The messages are ordered by partition, then offset. `record` is the index of the message among those that are
        not in `bad`, which has partitions and offsets.
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
    """A file to ingest; a repeated push of it has the same `key`."""

    file: Path
    event_time: Timestamp
    """The event time of the records if the file has no event times."""
    fills_event_times: bool = False
    """Whether `event_time` also replaces null event times, because the client gave it; otherwise such rows are bad."""
    key: str
    is_key_generated: bool = False
    """Whether the key was generated by the node, so that no client can repeat the push."""
    format: InputFormat = SOURCES_OWN
    """The file's format; by default the source's own."""
    label: str = "the file"
    """The name of the file in the reasons of rejected rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A message or row that cannot be read as a record of the source, with the reason.

    The offset of a row is its number in the batch.
    """

    partition: int
    offset: int
    value: bytes | None
    reason: str
    header_bytes: int = 0
    """Number of bytes at the start of `value` that are the header line of the row's file."""
