"""Quiet partitions: watched by a separate client, which fetches rarely and whose messages are discarded.

A fetch names every partition of its client, even those without messages: among thousands of partitions, one busy
topic would cost as much as all of them together on every fetch.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from odf_common.adapters.kafka.settings import LOGGER, Config, unavailable

Partition = tuple[str, int]  # topic and number
COUNT: Final = 1000  # events per poll
SETTINGS: Final[dict[str, str | int | bool]] = {
    # The broker answers at once when there is a message.
    "fetch.wait.max.ms": 30_000,
    "max.partition.fetch.bytes": 1024,
    "queued.min.messages": 1,
}
_END: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - public despite its name


class QuietPartitions:
    """Reports which of its partitions have messages or errors; used by one thread."""

    def __init__(self, config: Config) -> None:
        """Watch nothing yet."""
        self._consumer = Consumer({**config, **SETTINGS}, logger=LOGGER)
        self._watched: set[Partition] = set()

    def watch(self, positions: Mapping[Partition, int]) -> None:
        """Also watch these partitions, for messages at these offsets or later."""
        places = [TopicPartition(topic, number, offset) for (topic, number), offset in positions.items()]
        self._consumer.incremental_assign(places)
        self._watched |= positions.keys()

    def drop(self, partitions: Iterable[Partition]) -> None:
        """Stop watching these partitions."""
        gone = self._watched & set(partitions)
        if gone:
            self._consumer.incremental_unassign([TopicPartition(*place) for place in gone])
            self._watched -= gone

    def news(self) -> tuple[Mapping[Partition, int], set[Partition]]:
        """Return, without waiting, the ends that were reached, and the partitions with messages or errors."""
        try:
            found = self._consumer.consume(COUNT, 0)
        except KafkaException as error:
            raise unavailable(error) from error
        ends: dict[Partition, int] = {}
        changed: set[Partition] = set()
        for message in found:
            place = message.topic() or "", message.partition() or 0
            fault = message.error()
            if fault is not None and fault.code() == _END:
                ends[place] = message.offset() or 0
            else:
                # The client that reads records will see the message or error itself.
                changed.add(place)
        return ends, changed & self._watched

    def close(self) -> None:
        """Close the client."""
        self._consumer.close()
