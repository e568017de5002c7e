"""One push source being read: its messages, cut into batches (`batch_buffer.py`), and why it waits or fails for now."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np

from odf_common.adapters.kafka.quiet import Partition
from odf_common.adapters.kafka.records import Chunk
from odf_common.chain.state import ChainState
from odf_common.errors import OdfError
from odf_common.identity.did import DatasetId
from odf_common.ports.clock import Backoff
from odf_ingest.errors import RegistryUnavailable, pauses_source
from odf_ingest.message_columns import NO_COLUMNS, MessageColumns
from odf_ingest.prepare.batch import NOT_READ, MessageBatch, Part, Search, TopicActivity
from odf_ingest.prepare.plan import Plan, sent_as
from odf_ingest.prepare.preparer import Prepared
from odf_ingest.push.batch_buffer import BatchBuffer, BatchLimits, joined_by_partition
from odf_ingest.push.source_topics import Key, TopicOffsets
from odf_ingest.read.message_buffer import MessageBuffer

MAX_BATCHES_IN_FLIGHT: Final = 2  # batches in flight: one is committed while the next is read
BACKLOG_DELAY_FACTOR: Final = (
    5  # times the delay that a batch may wait for messages that are already in the topic
)
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


class PushSource:
    """A source of a dataset assigned to this instance. Its buffers belong to the reader's thread."""

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
        search: Search | None = None,
        is_own: bool = True,
        start: TopicOffsets | None = None,
        columns: MessageColumns = NO_COLUMNS,
    ) -> None:
        """Start at `positions`."""
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
        self.next = dict(positions)  # position of each partition
        self.ends: dict[int, int] = {}  # observed end of each partition
        self.high: dict[int, int] = {}  # its end at the last poll with messages
        self.ready: deque[MessageBatch] = deque()
        # Each is written by one thread only.
        self.begun = 0  # batches
        self.settled = 0  # batches
        self.is_stale = False  # batches in flight are to be dropped
        self.is_hurried = False  # cut a batch as soon as no more messages are waiting
        self.last_lag = 0  # messages after its last committed batch
        self.last_mean = 0.0  # mean size in bytes of the last messages
        self.beginning = dict(beginning)
        self.wait = wait  # if set, the first batch is not cut before a new message has arrived
        self.search = search  # if set, batches are cut by count
        # Written by the batch's thread; times in seconds since the epoch.
        self.trouble: Trouble | None = None  # why the commit is stalled
        self.committing_since: float | None = None
        self.querying_since: float | None = None  # when the source's query was started or queued
        self._opened_at = dict(positions)
        self._placed: Future[None] = Future()  # done when the last batch is in its dataset's queue
        self._placed.set_result(None)
        self._usual = limits
        self._limits = limits.after(wait.tries if wait else 0)
        self._buffer = BatchBuffer(start=dict(positions))
        self._unread: tuple[Mapping[int, int], float] | None = None
        self._heard = dict.fromkeys(positions, time.monotonic())  # when each partition gave its last message

    def is_as_defined(self, state: ChainState) -> bool:
        """Return whether batches are read as the chain defines the source; False if it is gone."""
        defined = state.push_sources.get(self.name)
        return defined is not None and self.plan.source == sent_as(defined, self.columns)

    def in_order(self, reading: "Future[Prepared]", place: Callable[[], None]) -> None:
        """Call `place` once a batch is read and those before it are placed; no thread waits for either."""
        before, placed = self._placed, Future[None]()
        self._placed = placed

        def place_next(_: object) -> None:
            try:
                place()
            finally:
                placed.set_result(None)

        reading.add_done_callback(lambda _: before.add_done_callback(place_next))

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Return the partitions it reads."""
        return tuple((self.topic, number) for number in self.next)

    @property
    def at_work(self) -> int:
        """Return the number of batches in flight."""
        return self.begun - self.settled

    @property
    def is_idle(self) -> bool:
        """Return whether all its messages are committed.

        Other threads ask too. A message moves from the buffer to `ready` and then in flight, and is never missing from
        all three: looked at in this order, none is overlooked.
        """
        return not (self._buffer.parts or self.ready or self.at_work)

    def silence(self, high: Mapping[int, int]) -> float:
        """Return the seconds since calls have seen it idle at this position, although the topic's ends are higher."""
        is_behind = any(
            at > max(self.next.get(number, at), self.ends.get(number, 0)) for number, at in high.items()
        )
        if not (self.is_idle and is_behind):
            self._unread = None
        elif self._unread is None or self._unread[0] != self.next:
            self._unread = dict(self.next), time.monotonic()
        return 0.0 if self._unread is None else time.monotonic() - self._unread[1]

    @property
    def is_waiting(self) -> bool:
        """Return whether its messages cannot be committed before more arrive."""
        return self.wait is not None and not self._has_new(self.wait) and self._has_seen(self.wait)

    @property
    def lacks_more(self) -> bool:
        """Return whether no message has arrived since a batch was too short."""
        return self.wait is not None and not self._has_new(self.wait)

    @property
    def position(self) -> Mapping[int, int]:
        """Return the start of the next batch."""
        return self._buffer.start

    @property
    def due(self) -> float | None:
        """Return when the buffer has to be cut (seconds, monotonic); None while it is empty or waiting."""
        if not self._buffer.parts or self.is_waiting:
            return None
        if self.wait is not None and not self._has_new(self.wait):
            return math.inf
        if self.is_hurried and all(self.ends.get(number) == at for number, at in self.next.items()):
            return self._buffer.begun
        return self._buffer.begun + self._limits.delay * (BACKLOG_DELAY_FACTOR if self._is_behind else 1)

    @property
    def _is_behind(self) -> bool:
        """Return whether the topic already has enough messages to fill the batch."""
        waiting = sum(max(self.high.get(number, 0) - at, 0) for number, at in self.next.items())
        return self._buffer.size + waiting * self.last_mean >= self._limits.size

    def _has_seen(self, wait: Wait) -> bool:
        return all(at >= wait.seen.get(number, 0) for number, at in self.next.items())

    def _has_new(self, wait: Wait) -> bool:
        return any(at > wait.seen.get(number, 0) for number, at in self.next.items())

    @property
    def activity(self) -> TopicActivity:
        """Return what a batch from another topic of the same source needs to know of this one."""
        unread = {number for number, at in self.next.items() if self.ends.get(number) != at}
        if not self.is_idle:
            unread |= {number for number, at in self.next.items() if at != self._opened_at[number]}
        now = time.monotonic()
        quiet = {number: now - at for number, at in self._heard.items()}
        return TopicActivity(unread=frozenset(unread), quiet=quiet)

    def lag_of_siblings(self) -> int:
        """Return the number of messages that wait in the same source's other topics, as of their last batches."""
        others = (self.readers.get(key) for key in self.siblings)
        return sum(one.last_lag for one in others if one is not None)

    def _activities(self) -> Mapping[str, TopicActivity]:
        readers = {key.topic: self.readers.get(key) for key in self.siblings}
        return {name: NOT_READ if one is None else one.activity for name, one in readers.items()}

    def lag(self, committed: Mapping[int, int]) -> int:
        """Return the number of known messages after the committed positions."""
        return sum(max(self.high.get(number, 0) - at, 0) for number, at in committed.items())

    def add(self, chunk: Chunk) -> None:
        """Buffer messages; full batches become ready."""
        whole = self._part(chunk)
        if self.plan.takes_whole_batches:
            self._add_by_count(whole, 1)
            return
        if self.search is not None:
            self._add_by_count(whole, self.search.count)
            return
        sizes = whole.sizes
        room = self._limits.size - self._buffer.size
        total = int(sizes[-1])
        self.last_mean = total / len(sizes)
        at = 0
        while total - (sizes[at - 1] if at else 0) >= room:
            taken = int(sizes[at - 1]) if at else 0
            until = max(int(np.searchsorted(sizes, taken + room)) + 1, at + 1)
            self._append(whole.between(at, until), int(sizes[until - 1]) - taken)
            self.cut()
            room, at = self._limits.size, until
            if at == len(sizes):
                return
        taken = int(sizes[at - 1]) if at else 0
        self._append(whole.between(at, len(sizes)), total - taken)

    def _add_by_count(self, whole: Part, most: int) -> None:
        at = 0
        while at < len(whole.values):
            until = min(at + most - self._buffer.count, len(whole.values))
            some = whole.between(at, until)
            self._append(some, int(some.sizes[-1]))
            at = until
            if self._buffer.count >= most:
                self.cut()

    def cut(self) -> None:
        """Turn the buffer into a batch."""
        buffer = self._buffer
        if not buffer.parts:
            return
        self.ready.append(
            MessageBatch(
                topic=self.topic,
                topic_id=self.topic_id,
                partitions=len(self.next),
                parts=tuple(joined_by_partition(buffer.parts)),
                start=buffer.start,
                end=dict(self.next),
                beginning=self.beginning,
                begun=buffer.begun,
                size=buffer.size,
                quiet={number: time.monotonic() - at for number, at in self._heard.items()},
                unread=frozenset(number for number, at in self.next.items() if self.ends.get(number) != at),
                tries=self.wait.tries if self.wait else 0,
                may_grow=buffer.size < self._usual.top,
                search=self.search,
                others=self._activities(),
                columns=self.columns,
            )
        )
        self.wait = None
        if self.search is not None and self.search.is_over(self.next):
            self.search = None
        self._limits = self._usual
        self._buffer = BatchBuffer(start=dict(self.next))

    def _part(self, chunk: Chunk) -> Part:
        columns = self.columns
        has_times = self.plan.needs_timestamps or bool(columns.timestamp)
        headers = chunk.headers(columns.read_headers) if columns.read_headers else {}
        return Part(
            partition=chunk.partition[1],
            values=MessageBuffer.of(chunk.values),
            offsets=chunk.offsets,
            timestamps=np.array(chunk.timestamps(), np.int64) if has_times else None,
            keys=chunk.keys() if columns.keys else (),
            headers=headers,
        )

    def _append(self, part: Part, size: int) -> None:
        buffer = self._buffer
        # Messages seen before do not count: the delay starts with the first new one.
        if not buffer.parts or (self.wait is not None and not self._has_new(self.wait)):
            buffer.begun = time.monotonic()
        buffer.parts.append(part)
        buffer.size += size
        buffer.count += len(part.values)
        self._heard[part.partition] = time.monotonic()
        self.next[part.partition] = part.offsets[-1] + 1
