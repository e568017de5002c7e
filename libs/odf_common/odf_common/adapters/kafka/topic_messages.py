"""Functions that publish messages durably, or read the current messages of a topic, with a client of their own.

Reading uses no consumer group and stops at the current end of the partitions.
"""

import time
import uuid
from collections.abc import Generator, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.client_config import (
    consumer_config,
    new_consumer,
    new_producer,
    producer_config,
    unavailable,
)
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.errors import OdfError, Unavailable

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
    """Publish records durably, in order within each partition; return their number. Raises `Unavailable`."""
    return publish_all(cluster, (NewMessage(topic=topic, value=record, key=key) for record in records))


def publish_all(cluster: KafkaCluster, messages: Iterable[NewMessage]) -> int:
    """Publish messages durably, in order within each partition; return their number. Raises `Unavailable`."""
    producer = new_producer({**producer_config(cluster), "linger.ms": 5})
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


IDLE_TIMEOUT_SECONDS: Final = 10.0  # without a message
POLL_SECONDS: Final = 0.5
END_WAIT_MS: Final = 10  # until a broker without messages reports the end of a partition


class SampledMessage(NamedTuple):
    """A message of a sample; its value is not empty."""

    key: bytes | None
    value: bytes


def messages_until_end(cluster: KafkaCluster, topic: str, starts: Mapping[int, int]) -> Generator[Message]:
    """Yield the messages from these start offsets to the current ends of the partitions; raises `Unavailable`."""
    config = consumer_config(cluster, group=f"{topic}.{uuid.uuid4().hex}")  # nothing is committed to it
    consumer = new_consumer({**config, "enable.partition.eof": True, "fetch.wait.max.ms": END_WAIT_MS})
    unread = set(starts)
    deadline = time.monotonic() + IDLE_TIMEOUT_SECONDS
    try:
        consumer.assign([TopicPartition(topic, number, start) for number, start in starts.items()])
        while unread:
            message = consumer.poll(POLL_SECONDS)
            if message is None:
                if time.monotonic() > deadline:
                    raise Unavailable(what="Kafka", why=f"no message of {topic} arrived")
                continue
            error = message.error()
            if error is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - public despite its name
                unread.discard(message.partition() or 0)
            else:
                raise unavailable(error)
            deadline = time.monotonic() + IDLE_TIMEOUT_SECONDS
    except KafkaException as error:
        raise unavailable(error) from error
    finally:
        consumer.close()


def first_messages(cluster: KafkaCluster, topic: str, most: int) -> list[list[SampledMessage]]:
    """Return up to `most` messages from the start of a topic, grouped by partition; empty values are skipped.

    Nothing is committed. Raises `NotFound`, `Unavailable`.
    """
    described = KafkaTopics(cluster).describe([topic])[topic]
    if isinstance(described, OdfError):
        raise described
    starts = {number: low for number, low in described.low.items() if low < described.high[number]}
    sampled: dict[int, list[SampledMessage]] = {number: [] for number in starts}
    count = 0
    with closing(messages_until_end(cluster, topic, starts)) as messages:
        for message in messages:
            value = message.value()
            if value is not None and value.strip():
                sampled[message.partition() or 0].append(SampledMessage(key=message.key(), value=value))
                count += 1
            if count == most:
                break
    return [some for some in sampled.values() if some]
