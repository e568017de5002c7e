"""Sources that read topics of other owners: several sources of one topic, patterns, kills, all compressions."""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import count

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from odf_testing.manifests import root
from odf_testing.story import Story

COLUMNS = ("id BIGINT", "at TIMESTAMP(3)")
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
NUMBERS = count()


@pytest.fixture
def shop(story: Story) -> "Shop":
    return Shop(story)


@pytest.fixture
def orders(story: Story) -> Iterator[str]:
    name = f"foreign.{next(NUMBERS)}"
    story.add(root(name, COLUMNS, event_time="at"))
    yield name
    story.node.run(f"source set {name} topics=none --output json")


class Shop:
    """Another owner of topics on the node's broker."""

    def __init__(self, story: Story) -> None:
        self.address = story.node.kafka
        self.admin = AdminClient({"bootstrap.servers": self.address})
        self.name = f"shop.{next(NUMBERS)}"

    def make(self, topic: str, partitions: int = 1, compression: str = "producer") -> str:
        name = f"{self.name}.{topic}"
        self.admin.create_topics([NewTopic(name, partitions, config={"compression.type": compression})])[
            name
        ].result(10)
        return name

    def drop(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(10)

    def produce(self, topic: str, ids: range, compression: str = "none", partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.address, "compression.type": compression})
        for number in ids:
            value = json.dumps({"id": number, "at": "2026-01-01T00:00:00Z"})
            while True:
                try:
                    producer.produce(topic, value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(30) == 0


def counts(story: Story, dataset: str) -> Mapping[int, int]:
    return Counter(story.chain(dataset).column("id"))


def once(*ranges: range) -> Mapping[int, int]:
    return Counter(number for numbers in ranges for number in numbers)


def shown(story: Story, dataset: str) -> dict[str, tuple[str, int]]:
    rows = story.node.run(f"source show {dataset} --output json")
    return {row["topic"]: (row["state"], row["waiting"]) for row in rows}


def test_two_sources_read_one_topic_exactly_once_although_ingest_is_killed(story: Story, shop: Shop) -> None:
    names = [f"foreign.{next(NUMBERS)}" for _ in range(2)]
    story.add(*(root(name, COLUMNS, event_time="at") for name in names))
    first = shop.make("first", 2)
    shop.produce(first, range(2000))
    story.node.run(f"source set {names[0]} topics={shop.name}.* --output json")
    story.node.run(f"source set {names[1]} topics={first} topicStart=latest --output json")
    shop.produce(first, range(2000, 4000), partition=1)
    killed = story.node.kill("ingest")
    second = shop.make("second")
    shop.produce(second, range(4000, 5000))
    story.node.await_restart("ingest", killed)
    shop.produce(first, range(5000, 6000))
    story.pull(" ".join(names))
    assert counts(story, names[0]) == once(range(6000))
    assert counts(story, names[1]) == once(range(2000, 4000), range(5000, 6000))
    assert shown(story, names[0]) == {first: ("reading", 0), second: ("reading", 0)}
    for name in names:
        story.node.run(f"source set {name} topics=none --output json")


def test_topics_and_partitions_that_appear_are_read_and_one_that_goes_is_named(
    story: Story, shop: Shop, orders: str
) -> None:
    story.node.run(f"source set {orders} topics={shop.name}.* --output json")
    first = shop.make("first")
    shop.produce(first, range(10))
    story.pull(orders)
    shop.admin.create_partitions([NewPartitions(first, 2)])[first].result(10)
    shop.produce(first, range(10, 20), partition=1)
    second = shop.make("second")
    shop.produce(second, range(20, 30))
    story.pull(orders)
    assert counts(story, orders) == once(range(30))
    shop.drop(second)
    said = story.node.fails(f"pull {orders}")
    assert f"its topic is gone: {second} was deleted" in said
    assert f"odf source resume {orders} --source default --topic {second} --from earliest" in said
    story.node.run(f"source resume {orders} --topic {second} --from earliest --output json")
    shop.produce(first, range(30, 40))
    story.pull(orders)
    assert counts(story, orders) == once(range(40))
    assert second not in story.node.topics().list_names()


def test_a_topic_is_read_from_a_time(story: Story, shop: Shop, orders: str) -> None:
    topic = shop.make("timed")
    shop.produce(topic, range(5))
    time.sleep(0.01)
    middle = time.time_ns() // 1_000_000
    time.sleep(0.01)
    shop.produce(topic, range(5, 9))
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(middle // 1000)) + f".{middle % 1000:03}Z"
    story.node.run(f"source set {orders} topics={topic} topicStart={at} --output json")
    story.pull(orders)
    assert counts(story, orders) == once(range(5, 9))


def test_every_compression_is_read(story: Story, shop: Shop, orders: str) -> None:
    for number, compression in enumerate(COMPRESSIONS):
        topic = shop.make(compression)
        shop.produce(topic, range(100 * number, 100 * number + 100), compression)
        kept = shop.make(f"stored.{compression}", compression=compression.replace("none", "uncompressed"))
        shop.produce(kept, range(1000 + 100 * number, 1100 + 100 * number))
    story.node.run(f"source set {orders} topics={shop.name}.* --output json")
    story.pull(orders)
    assert counts(story, orders) == once(range(500), range(1000, 1500))


def test_topics_that_are_not_for_sources_are_refused(story: Story, orders: str) -> None:
    for topic, why in (
        ("absent", "topic absent does not exist"),
        ("__consumer_offsets", "is an internal topic of Kafka"),
        (story.topic(orders), "is a topic of this node"),
        ("odf.dead-letters.v1", "is a topic of this node"),
    ):
        assert why in story.node.fails(f"source set {orders} topics={topic}")


def test_a_rejected_message_of_others_is_not_published_again(story: Story, shop: Shop, orders: str) -> None:
    topic = shop.make("bad")
    story.node.produce(topic, [b"{}", b'{"id": 1, "at": "2026-01-01T00:00:00Z"}'])
    story.node.run(f"source set {orders} topics={topic} --output json")
    story.pull(orders)
    assert "belongs to others" in story.node.fails(f"rejected retry {orders} --all")
    story.node.run(f"rejected drop {orders} {topic}/0/0 --output json")
    assert counts(story, orders) == once(range(1, 2))
