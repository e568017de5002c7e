"""Publishes records to a push topic, for programs without a Kafka client of their own."""

from collections.abc import Iterable

from confluent_kafka import KafkaError, Message, Producer

from odf_common.adapters.kafka.client_config import LOGGER, producing, unavailable
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.errors import Unavailable

QUEUE_FULL_PAUSE_SECONDS: float = 0.1  # before the next attempt


def publish(cluster: KafkaCluster, topic: str, records: Iterable[bytes], *, key: bytes | None = None) -> int:
    """Publish records, in order within a partition; return how many once all are durable."""
    producer = Producer({**producing(cluster), "linger.ms": 5}, logger=LOGGER)
    failed: list[KafkaError] = []
    count = 0

    def settle(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    for record in records:
        count += 1
        while True:
            try:
                producer.produce(topic, value=record, key=key, on_delivery=settle)
                break
            except BufferError:
                producer.poll(QUEUE_FULL_PAUSE_SECONDS)
    if producer.flush(30) > 0:
        raise Unavailable(what="Kafka", why="records were not acknowledged in time")
    if failed:
        raise unavailable(failed[0])
    return count
