"""Kafka's clients over a network that breaks without a word, and a broker that has moved behind its name."""

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from confluent_kafka import TopicPartition
from odf_testing.black_hole import BlackHole, black_hole
from odf_testing.secure_kafka import kafka_behind

from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.client_config import (
    new_consumer,
    new_producer,
    producing,
    sharing,
)
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.adapters.kafka.quiet_partitions import QuietPartitions
from odf_common.adapters.kafka.records import KafkaRecords, _settings
from odf_common.errors import Unavailable

LATE_SECONDS = 45.0  # the default timeout of a request is a minute
BREAKS = (BlackHole.swallow, BlackHole.drop)
T = TypeVar("T")
Kafka = tuple[BlackHole, KafkaCluster]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with black_hole(0) as hole, kafka_behind(tmp_path_factory.mktemp("kafka"), hole) as cluster:
        yield hole, cluster


@pytest.fixture
def topic(kafka: Kafka, request: pytest.FixtureRequest) -> str:
    name = f"t{abs(hash(request.node.name))}"
    failing_once(lambda: KafkaTopics(kafka[1]).create_push_topic(name))
    return name


def failing_once(ask: Callable[[], T]) -> T:
    """Return an answer; the first question may have met a connection that has died since."""
    try:
        return ask()
    except Unavailable:
        return ask()


def publish(kafka: Kafka, topic: str, value: bytes) -> None:
    """Publish by a client that has no dead connection."""
    producer = new_producer(producing(kafka[1]))
    producer.produce(topic, value)
    assert producer.flush(LATE_SECONDS) == 0


def within_lateness(condition: Callable[[], bool]) -> float:
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() < begun + LATE_SECONDS
    return time.monotonic() - begun


@pytest.mark.parametrize("breaks", BREAKS)
def test_a_reader_whose_fetch_is_lost_goes_on(
    kafka: Kafka, topic: str, breaks: Callable[[BlackHole], None]
) -> None:
    hole, cluster = kafka
    records = KafkaRecords(cluster)
    values: list[bytes | None] = []

    def has(count: int) -> bool:
        values.extend(value for chunk in records.take(10, 0.1).chunks for value in chunk.values)
        return len(values) == count

    records.assign({(topic, 0): 0})
    publish(kafka, topic, b"before")
    within_lateness(lambda: has(1))
    breaks(hole)
    hole.restore()
    publish(kafka, topic, b"after")
    print(f"read after {within_lateness(lambda: has(2)):.1f} s")
    assert values == [b"before", b"after"]
    records.close()


@pytest.mark.parametrize("breaks", BREAKS)
def test_a_message_on_a_dead_connection_is_sent_again_on_a_new_one(
    kafka: Kafka, topic: str, breaks: Callable[[BlackHole], None]
) -> None:
    hole, cluster = kafka
    producer = new_producer(producing(cluster))
    outcomes: list[object] = []
    producer.produce(topic, b"before", on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(LATE_SECONDS)
    breaks(hole)
    hole.restore()
    producer.produce(topic, b"after", on_delivery=lambda error, _: outcomes.append(error))
    producer.flush(LATE_SECONDS)
    assert outcomes == [None, None]
    assert failing_once(lambda: KafkaTopics(cluster).watermarks(topic, 0)) == (0, 2)


@pytest.mark.parametrize("breaks", BREAKS)
def test_a_question_about_topics_fails_while_the_network_is_broken_and_is_answered_after(
    kafka: Kafka, topic: str, breaks: Callable[[BlackHole], None]
) -> None:
    hole, cluster = kafka
    topics = KafkaTopics(cluster)
    assert topics.partitions(topic) == 1
    breaks(hole)
    with pytest.raises(Unavailable):
        topics.require_answer(1.0)
    hole.restore()
    failing_once(lambda: topics.require_answer(LATE_SECONDS))  # on the dead connection, which ends by that
    assert topics.partitions(topic) == 1


def test_a_quiet_partition_is_watched_on_a_new_connection(kafka: Kafka, topic: str) -> None:
    hole, cluster = kafka
    watch = QuietPartitions(_settings(cluster, ""))
    watch.watch({(topic, 0): 0})
    time.sleep(1)  # its fetch is on its way, or will be, which is as good
    hole.drop()
    hole.restore()
    publish(kafka, topic, b"loud")
    within_lateness(lambda: bool(watch.news()[1]))
    watch.close()


def test_a_member_whose_request_to_join_is_lost_joins_its_group(kafka: Kafka, topic: str) -> None:
    """The answer comes when all others have joined again: as late as an hour, on a connection that had died by then."""
    hole, cluster = kafka
    config = sharing(cluster, group=f"group-{topic}", session_timeout_ms=6000, instance=None)
    topics = KafkaTopics(cluster)
    failing_once(lambda: topics.add_partitions(topic, 2))
    first, second = new_consumer(config), new_consumer(config)
    first.subscribe([topic])
    within_lateness(lambda: first.poll(0.1) is None and len(first.assignment()) == 2)
    second.subscribe([topic])
    until = time.monotonic() + 3
    while time.monotonic() < until:  # it waits for the first one, which does not poll
        second.poll(0.1)
    assert second.assignment() == []
    hole.drop()
    hole.restore()

    def both() -> bool:
        first.poll(0.1)
        second.poll(0.1)
        return [len(one.assignment()) for one in (first, second)] == [1, 1]

    print(f"joined after {within_lateness(both):.1f} s")
    assert {(one.topic, one.partition) for one in (*first.assignment(), *second.assignment())} == {
        (topic, 0),
        (topic, 1),
    }
    assert TopicPartition(topic, 0) in (*first.assignment(), *second.assignment())
    first.close()
    second.close()
