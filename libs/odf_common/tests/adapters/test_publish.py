"""Messages that are published by a producer of their own: where they arrive, and what is refused."""

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from odf_common.adapters.kafka.client_config import LOGGER, producing
from odf_common.adapters.kafka.cluster import KafkaCluster, partition_of
from odf_common.adapters.kafka.dead_letter_messages import KafkaLetters
from odf_common.adapters.kafka.publish import publish
from odf_common.errors import Unavailable
from odf_common.ports.bus import StoredLetter

TOPIC, PARTITIONS = "topic", 4
MOST = int(producing(KafkaCluster(""))["message.max.bytes"])


@pytest.fixture
def cluster() -> Iterator[KafkaCluster]:
    """A broker with a topic."""
    owner = AdminClient({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1}, logger=LOGGER)
    (one,) = owner.list_topics(timeout=10).brokers.values()
    address = f"{one.host}:{one.port}"
    topic = (
        Producer({"bootstrap.servers": address}, logger=LOGGER).list_topics(TOPIC, timeout=10).topics[TOPIC]
    )
    assert len(topic.partitions) == PARTITIONS
    yield KafkaCluster(address)
    del owner  # the broker ends with the client that started it


def a_letter(value: bytes, partition: int) -> StoredLetter:
    return StoredLetter(
        topic=TOPIC,
        topic_id="one",
        partition=partition,
        offset=1,
        source="default",
        reason="r",
        value=value,
        size=len(value),
        ms=0,
    )


def stored(cluster: KafkaCluster, partition: int, count: int) -> list[tuple[bytes | None, bytes | None]]:
    """Return the first keys and values of a partition."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "test"}, logger=LOGGER)
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0)])
        return [(one.key(), one.value()) for one in consumer.consume(count, 10.0)]
    finally:
        consumer.close()


def test_records_are_published_in_order_to_the_partition_of_their_key(cluster: KafkaCluster) -> None:
    values = [b"%d" % number for number in range(100)]
    assert publish(cluster, TOPIC, values, key=b"cities") == 100
    partition = partition_of(b"cities", PARTITIONS)
    assert stored(cluster, partition, 100) == [(b"cities", value) for value in values]


def test_messages_are_sent_again_to_the_partitions_that_they_came_from(cluster: KafkaCluster) -> None:
    letters = [a_letter(b"%d" % number, number) for number in range(PARTITIONS)]
    assert KafkaLetters(cluster).send_again(letters) == PARTITIONS
    assert [stored(cluster, number, 1) for number in range(PARTITIONS)] == [
        [(None, letter.value)] for letter in letters
    ]


def test_a_message_that_no_topic_takes_is_an_error_of_ours(cluster: KafkaCluster) -> None:
    value = bytes(2 * MOST)
    with pytest.raises(Unavailable, match="Message size too large"):
        KafkaLetters(cluster).send_again([a_letter(value, 0)])
    with pytest.raises(Unavailable, match="Message size too large"):
        publish(cluster, TOPIC, [value])
