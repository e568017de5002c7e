"""Publishes messages durably, for programs without a Kafka client of their own."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message

from odf_common.adapters.kafka.client_config import new_producer, producing, unavailable
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.errors import Unavailable

QUEUE_FULL_PAUSE_SECONDS: Final = 0.1  # before the next attempt
FLUSH_TIMEOUT_SECONDS: Final = 30.0  # for the last messages to be acknowledged
ANY_PARTITION: Final = -1  # that of the key, or a random one


@dataclass(frozen=True, slots=True, kw_only=True)
class NewMessage:
    """A message to publish."""

    topic: str
    value: bytes
    key: bytes | None = None
    partition: int = ANY_PARTITION


def publish(cluster: KafkaCluster, topic: str, records: Iterable[bytes], *, key: bytes | None = None) -> int:
    """Publish records, in order within a partition; return how many once all are durable. Raises `Unavailable`."""
    return publish_all(cluster, (NewMessage(topic=topic, value=record, key=key) for record in records))


def publish_all(cluster: KafkaCluster, messages: Iterable[NewMessage]) -> int:
    """Publish messages, in order within a partition; return how many once all are durable. Raises `Unavailable`."""
    producer = new_producer({**producing(cluster), "linger.ms": 5})
    failed: list[KafkaError] = []
    count = 0

    def settle(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    for count, message in enumerate(messages, start=1):  # noqa: B007 - counted
        while True:
            try:
                producer.produce(
                    message.topic, message.value, message.key, message.partition, on_delivery=settle
                )
                break
            except BufferError:
                producer.poll(QUEUE_FULL_PAUSE_SECONDS)
            except KafkaException as error:
                raise unavailable(error) from error
    if producer.flush(FLUSH_TIMEOUT_SECONDS) > 0:
        raise Unavailable(what="Kafka", why="messages were not acknowledged in time")
    if failed:
        raise unavailable(failed[0])
    return count
