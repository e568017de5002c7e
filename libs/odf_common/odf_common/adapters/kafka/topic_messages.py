"""Messages that a topic has now, read without a consumer group to their end; and the first ones as a sample."""

import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.client_config import consuming, new_consumer, unavailable
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.errors import OdfError, Unavailable

IDLE_TIMEOUT_SECONDS: Final = 10.0  # without a message
POLL_SECONDS: Final = 0.5
END_WAIT_MS: Final = 10  # until a broker without messages reports the end of a partition


class SampledMessage(NamedTuple):
    """A message that is not empty."""

    key: bytes | None
    value: bytes


def messages_until_end(cluster: KafkaCluster, topic: str, starts: Mapping[int, int]) -> Generator[Message]:
    """Yield the messages of partitions from their start offsets to their current ends; raises `Unavailable`."""
    config = consuming(cluster, group=f"{topic}.{uuid.uuid4().hex}")  # nothing is committed to it
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
    """Return by partition the oldest messages in their order, without those of empty values; up to `most` in total.

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
