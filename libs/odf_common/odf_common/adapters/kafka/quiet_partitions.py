"""Quiet partitions are watched by a separate client, which fetches rarely and whose messages are discarded.

A fetch request lists every partition of its client, even those without new messages. With thousands of partitions, each
fetch for one busy topic would therefore be as expensive as a fetch of all of them.
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
    """Limits that decide when partitions are watched instead of fetched, and by how many clients."""

    max_unwatched: int = 32
    """Number of partitions that one client fetches without noticeable cost."""
    quiet_seconds: float = 10.0
    """Time without a new message after which a partition counts as quiet."""
    search_seconds: float = 1.0
    """Time between two searches for quiet partitions."""
    max_former: int = 1000
    """Number of partitions that a client has stopped fetching, after which the client is replaced.

    Every second librdkafka iterates over all topics that a client has ever fetched, and it never frees their memory.
    """
    max_per_client: int = 1000
    """Maximum partitions per watching client.

    For each topic in a response, librdkafka searches the list of all partitions of the client.
    """
    fetch_wait_ms: int = 4000
    """Time for which a broker holds a fetch without messages; new messages are still returned at once.

    A broker that has gone is noticed after this time plus `ANSWER_MS`.
    """


DEFAULT_LIMITS: Final = QuietLimits()


class QuietPartitions:
    """Watches partitions and reports which of them have messages or errors; used by one thread."""

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
        """Start watching more partitions, for messages at these offsets or later."""
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
        """Return the end offsets that were reached, and the partitions with messages or errors; does not block."""
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
