"""Records: many messages of assigned partitions at a time, at positions that the caller keeps.

The group's own offsets are never read or written. One Python object a message is what librdkafka's binding
costs; nothing here adds another one for each field. Where there are many partitions, those in which nothing comes are
handed over to a client that only watches them.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from odf_common.adapters.kafka.quiet import Partition, QuietPartitions
from odf_common.adapters.kafka.settings import LOGGER, Config, consuming, unavailable
from odf_common.errors import Unavailable

log = logging.getLogger(__name__)

MIB: Final = 1024 * 1024
FEW: Final = 32  # partitions that one client fetches without noticeable cost
QUIET_SECONDS: Final = 10.0  # after which a partition that was read to its end counts as quiet
LOOK_SECONDS: Final = 1.0  # between two looks for quiet partitions
# librdkafka's local errors are named with an underscore; they are public all the same.
_END: Final = KafkaError._PARTITION_EOF  # noqa: SLF001
_FATAL: Final = KafkaError._FATAL  # noqa: SLF001 - such a message says of itself that it is not fatal
_LOST: Final = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Messages of one partition in order; `timestamps` returns their times in ms since the epoch.

    It holds all objects of the client's: do not keep it.
    """

    partition: Partition
    values: Sequence[bytes | None]
    offsets: Sequence[int]
    timestamps: Callable[[], Sequence[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What came: messages, partitions read to their end (the offset there), and partitions that cannot be read."""

    chunks: tuple[Chunk, ...] = ()
    ends: Mapping[Partition, int]
    faults: Mapping[Partition, str]


class KafkaRecords:
    """A reader of records; used by one thread."""

    def __init__(self, bootstrap: str, *, prefix: str = "") -> None:
        """Prepare; nothing is read before partitions are assigned."""
        self._settings = _settings(bootstrap, prefix)
        self._consumer = Consumer({**self._settings}, logger=LOGGER)
        self._next: dict[Partition, int] = {}  # of all that are assigned
        self._paused: set[Partition] = set()
        self._ended: dict[Partition, float] = {}  # when their end was reached, the earliest first
        self._trying: set[Partition] = (
            set()
        )  # watched, and still fetched until the watch has seen their end, too
        self._quiet: set[Partition] = set()  # watched, and not fetched
        self._watch: QuietPartitions | None = None
        self._look_at = 0.0

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Read these partitions from these offsets on, beside those that are read already."""
        self.unassign(self._next.keys() & positions.keys())
        if positions:
            self._fetch(positions)
            self._next |= positions

    def unassign(self, partitions: Iterable[Partition]) -> None:
        """Read these partitions no longer; nothing of them comes after this."""
        gone = self._next.keys() & set(partitions)
        if gone:
            # librdkafka keeps its paused flag for a partition that is unassigned and assigned again later.
            self.resume(gone)
            self._fetch_no_more(gone - self._quiet)
            self._watch_no_more(gone)
            for partition in gone:
                del self._next[partition]

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Take no more messages of these partitions; what was fetched of them is dropped."""
        wanted = (self._next.keys() & set(partitions)) - self._paused
        if wanted:
            self._wake(wanted)
            # Noted first: resuming a partition whose pausing failed does no harm.
            self._paused |= wanted
            _checked(lambda: self._consumer.pause(_places(wanted)))

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Take messages of paused partitions again, from where they stood."""
        wanted = self._paused & set(partitions)
        if wanted:
            _checked(lambda: self._consumer.resume(_places(wanted)))
            self._paused -= wanted

    def take(self, count: int, timeout: float) -> Taken:
        """Return up to `count` messages, waiting `timeout` seconds at most for that many."""
        self._look_after_quiet()
        try:
            messages = self._consumer.consume(count, timeout)
        except KafkaException as error:
            raise unavailable(error) from error
        ends: dict[Partition, int] = {}
        faults: dict[Partition, str] = {}
        if any(map(Message.error, messages)):
            messages = [message for message in messages if not _noted(message, ends, faults)]
        chunks = self._chunks(messages)
        self._note(chunks, ends)
        return Taken(chunks=chunks, ends=ends, faults=faults)

    def high(self, partition: Partition) -> int | None:
        """Return the offset of the next message to come as of the last fetch, None when none was made.

        The binding lets no second thread in while `take` waits.
        """
        try:
            _, high = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
        except KafkaException:
            return None
        return high if high >= 0 else None

    def close(self) -> None:
        """Let go."""
        if self._watch is not None:
            self._watch.close()
        self._consumer.close()

    def _fetch(self, positions: Mapping[Partition, int]) -> None:
        at = [TopicPartition(topic, number, offset) for (topic, number), offset in positions.items()]
        _checked(lambda: self._consumer.incremental_assign(at))

    def _fetch_no_more(self, partitions: AbstractSet[Partition]) -> None:
        if partitions:
            _checked(lambda: self._consumer.incremental_unassign(_places(partitions)))

    def _note(self, chunks: Iterable[Chunk], ends: Mapping[Partition, int]) -> None:
        """Note up to where partitions have been taken."""
        for chunk in chunks:
            self._next[chunk.partition] = chunk.offsets[-1] + 1
        self._watch_no_more({chunk.partition for chunk in chunks})
        now = time.monotonic()
        for partition, offset in ends.items():
            if partition in self._next:
                # Behind the last message there may be markers of transactions.
                self._next[partition] = max(offset, self._next[partition])
                self._ended.pop(partition, None)
                if partition not in self._trying:
                    self._ended[partition] = now

    def _look_after_quiet(self) -> None:
        """Hand over what has become quiet, and fetch again where something has come."""
        if self._watch is not None:
            ends, changed = self._watch.news()
            self._wake(changed)
            self._hand_over(
                {place for place in self._trying & ends.keys() if ends[place] == self._next[place]}
            )
        now = time.monotonic()
        if now >= self._look_at and len(self._next) > FEW:
            self._look_at = now + LOOK_SECONDS
            self._try(now - QUIET_SECONDS)

    def _try(self, before: float) -> None:
        """Watch the partitions whose end was reached before then, until both clients have seen it."""
        found: dict[Partition, int] = {}
        for partition, moment in self._ended.items():
            if moment > before:
                break
            if partition not in self._paused:
                found[partition] = self._next[partition]
        if found:
            watch = self._watch = self._watch or QuietPartitions(self._settings)
            _checked(lambda: watch.watch(found))
            self._trying |= found.keys()
            for partition in found:
                del self._ended[partition]

    def _hand_over(self, partitions: set[Partition]) -> None:
        """Fetch no more what is watched: whatever comes now comes behind the position that is watched."""
        self._fetch_no_more(partitions)
        self._trying -= partitions
        self._quiet |= partitions

    def _wake(self, partitions: AbstractSet[Partition]) -> None:
        """Fetch partitions again from where they were taken to."""
        quiet = self._quiet & partitions
        if quiet:
            self._fetch({partition: self._next[partition] for partition in quiet})
        self._watch_no_more(partitions)

    def _watch_no_more(self, partitions: AbstractSet[Partition]) -> None:
        watched = (partitions & self._trying) | (partitions & self._quiet)
        for partition in partitions:
            self._ended.pop(partition, None)
        if self._watch is not None and watched:
            watch = self._watch
            _checked(lambda: watch.drop(watched))
            self._trying -= watched
            self._quiet -= watched

    def _chunks(self, messages: list[Message]) -> tuple[Chunk, ...]:
        if not messages:
            return ()
        if len(set(map(Message.partition, messages))) == 1 and len(set(map(Message.topic, messages))) == 1:
            return (_chunk(messages),) if _place(messages[0]) in self._next else ()
        runs: dict[Partition, list[Message]] = {}
        for place, run in groupby(messages, key=_place):
            if place in self._next:
                runs.setdefault(place, []).extend(run)
        return tuple(_chunk(run) for run in runs.values())


def _settings(bootstrap: str, prefix: str) -> Config:
    common = consuming(
        bootstrap, group=f"{prefix}odf.records.{uuid.uuid4().hex}", session_timeout_ms=6000, instance=None
    )
    return {
        **common,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        # A partition that is assigned is first fetched when the fetch under way returns.
        "fetch.wait.max.ms": 100,
        # What is fetched far ahead has left the processor's caches by its turn.
        "fetch.max.bytes": 4 * MIB,
        "max.partition.fetch.bytes": 4 * MIB,
        "receive.message.max.bytes": 100 * MIB,
        "queued.min.messages": 50_000,
        "queued.max.messages.kbytes": 16 * 1024,
    }


def _chunk(messages: list[Message]) -> Chunk:
    start, stop = messages[0].offset() or 0, (messages[-1].offset() or 0) + 1
    has_gaps = stop - start != len(messages)  # compacted topics and transactions leave some
    return Chunk(
        partition=_place(messages[0]),
        values=list(map(Message.value, messages)),
        offsets=[message.offset() or 0 for message in messages] if has_gaps else range(start, stop),
        timestamps=lambda: [message.timestamp()[1] for message in messages],
    )


def _noted(message: Message, ends: dict[Partition, int], faults: dict[Partition, str]) -> bool:
    """Tell whether the message is none but news of its partition, which is then noted."""
    error = message.error()
    if error is None:
        return False
    place = _place(message)
    if error.code() == _END:
        ends[place] = message.offset() or 0
    elif error.code() in _LOST:
        faults[place] = error.str()
    elif error.fatal() or error.code() == _FATAL:
        raise Unavailable(what="Kafka", why=error.str())
    else:
        log.warning("kafka: %s", error.str())
    return True


def _place(message: Message) -> Partition:
    return message.topic() or "", message.partition() or 0


def _places(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, number in partitions]


def _checked(action: Callable[[], None]) -> None:
    try:
        action()
    except KafkaException as error:
        raise unavailable(error) from error
