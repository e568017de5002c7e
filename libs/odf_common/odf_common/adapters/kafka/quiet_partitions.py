"""Quiet partitions: watched by a separate client, which fetches rarely and whose messages are discarded.

A fetch names every partition of its client, even those without messages: among thousands of partitions, one busy
topic would cost as much as all of them together on every fetch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from odf_common.adapters.kafka.client_config import Config, new_consumer, unavailable

Partition = tuple[str, int]  # topic and number
EVENTS_PER_POLL: Final = 1000  # events per poll
_END: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - public despite its name


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietLimits:
    """When partitions are watched instead of fetched, and by how many clients."""

    max_unwatched: int = 32
    """Partitions that one client fetches without noticeable cost."""
    quiet_seconds: float = 10.0
    """Time without a message at a partition's end, until it counts as quiet."""
    search_seconds: float = 1.0
    """Between two searches for quiet partitions."""
    max_former: int = 1000
    """Partitions that a client no longer fetches, until it is replaced.

    Every second librdkafka goes through all topics that a client has ever fetched, and keeps their memory.
    """
    max_per_client: int = 1000
    """Partitions of a client that watches: librdkafka looks up each topic of an answer in a list of all of them."""
    fetch_wait_ms: int = 4000
    """A message is answered at once. With `ANSWER_MS`, the time in which a broker may be gone unnoticed."""


DEFAULT_LIMITS: Final = QuietLimits()


class QuietPartitions:
    """Reports which of its partitions have messages or errors; used by one thread."""

    def __init__(self, config: Config, limits: QuietLimits = DEFAULT_LIMITS) -> None:
        self._config: Config = {
            **config,
            "fetch.wait.max.ms": limits.fetch_wait_ms,
            "max.partition.fetch.bytes": 1024,
            "queued.min.messages": 1,
        }
        self._max_per_client = limits.max_per_client
        self._clients: list[_Client] = []

    def watch(self, positions: Mapping[Partition, int]) -> None:
        """Also watch these partitions, for messages at these offsets or later."""
        # Those that are watched already were added by a call that failed half-way; librdkafka refuses them again.
        watched = {partition for client in self._clients for partition in client.watched}
        left = {partition: offset for partition, offset in positions.items() if partition not in watched}
        while left:
            client = next(
                (client for client in self._clients if len(client.watched) < self._max_per_client), None
            )
            if client is None:
                client = _Client(consumer=new_consumer(self._config))
                self._clients.append(client)
            some = list(left)[: self._max_per_client - len(client.watched)]
            places = [TopicPartition(topic, number, left[topic, number]) for topic, number in some]
            client.consumer.incremental_assign(places)
            client.watched.update(some)
            for partition in some:
                del left[partition]

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Stop watching these partitions."""
        removed = set(partitions)
        for client in self._clients:
            gone = client.watched & removed
            if gone:
                client.consumer.incremental_unassign([TopicPartition(*partition) for partition in gone])
                client.watched.difference_update(gone)

    def news(self) -> tuple[Mapping[Partition, int], set[Partition]]:
        """Return, without waiting, the ends that were reached, and the partitions with messages or errors."""
        ends: dict[Partition, int] = {}
        changed: set[Partition] = set()
        for client in self._clients:
            try:
                events = client.consumer.consume(EVENTS_PER_POLL, 0)
            except KafkaException as error:
                raise unavailable(error) from error
            for message in events:
                partition = message.topic() or "", message.partition() or 0
                fault = message.error()
                if partition not in client.watched:
                    continue
                if fault is not None and fault.code() == _END:
                    ends[partition] = message.offset() or 0
                else:
                    # The client that reads records will see the message or error itself.
                    changed.add(partition)
        return ends, changed

    def close(self) -> None:
        """Close the clients."""
        for client in self._clients:
            client.consumer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Client:
    consumer: Consumer
    watched: set[Partition] = field(default_factory=set)
