"""A push source while it is read.

It has the offsets in the partitions of its topic, the messages that are cut into batches by `BatchLimits`, the batches
in flight, which are being read, queried or committed, and the reason why it waits or is retried.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
import structlog

from odf_common.adapters.kafka.quiet_partitions import Partition
from odf_common.adapters.kafka.records import Chunk
from odf_common.chain.build_blocks import ClockBehind
from odf_common.chain.state import ChainState
from odf_common.errors import OdfError, advice_while_retried
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.clock import Backoff
from odf_ingest.errors import RegistryUnavailable, pauses_source
from odf_ingest.message_columns import NO_COLUMNS, MessageColumns
from odf_ingest.prepare.batch import NOT_READ, MessageBatch, Part, SkipSearch, TopicActivity
from odf_ingest.prepare.plan import Plan, sent_as
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.push.source_topics import Key, TopicOffsets
from odf_ingest.read.message_buffer import MessageBuffer

BATCH_BACKOFF: Final = Backoff(first=0.2, most=5.0)
TOPIC_UNREADABLE: Final = "TopicUnreadable"
SAME_TROUBLE_SECONDS: Final = 30.0  # a failure after so long without one counts as a new trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """An operation that fails and is retried: the reason, and the number of tries.

    `since` is the time of the first failure in seconds since the epoch.
    """

    since: float
    why: str
    advice: str = ""
    tries: int = 1
    last: float = field(default_factory=time.monotonic)
    """Time of the last try (seconds, monotonic)."""
    reason: str = TOPIC_UNREADABLE
    lasts_until_commit: bool = False
    """Whether only a commit proves that the trouble is over, because the topic is not its cause."""

    @classmethod
    def after_try(cls, error: OdfError, before: "Trouble | None") -> Self:
        """Return the trouble after one more failed try; `since` is the time of the first one."""
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
        """Return whether a failure now would belong to this trouble."""
        return time.monotonic() - self.last < self.delay + SAME_TROUBLE_SECONDS


class BatchesInFlight:
    """The batches of a source that are being processed. Each attribute is written by one thread only."""

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
        """Return the number of batches in flight."""
        return self.begun - self.settled

    def in_order(self, reading: "Future[PreparedRecords]", place: Callable[[], None]) -> None:
        """Call `place` once a batch has been read, and `place` of all earlier batches was called.

        No thread is blocked meanwhile.
        """
        before, placed = self._placed, Future[None]()
        self._placed = placed

        def place_next(_: object) -> None:
            try:
                place()
            finally:
                placed.set_result(None)

        reading.add_done_callback(lambda _: before.add_done_callback(place_next))


class PartitionOffsets:
    """The offsets of a source by partition. The reader's thread writes them; any thread may read them."""

    def __init__(self, positions: Mapping[int, int]) -> None:
        """Start at `positions`."""
        self.next = dict(positions)  # the next message to be read
        self.ends: dict[int, int] = {}  # observed end
        self.high: dict[int, int] = {}  # its end at the last poll with messages
        self._opened_at = dict(positions)
        self._heard = dict.fromkeys(positions, time.monotonic())  # when each gave its last message
        self._unread: tuple[Mapping[int, int], float] | None = None

    def read(self, partition: int, offset: int) -> None:
        """Advance past a message that has just been read."""
        self._heard[partition] = time.monotonic()
        self.next[partition] = offset + 1

    def reached_end(self, partition: int, offset: int) -> None:
        """Record that the partition was read to its end: only transaction markers may follow the last message."""
        self.ends[partition] = offset
        self.high[partition] = self.next[partition]

    def has_reached(self, partition: int, end: int) -> bool:
        """Return whether a partition was read up to this end or a later one."""
        return self.ends.get(partition, -1) >= end

    def are_after(self, offsets: Mapping[int, int]) -> bool:
        """Return whether any partition has been read beyond `offsets`."""
        return any(next_ > offsets.get(number, 0) for number, next_ in self.next.items())

    def have_reached(self, offsets: Mapping[int, int]) -> bool:
        """Return whether every partition has been read up to `offsets`."""
        return all(next_ >= offsets.get(number, 0) for number, next_ in self.next.items())

    def lag(self, positions: Mapping[int, int]) -> int:
        """Return the number of known messages after these positions."""
        return sum(max(self.high.get(number, 0) - offset, 0) for number, offset in positions.items())

    @property
    def unread(self) -> frozenset[int]:
        """Return the partitions that may have more messages."""
        return frozenset(
            number for number, offset in self.next.items() if not self.has_reached(number, offset)
        )

    @property
    def quiet(self) -> Mapping[int, float]:
        """Return per partition the seconds since its last message, or since it was opened."""
        now = time.monotonic()
        return {number: now - since for number, since in self._heard.items()}

    def activity(self, *, is_idle: bool) -> TopicActivity:
        """Return the state of this topic, for batches from other topics of the same source."""
        unread = self.unread
        if not is_idle:
            unread |= {number for number, offset in self.next.items() if offset != self._opened_at[number]}
        return TopicActivity(unread=unread, quiet=self.quiet)

    def silence(self, high: Mapping[int, int], *, is_idle: bool) -> float:
        """Return the seconds for which the source has received nothing although its topic has more messages."""
        is_behind = any(
            end > max(self.next.get(number, end), self.ends.get(number, 0)) for number, end in high.items()
        )
        if not (is_idle and is_behind):
            self._unread = None
        elif self._unread is None or self._unread[0] != self.next:
            self._unread = dict(self.next), time.monotonic()
        return 0.0 if self._unread is None else time.monotonic() - self._unread[1]


MAX_BATCH_BYTES: Final = 64 * 1024 * 1024  # maximum of a batch that grows because it lacks a message
MAX_DELAY_SECONDS: Final = 10.0  # maximum time for which such a batch waits for more messages


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The limits of a batch, which becomes a slice: size of its messages in bytes, and delay in seconds.

    They are the settings `slice_max_bytes` and `slice_max_delay_ms`. The delay begins with the first message; it is
    longer while a source has a backlog (`PushSource.due`). `PushSource.add` cuts batches by size. If each message is a
    batch of its own, or while it searches for a message to skip, it cuts by number of messages.
    """

    size: int
    delay: float
    most: int = MAX_BATCH_BYTES

    @property
    def top(self) -> int:
        """Return the maximum size of a batch in bytes, however often it was too short."""
        return max(self.size, self.most)

    def after(self, tries: int) -> "BatchLimits":
        """Return the limits after `tries` batches that were too short; they double with each try."""
        if tries == 0:
            return self
        times = 2 ** min(tries, 32)
        delay = max(self.delay, min(max(self.delay, 0.05) * times, MAX_DELAY_SECONDS))
        return BatchLimits(size=min(self.size * times, self.top), delay=delay, most=self.most)


@dataclass(slots=True, kw_only=True)
class BatchBuffer:
    """The messages that are collected for the next batch."""

    start: dict[int, int]
    parts: list[Part] = field(default_factory=list)
    size: int = 0
    count: int = 0
    begun: float = 0.0


def joined_by_partition(parts: list[Part]) -> list[Part]:
    """Return one part per partition, partitions ascending."""
    grouped: dict[int, list[Part]] = {}
    for part in parts:
        grouped.setdefault(part.partition, []).append(part)
    return [_join(grouped[number]) for number in sorted(grouped)]


def _join(parts: list[Part]) -> Part:
    values = MessageBuffer.from_parts([part.values for part in parts])
    start, stop = parts[0].offsets[0], parts[-1].offsets[-1] + 1
    has_gaps = stop - start != len(values)
    timestamps = [part.timestamps for part in parts if part.timestamps is not None]
    return Part(
        partition=parts[0].partition,
        values=values,
        offsets=[offset for part in parts for offset in part.offsets] if has_gaps else range(start, stop),
        timestamps=np.concatenate(timestamps) if timestamps else None,
        keys=[key for part in parts for key in part.keys],
        headers={
            name: [header for part in parts for header in part.headers[name]] for name in parts[0].headers
        },
    )


MAX_BATCHES_IN_FLIGHT: Final = 2  # per source: one is committed while the next is read
# A batch waits this many times its delay for messages that the topic already has.
BACKLOG_DELAY_FACTOR: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The wait of a source for a message: `tries` batches up to the offsets `end` could not be committed without it."""

    end: Mapping[int, int]
    tries: int
    why: str
    first: int = 0
    """The partition of the batch's first message: a correction whose other half is missing."""

    @property
    def search(self) -> SkipSearch:
        """Return the search that skips the first message."""
        return SkipSearch(count=1, until=self.end, why=self.why, half_in=self.first)


class PushSource:
    """A push source that this instance reads. Only the reader's thread may use its buffers."""

    def __init__(  # noqa: PLR0913 - all by name
        self,
        *,
        dataset: DatasetId,
        alias: str,
        plan: Plan,
        topic: str,
        topic_id: str,
        positions: Mapping[int, int],
        beginning: Mapping[int, int],
        limits: BatchLimits,
        wait: Wait | None = None,
        search: SkipSearch | None = None,
        is_own: bool = True,
        start: TopicOffsets | None = None,
        columns: MessageColumns = NO_COLUMNS,
    ) -> None:
        """Start reading at `positions`."""
        self.dataset = dataset
        self.alias = alias
        self.plan = plan
        self.name = plan.source.source_name
        self.topic = topic
        self.topic_id = topic_id
        self.key = Key(dataset, self.name, "" if is_own else topic)
        self.start = start  # where the topic is read from, if that was chosen
        self.columns = columns
        self.siblings: frozenset[Key] = frozenset()  # the same source's other topics
        self.readers: Mapping[Key, PushSource] = {}  # all that are being read
        self.offsets = PartitionOffsets(positions)
        self.in_flight = BatchesInFlight()
        self.ready: deque[MessageBatch] = deque()
        self.is_hurried = False  # cut a batch as soon as no more messages are waiting
        self.last_mean = 0.0  # mean size in bytes of the last messages
        self.beginning = dict(beginning)
        self.wait = wait  # if set, the first batch is not cut before a new message has arrived
        if search is not None and search.is_over(positions):
            search.finish(None)
            search = None
        self._search = search
        self._cut_for = search  # if set, batches are cut by its count
        self._usual = limits
        self._limits = limits.after(wait.tries if wait else 0)
        self._buffer = BatchBuffer(start=dict(positions))

    @property
    def log(self) -> structlog.stdlib.BoundLogger:
        """Return a logger that adds the source to its messages."""
        names = {"dataset": self.alias, "dataset_id": str(self.dataset), "source": self.name}
        return structlog.stdlib.get_logger(__name__).bind(**names)

    def is_as_defined(self, state: ChainState) -> bool:
        """Return whether batches are read with the chain's current definition; False if the source was removed."""
        defined = state.push_sources.get(self.name)
        return defined is not None and self.plan.source == sent_as(defined, self.columns)

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Return the partitions that the source reads."""
        return tuple((self.topic, number) for number in self.offsets.next)

    @property
    def search(self) -> SkipSearch | None:
        """Return the running search for a message to skip; None if there is none.

        A search runs until its last batch was processed, even if all messages are in flight.
        """
        return None if self._search is None or self._search.found.done() else self._search

    @property
    def is_idle(self) -> bool:
        """Return whether all messages that were read are committed; any thread may call it.

        Messages move from the buffer to `ready`, and then into flight. They are checked in this order, so a message
        that moves during the call is not missed.
        """
        return not (self._buffer.parts or self.ready or self.in_flight.count)

    @property
    def is_waiting(self) -> bool:
        """Return whether the source waits for messages, without which those that were read cannot be committed."""
        return self.lacks_more and self.wait is not None and self.offsets.have_reached(self.wait.end)

    @property
    def lacks_more(self) -> bool:
        """Return whether no message has arrived since the last batch was too short."""
        return self.wait is not None and not self.offsets.are_after(self.wait.end)

    @property
    def position(self) -> Mapping[int, int]:
        """Return the start of the next batch."""
        return self._buffer.start

    @property
    def due(self) -> float | None:
        """Return the time at which the buffer has to become a batch (seconds, monotonic).

        None while it is empty, or while the source waits for a message.
        """
        if not self._buffer.parts or self.is_waiting:
            return None
        if self.lacks_more:
            return math.inf
        if self.is_hurried and not self.offsets.unread:
            return self._buffer.begun
        return self._buffer.begun + self._limits.delay * (BACKLOG_DELAY_FACTOR if self._is_behind else 1)

    @property
    def _is_behind(self) -> bool:
        """Return whether the topic already has enough messages to fill the batch."""
        waiting = self.offsets.lag(self.offsets.next)
        return self._buffer.size + waiting * self.last_mean >= self._limits.size

    def lag_of_siblings(self) -> int:
        """Return the lag of the source's other topics, in messages, as of their last batches."""
        others = (self.readers.get(key) for key in self.siblings)
        return sum(reader.in_flight.last_lag for reader in others if reader is not None)

    def _activities(self) -> Mapping[str, TopicActivity]:
        readers = {key.topic: self.readers.get(key) for key in self.siblings}
        return {
            name: NOT_READ if reader is None else reader.offsets.activity(is_idle=reader.is_idle)
            for name, reader in readers.items()
        }

    def add(self, chunk: Chunk) -> None:
        """Add messages to the buffer, and move each full batch to `ready`."""
        whole = self._part(chunk)
        if self.plan.takes_whole_batches:
            self._add_by_count(whole, 1)
            return
        if self._cut_for is not None:
            self._add_by_count(whole, self._cut_for.count)
            return
        sizes = whole.sizes
        room = self._limits.size - self._buffer.size
        total = int(sizes[-1])
        self.last_mean = total / len(sizes)
        start = 0
        while total - (sizes[start - 1] if start else 0) >= room:
            before = int(sizes[start - 1]) if start else 0
            # At least one message, even if it alone is larger than a batch.
            until = max(int(np.searchsorted(sizes, before + room)) + 1, start + 1)
            self._append(whole.between(start, until), int(sizes[until - 1]) - before)
            self.cut()
            room, start = self._limits.size, until
            if start == len(sizes):
                return
        before = int(sizes[start - 1]) if start else 0
        self._append(whole.between(start, len(sizes)), total - before)

    def _add_by_count(self, whole: Part, most: int) -> None:
        start = 0
        while start < len(whole.values):
            until = min(start + most - self._buffer.count, len(whole.values))
            some = whole.between(start, until)
            self._append(some, int(some.sizes[-1]))
            start = until
            if self._buffer.count >= most:
                self.cut()

    def cut(self) -> None:
        """Move the messages in the buffer to `ready`, as a batch."""
        buffer = self._buffer
        if not buffer.parts:
            return
        self.ready.append(
            MessageBatch(
                topic=self.topic,
                topic_id=self.topic_id,
                partitions=len(self.offsets.next),
                parts=tuple(joined_by_partition(buffer.parts)),
                start=buffer.start,
                # Copies: the offsets advance while the batch is in flight.
                end=dict(self.offsets.next),
                beginning=self.beginning,
                begun=buffer.begun,
                size=buffer.size,
                quiet=self.offsets.quiet,
                unread=self.offsets.unread,
                tries=self.wait.tries if self.wait else 0,
                may_grow=buffer.size < self._usual.top,
                search=self._cut_for,
                others=self._activities(),
                columns=self.columns,
            )
        )
        self.wait = None
        if self._cut_for is not None and self._cut_for.is_over(self.offsets.next):
            self._cut_for = None
        # The batch was longer only to get the message that the one before had lacked.
        self._limits = self._usual
        self._buffer = BatchBuffer(start=dict(self.offsets.next))

    def _part(self, chunk: Chunk) -> Part:
        columns = self.columns
        has_times = self.plan.needs_timestamps or bool(columns.timestamp)
        headers = chunk.headers(columns.read_headers) if columns.read_headers else {}
        return Part(
            partition=chunk.partition[1],
            values=MessageBuffer.pack(chunk.values),
            offsets=chunk.offsets,
            timestamps=np.array(chunk.timestamps(), np.int64) if has_times else None,
            keys=chunk.keys() if columns.keys else (),
            headers=headers,
        )

    def _append(self, part: Part, size: int) -> None:
        buffer = self._buffer
        # Messages seen before do not count: the delay starts with the first new one.
        if not buffer.parts or self.lacks_more:
            buffer.begun = time.monotonic()
        buffer.parts.append(part)
        buffer.size += size
        buffer.count += len(part.values)
        self.offsets.read(part.partition, part.offsets[-1])
