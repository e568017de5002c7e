"""Reads the first messages of a topic as a sample."""

import time
import uuid
from typing import Final, NamedTuple

from confluent_kafka import KafkaException, TopicPartition

from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.client_config import consuming, new_consumer, unavailable
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.errors import OdfError, Unavailable

IDLE_TIMEOUT_SECONDS: Final = 10.0  # without a message
MESSAGES_PER_FETCH: Final = 500


class SampledMessage(NamedTuple):
    """A message that is not empty."""

    key: bytes | None
    value: bytes


def first_messages(cluster: KafkaCluster, topic: str, most: int) -> list[list[SampledMessage]]:
    """Return by partition the oldest messages in their order, without those of empty values; up to `most` in total.

    Nothing is committed. Raises `NotFound`, `Unavailable`.
    """
    described = KafkaTopics(cluster).describe([topic])[topic]
    if isinstance(described, OdfError):
        raise described
    left = {number: high for number, high in described.high.items() if described.low[number] < high}
    config = consuming(cluster, group=f"odf.{uuid.uuid4().hex}")  # nothing is committed to it
    consumer = new_consumer(config)
    messages: dict[int, list[SampledMessage]] = {number: [] for number in left}
    count = 0
    deadline = time.monotonic() + IDLE_TIMEOUT_SECONDS
    try:
        consumer.assign([TopicPartition(topic, number, described.low[number]) for number in left])
        while left and count < most:
            for message in consumer.consume(min(most - count, MESSAGES_PER_FETCH), 0.5):
                trouble, value, number = message.error(), message.value(), message.partition() or 0
                if trouble is not None:
                    raise unavailable(trouble)
                deadline = time.monotonic() + IDLE_TIMEOUT_SECONDS
                if value is not None and value.strip():
                    messages[number].append(SampledMessage(key=message.key(), value=value))
                    count += 1
                if (message.offset() or 0) + 1 >= left.get(number, 0):
                    left.pop(number, None)
            if time.monotonic() > deadline:
                if count:
                    break  # its last messages may be markers of transactions
                raise Unavailable(what="Kafka", why=f"no message of {topic} arrived")
    except KafkaException as error:
        raise unavailable(error) from error
    finally:
        consumer.close()
    return [some for some in messages.values() if some]
