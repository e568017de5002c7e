"""Reads records in batches from assigned partitions; the caller keeps the positions.

Offsets of the consumer group are neither read nor committed. The Python binding of librdkafka creates one object per
message; this module creates no further ones per field. If many partitions are assigned, a second client watches the
quiet ones (see `quiet_partitions`).
"""

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from odf_common.adapters.kafka.client_config import Config, consumer_config, new_consumer, unavailable
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.adapters.kafka.quiet_partitions import DEFAULT_LIMITS, Partition, QuietLimits, QuietPartitions
from odf_common.errors import Unavailable

log = structlog.stdlib.get_logger(__name__)

MIB: Final = 1024 * 1024
# librdkafka's local errors have an underscore in their name, but are public.
_END: Final = KafkaError._PARTITION_EOF  # noqa: SLF001
_FATAL: Final = KafkaError._FATAL  # noqa: SLF001 - `fatal()` is False for such a message
_NOT_TEXT: Final = b"\xff"  # in place of headers that cannot be read, so that their message is rejected
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
    """Consecutive messages of one partition; times, keys and headers are only read when requested.

    `timestamps` returns ms since the epoch. `headers` returns for each requested name the last value in each
    message, None where a message has no such header. A chunk keeps all message objects of the client in memory, so
    do not store it.
    """

    partition: Partition
    values: Sequence[bytes | None]
    offsets: Sequence[int]
    timestamps: Callable[[], Sequence[int]]
    keys: Callable[[], Sequence[bytes | None]] = tuple
    headers: Callable[[Sequence[str]], Mapping[str, Sequence[bytes | None]]] = lambda _: {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """The result of a poll: messages, offsets of the ends that were reached, and errors, by partition."""

    chunks: tuple[Chunk, ...] = ()
    ends: Mapping[Partition, int]
    faults: Mapping[Partition, str]


class KafkaRecords:
    """A reader of records from assigned partitions; used by one thread."""

    def __init__(
        self, cluster: KafkaCluster, *, prefix: str = "", limits: QuietLimits = DEFAULT_LIMITS
    ) -> None:
        """Create a reader without partitions; `assign` adds them."""
        self._limits = limits
        self._settings = _settings(cluster, prefix)
        self._consumer = new_consumer(self._settings)
        self._former = 0  # partitions that this client has fetched and no longer does
        self._next: dict[Partition, int] = {}  # of all assigned partitions
        self._paused: set[Partition] = set()
        self._ended: dict[Partition, float] = {}  # when the end was reached, earliest first
        # Watched, and still fetched until the watch has seen the same end.
        self._trying: set[Partition] = set()
        self._quiet: set[Partition] = set()  # watched, and not fetched
        self._watch: QuietPartitions | None = None
        self._search_at = 0.0

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Start reading more partitions, at these offsets; partitions that are already assigned continue from there."""
        self.unassign(self._next.keys() & positions.keys())
        if positions:
            log.debug("partitions assigned", partitions=len(positions), all=len(self._next) + len(positions))
            self._fetch(positions)
            self._next |= positions
            self._request_leaders(positions)

    def unassign(self, partitions: Iterable[Partition]) -> None:
        """Stop reading these partitions; `take` returns none of their messages afterwards."""
        gone = self._next.keys() & set(partitions)
        if gone:
            log.debug("partitions unassigned", partitions=len(gone), all=len(self._next) - len(gone))
            # librdkafka would keep the paused flag when the partition is assigned again later.
            self.resume(gone)
            self._fetch_no_more(gone - self._quiet)
            self._watch_no_more(gone)
            for partition in gone:
                del self._next[partition]

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Pause these partitions: `take` returns none of their messages, and messages fetched ahead are dropped."""
        fetched = (self._next.keys() & set(partitions)) - self._paused
        if fetched:
            self._wake(fetched)
            # Recorded first: resuming a partition whose pausing failed is harmless.
            self._paused |= fetched
            _check(lambda: self._consumer.pause(_places(fetched)))

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Resume paused partitions at the positions at which they were paused."""
        resumed = self._paused & set(partitions)
        if resumed:
            _check(lambda: self._consumer.resume(_places(resumed)))
            self._paused -= resumed

    def take(self, count: int, timeout: float) -> PollResult:
        """Return up to `count` messages, after waiting up to `timeout` seconds until there are that many."""
        self._look_after_quiet()
        try:
            messages = self._consumer.consume(count, timeout)
        except KafkaException as error:
            raise unavailable(error) from error
        ends: dict[Partition, int] = {}
        faults: dict[Partition, str] = {}
        if any(map(Message.error, messages)):
            messages = [message for message in messages if not _record_event(message, ends, faults)]
        chunks = self._chunks(messages)
        self._note(chunks, ends)
        return PollResult(chunks=chunks, ends=ends, faults=faults)

    def high(self, partition: Partition) -> int | None:
        """Return the end offset of a partition as of the last fetch; None before the first fetch.

        Call it from the thread that calls `take`: the binding blocks other threads while `take` waits.
        """
        try:
            _, high = self._consumer.get_watermark_offsets(TopicPartition(*partition), cached=True)
        except KafkaException:
            return None
        return high if high >= 0 else None

    def close(self) -> None:
        """Close the clients."""
        if self._watch is not None:
            self._watch.close()
        self._consumer.close()

    def _fetch(self, positions: Mapping[Partition, int]) -> None:
        assignment = [TopicPartition(topic, number, offset) for (topic, number), offset in positions.items()]
        _check(lambda: self._consumer.incremental_assign(assignment))

    def _request_leaders(self, partitions: Iterable[Partition]) -> None:
        """Request the leaders of all these partitions in one request, without waiting for the response.

        By itself librdkafka requests the leaders of topics that are new to the client up to a second later.
        """
        # The only call that requests them for a list of topics. It also looks up offsets, which are not needed.
        with suppress(KafkaException):  # always: it times out before an answer can arrive
            self._consumer.offsets_for_times(
                [TopicPartition(*partition, 0) for partition in partitions], timeout=0
            )

    def _fetch_no_more(self, partitions: AbstractSet[Partition]) -> None:
        if partitions:
            _check(lambda: self._consumer.incremental_unassign(_places(partitions)))
            self._former += len(partitions)

    def _note(self, chunks: Iterable[Chunk], ends: Mapping[Partition, int]) -> None:
        """Record the new positions after a poll."""
        for chunk in chunks:
            self._next[chunk.partition] = chunk.offsets[-1] + 1
        self._watch_no_more({chunk.partition for chunk in chunks})
        now = time.monotonic()
        for partition, offset in ends.items():
            if partition in self._next:
                # Transaction markers may follow the last message.
                self._next[partition] = max(offset, self._next[partition])
                self._ended.pop(partition, None)
                if partition not in self._trying:
                    self._ended[partition] = now

    def _look_after_quiet(self) -> None:
        """Leave quiet partitions to the watching client, and fetch those again that have messages or errors."""
        if self._watch is not None:
            ends, changed = self._watch.news()
            self._wake(changed)
            self._hand_over(
                {
                    partition
                    for partition in self._trying & ends.keys()
                    if ends[partition] == self._next[partition]
                }
            )
        now = time.monotonic()
        if (
            self._former > self._limits.max_former
            and len(self._next) - len(self._quiet) <= self._limits.max_unwatched
        ):
            self.renew()
        if now >= self._search_at and len(self._next) > self._limits.max_unwatched:
            self._search_at = now + self._limits.search_seconds
            self._start_watching(now - self._limits.quiet_seconds)

    def renew(self) -> None:
        """Replace the client by a new one at the same positions; messages that were fetched ahead are fetched again."""
        log.debug("consumer replaced", partitions=len(self._next), former=self._former)
        fetched = {
            partition: offset for partition, offset in self._next.items() if partition not in self._quiet
        }
        old, new = self._consumer, new_consumer(self._settings)
        _check(
            lambda: new.incremental_assign(
                [TopicPartition(*partition, offset) for partition, offset in fetched.items()]
            )
        )
        if self._paused:
            _check(lambda: new.pause(_places(self._paused)))
        self._consumer, self._former = new, 0
        old.close()

    def _start_watching(self, before: float) -> None:
        """Start watching the partitions whose end was reached before time `before`.

        Until the watching client has seen the same end, both clients fetch them.
        """
        offsets: dict[Partition, int] = {}
        for partition, ended in self._ended.items():
            if ended > before:
                break
            if partition not in self._paused:
                offsets[partition] = self._next[partition]
        if offsets:
            watch = self._watch = self._watch or QuietPartitions(self._settings, self._limits)
            _check(lambda: watch.watch(offsets))
            self._trying |= offsets.keys()
            for partition in offsets:
                del self._ended[partition]

    def _hand_over(self, partitions: set[Partition]) -> None:
        """Stop fetching partitions that are watched from the same position, so that no message is missed."""
        if partitions:
            log.debug("partitions are quiet", partitions=len(partitions))
        self._fetch_no_more(partitions)
        self._trying -= partitions
        self._quiet |= partitions

    def _wake(self, partitions: AbstractSet[Partition]) -> None:
        """Fetch partitions again from their current positions, and stop watching them."""
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
            _check(lambda: watch.drop(watched))
            self._trying -= watched
            self._quiet -= watched

    def _chunks(self, messages: list[Message]) -> tuple[Chunk, ...]:
        if not messages:
            return ()
        if len(set(map(Message.partition, messages))) == 1 and len(set(map(Message.topic, messages))) == 1:
            return (_chunk(messages),) if _partition_of(messages[0]) in self._next else ()
        runs: dict[Partition, list[Message]] = {}
        for partition, run in groupby(messages, key=_partition_of):
            if partition in self._next:
                runs.setdefault(partition, []).extend(run)
        return tuple(_chunk(run) for run in runs.values())


def _settings(cluster: KafkaCluster, prefix: str) -> Config:
    common = consumer_config(cluster, group=f"{prefix}odf.records.{uuid.uuid4().hex}")
    return {
        **common,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        # A newly assigned partition is first fetched when the fetch in flight returns.
        "fetch.wait.max.ms": 100,
        # Messages fetched far ahead would have left the CPU caches by the time they are used.
        "fetch.max.bytes": 4 * MIB,
        "max.partition.fetch.bytes": 4 * MIB,
        "receive.message.max.bytes": 100 * MIB,
        "queued.min.messages": 50_000,
        "queued.max.messages.kbytes": 16 * 1024,
    }


def _chunk(messages: list[Message]) -> Chunk:
    start, stop = messages[0].offset() or 0, (messages[-1].offset() or 0) + 1
    has_gaps = stop - start != len(messages)  # from compaction or transactions
    return Chunk(
        partition=_partition_of(messages[0]),
        values=list(map(Message.value, messages)),
        offsets=[message.offset() or 0 for message in messages] if has_gaps else range(start, stop),
        timestamps=lambda: [message.timestamp()[1] for message in messages],
        keys=lambda: list(map(Message.key, messages)),
        headers=lambda names: _headers(messages, names),
    )


def _headers(messages: Sequence[Message], names: Sequence[str]) -> Mapping[str, Sequence[bytes | None]]:
    by_name: dict[str, list[bytes | None]] = {name: [] for name in names}
    for message in messages:
        headers = _headers_of(message)
        for name, values in by_name.items():
            values.append(_NOT_TEXT if headers is None else headers.get(name))
    return by_name


def _headers_of(message: Message) -> Mapping[str, bytes | None] | None:
    """Return the last value of each header; None if a header name is not UTF-8, which makes the binding fail."""
    try:
        headers = Message.headers(message) or ()
    except UnicodeDecodeError:
        return None
    pairs = headers.items() if isinstance(headers, dict) else headers
    return {name: value.encode() if isinstance(value, str) else value for name, value in pairs}


def _record_event(message: Message, ends: dict[Partition, int], faults: dict[Partition, str]) -> bool:
    """Return whether the message is an end-of-partition or error event; if so, record the event.

    Raises `Unavailable` for a fatal error.
    """
    error = message.error()
    if error is None:
        return False
    partition = _partition_of(message)
    if error.code() == _END:
        ends[partition] = message.offset() or 0
    elif error.code() in _LOST:
        faults[partition] = error.str()
    elif error.fatal() or error.code() == _FATAL:
        raise Unavailable(what="Kafka", why=error.str())
    else:
        log.warning("partition not fetched", topic=partition[0], partition=partition[1], why=error.str())
    return True


def _partition_of(message: Message) -> Partition:
    return message.topic() or "", message.partition() or 0


def _places(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for topic, number in partitions]


def _check(action: Callable[[], None]) -> None:
    try:
        action()
    except KafkaException as error:
        raise unavailable(error) from error
