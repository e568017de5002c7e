"""How librdkafka handles paused partitions, with its mock broker."""

import random
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from odf_common.adapters.kafka.client_config import LOGGER
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.adapters.kafka.quiet_partitions import Partition
from odf_common.adapters.kafka.records import KafkaRecords

COUNT = 50
TOPICS = ("a", "b")


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    owner = AdminClient({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1}, logger=LOGGER)
    (one,) = owner.list_topics(timeout=10).brokers.values()
    address = f"{one.host}:{one.port}"
    producer = Producer({"bootstrap.servers": address}, logger=LOGGER)
    for topic in TOPICS:
        for number in range(COUNT):
            producer.produce(topic, str(number).encode(), partition=0)
    producer.flush(10)
    yield address
    del owner  # the broker ends with the client that started it


@pytest.fixture
def records(bootstrap: str) -> Iterator[KafkaRecords]:
    made = KafkaRecords(KafkaCluster(bootstrap))
    yield made
    made.close()


def read_to_the_end(records: KafkaRecords, partition: Partition) -> list[int]:
    offsets: list[int] = []
    deadline = time.monotonic() + 10
    while (not offsets or offsets[-1] < COUNT - 1) and time.monotonic() < deadline:
        for chunk in records.take(100, 0.05).chunks:
            if chunk.partition == partition:
                offsets += chunk.offsets
    return offsets


def test_a_partition_that_was_paused_is_read_after_it_was_assigned_again(records: KafkaRecords) -> None:
    at = ("a", 0)
    for _ in range(3):
        records.assign({at: 0})
        assert read_to_the_end(records, at) == list(range(COUNT))
        records.pause([at])
        records.unassign([at])


def test_a_partition_that_is_assigned_again_while_paused_is_read(records: KafkaRecords) -> None:
    at = ("a", 0)
    records.assign({at: 0})
    records.pause([at])
    records.assign({at: 40})
    assert read_to_the_end(records, at) == list(range(40, COUNT))


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happened_before_an_assigned_partition_is_read_unless_it_is_paused(
    records: KafkaRecords, seed: int
) -> None:
    choice = random.Random(seed)
    places = [(topic, 0) for topic in TOPICS]
    for _ in range(30):
        place = choice.choice(places)
        match choice.choice(("assign", "unassign", "pause", "resume", "take")):
            case "assign":
                records.assign({place: choice.randrange(COUNT)})
            case "unassign":
                records.unassign([place])
            case "pause":
                records.pause([place])
            case "resume":
                records.resume([place])
            case _:
                records.take(3, 0.01)
    for place in places:
        records.assign({place: 10})
        assert read_to_the_end(records, place) == list(range(10, COUNT))
