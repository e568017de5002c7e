"""One push source being read: what has come of it, cut into batches by bytes and by time."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from odf_common.adapters.kafka.records import Chunk, Partition
from odf_common.identity.did import DatasetId
from odf_ingest.batch import MessageBatch, Part
from odf_ingest.prepare import Plan

LIMIT = 2  # batches at work: one is committed while the next is read


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a batch is full: bytes of raw messages, or seconds after its first message."""

    size: int
    delay: float


@dataclass(slots=True, kw_only=True)
class _Buffer:
    """Messages that wait for more."""

    start: dict[int, int]
    chunks: list[Chunk] = field(default_factory=list)
    size: int = 0
    begun: float = 0.0


class PushSource:
    """A source of a dataset that is owned here. Its buffers belong to the reader's thread.

    `next` is where each partition goes on, `ends` where it was found to end, `high` where it ended when last
    something came; `begun` and `settled` count batches.
    `is_stale` says that what is at work is to be dropped, `is_hurried` that a batch is cut as soon as nothing more
    waits; `last_mean` is the mean size in bytes of the messages that came last.
    """

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
        limits: Limits,
    ) -> None:
        """Begin to read at `positions`."""
        self.dataset = dataset
        self.alias = alias
        self.plan = plan
        self.name = plan.source.source_name
        self.topic = topic
        self.topic_id = topic_id
        self.next = dict(positions)
        self.ends: dict[int, int] = {}
        self.high: dict[int, int] = {}
        self.ready: deque[MessageBatch] = deque()
        # Each is written by one thread only.
        self.begun = 0
        self.settled = 0
        self.is_paused = False
        self.is_stale = False
        self.is_hurried = False
        self.last_mean = 0.0
        self.beginning = dict(beginning)
        self._limits = limits
        self._buffer = _Buffer(start=dict(positions))

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Return the partitions it reads."""
        return tuple((self.topic, number) for number in self.next)

    @property
    def at_work(self) -> int:
        """Return how many batches are being read and committed."""
        return self.begun - self.settled

    @property
    def is_idle(self) -> bool:
        """Tell whether all that came of it is committed."""
        return not (self.at_work or self.ready or self._buffer.chunks)

    @property
    def due(self) -> float | None:
        """Return when the buffer has to be cut (seconds, monotonic), None while it is empty."""
        if not self._buffer.chunks:
            return None
        if self.is_hurried and all(self.ends.get(number) == at for number, at in self.next.items()):
            return self._buffer.begun
        return self._buffer.begun + self._limits.delay

    def lag(self, committed: Mapping[int, int]) -> int:
        """Return how many messages wait behind what is committed, as far as is known."""
        return sum(max(self.high.get(number, 0) - at, 0) for number, at in committed.items())

    def add(self, chunk: Chunk) -> None:
        """Take in messages; full batches become ready."""
        if self.plan.takes_whole_batches:
            for number in range(len(chunk.values)):
                self._append(_slice(chunk, number, number + 1), 0)
                self.cut()
            return
        sizes = _sizes(chunk)
        room = self._limits.size - self._buffer.size
        total = int(sizes[-1])
        self.last_mean = total / len(sizes)
        at = 0
        while total - (sizes[at - 1] if at else 0) >= room:
            taken = int(sizes[at - 1]) if at else 0
            until = max(int(np.searchsorted(sizes, taken + room)) + 1, at + 1)
            self._append(_slice(chunk, at, until), int(sizes[until - 1]) - taken)
            self.cut()
            room, at = self._limits.size, until
            if at == len(chunk.values):
                return
        taken = int(sizes[at - 1]) if at else 0
        self._append(_slice(chunk, at, len(chunk.values)), total - taken)

    def cut(self) -> None:
        """Make a batch of what the buffer has."""
        buffer = self._buffer
        if not buffer.chunks:
            return
        self.ready.append(
            MessageBatch(
                topic=self.topic,
                topic_id=self.topic_id,
                partitions=len(self.next),
                parts=tuple(_parts(buffer.chunks)),
                start=buffer.start,
                end=dict(self.next),
                beginning=self.beginning,
                begun=buffer.begun,
                size=buffer.size,
            )
        )
        self._buffer = _Buffer(start=dict(self.next))

    def _append(self, chunk: Chunk, size: int) -> None:
        buffer = self._buffer
        if not buffer.chunks:
            buffer.begun = time.monotonic()
        buffer.chunks.append(chunk)
        buffer.size += size
        self.next[chunk.partition[1]] = chunk.offsets[-1] + 1


def _sizes(chunk: Chunk) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the bytes of all messages up to each one."""
    try:
        sizes = list(map(len, chunk.values))  # type: ignore[arg-type]  # tombstones are rare
    except TypeError:
        sizes = [len(value or b"") for value in chunk.values]
    return np.cumsum(sizes, dtype=np.int64)


def _slice(chunk: Chunk, start: int, stop: int) -> Chunk:
    if start == 0 and stop == len(chunk.values):
        return chunk
    return Chunk(
        partition=chunk.partition,
        values=chunk.values[start:stop],
        offsets=chunk.offsets[start:stop],
        timestamps=lambda: chunk.timestamps()[start:stop],
    )


def _parts(chunks: list[Chunk]) -> list[Part]:
    """Join each partition's chunks, partitions ascending."""
    grouped: dict[int, list[Chunk]] = {}
    for chunk in chunks:
        grouped.setdefault(chunk.partition[1], []).append(chunk)
    return [_part(number, grouped[number]) for number in sorted(grouped)]


def _part(number: int, chunks: list[Chunk]) -> Part:
    first = chunks[0]
    if len(chunks) == 1:
        return Part(partition=number, values=first.values, offsets=first.offsets, timestamps=first.timestamps)
    count = sum(len(chunk.values) for chunk in chunks)
    start, stop = first.offsets[0], chunks[-1].offsets[-1] + 1
    has_gaps = stop - start != count
    return Part(
        partition=number,
        values=[value for chunk in chunks for value in chunk.values],
        offsets=[at for chunk in chunks for at in chunk.offsets] if has_gaps else range(start, stop),
        timestamps=lambda: [moment for chunk in chunks for moment in chunk.timestamps()],
    )
