"""Sources that read external topics: several sources of one topic, patterns, kills, all compressions."""

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import count

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from odf_testing.story import Story, root

from odf_common.data.columns import Operation

COLUMNS = ("n BIGINT", "at TIMESTAMP(3)")
KEYED = ("id BIGINT", "n BIGINT", "trace STRING")
KEYS = 500
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
        self.story = story
        self.clients = story.node.clients
        self.admin = AdminClient(self.clients)
        self.name = f"shop.{next(NUMBERS)}"

    def make(self, topic: str, partitions: int = 1, compression: str = "producer") -> str:
        name = f"{self.name}.{topic}"
        self.admin.create_topics([NewTopic(name, partitions, config={"compression.type": compression})])[
            name
        ].result(10)
        self.story.node.eventually(lambda: self.partitions(name) == partitions)
        return name

    def partitions(self, topic: str) -> int:
        """Return the number of partitions that the broker reports for a topic: none just after its creation."""
        return len(self.admin.list_topics(topic, timeout=10).topics[topic].partitions)

    def drop(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(10)

    def produce(
        self,
        topic: str,
        numbers: Iterable[int],
        compression: str = "none",
        partition: int | None = None,
        *,
        is_tombstone: bool = False,
    ) -> None:
        """Publish messages with a key and a header; by default a key has its partition."""
        producer = Producer({**self.clients, "compression.type": compression})
        partitions = self.partitions(topic)
        for number in numbers:
            key = key_of(number)
            value = None if is_tombstone else json.dumps({"n": number, "at": "2026-01-01T00:00:00Z"})
            producer.produce(
                topic,
                value,
                str(key),
                key % partitions if partition is None else partition,
                headers={"trace-id": f"t{number}"},
            )
            producer.poll(0)
        assert producer.flush(30) == 0


def key_of(number: int) -> int:
    return number if number >= 10_000 else number % KEYS


def state(story: Story, dataset: str) -> dict[int, int]:
    """Return the last number of each key that is not retracted."""
    chain = story.chain(dataset)
    rows: dict[int, int] = {}
    for op, key, number in zip(*map(chain.column, ("op", "id", "n")), strict=True):
        if op == Operation.RETRACT:
            assert rows.pop(key) == number
        elif op != Operation.CORRECT_FROM:
            rows[key] = number
    return rows


def counts(story: Story, dataset: str) -> Mapping[int, int]:
    return Counter(story.chain(dataset).column("n"))


def once(*ranges: range) -> Mapping[int, int]:
    return Counter(number for numbers in ranges for number in numbers)


def shown(story: Story, dataset: str) -> dict[str, tuple[str, int]]:
    rows = story.node.run(f"source show {dataset} --output json")
    return {row["topic"]: (row["state"], row["waiting"]) for row in rows}


def test_two_sources_read_the_same_topics_exactly_once_although_ingest_is_killed(
    story: Story, shop: Shop
) -> None:
    every, latest = (f"foreign.{next(NUMBERS)}" for _ in range(2))
    story.add(root(every, KEYED), root(latest, KEYED, merge={"kind": "UpsertStream", "primaryKey": ["id"]}))
    first = shop.make("first", 2)
    shop.produce(first, range(2000))
    columns = "keyColumns=id headerColumns=trace-id:trace timestampColumn=event_time"
    for name in (every, latest):
        story.node.run(f"source set {name} topics={shop.name}.* {columns} --output json")
    shop.produce(first, range(2000, 3000))
    shop.produce(first, range(0, KEYS, 5), is_tombstone=True)
    killed = story.node.kill("ingest")
    second = shop.make("second")
    shop.produce(second, range(10_000, 10_300))
    story.node.await_restart("ingest", killed)
    shop.produce(first, range(3000, 3200))
    story.pull(f"{every} {latest}")
    sent = [*range(3200), *range(10_000, 10_300)]
    chain = story.chain(every)
    assert Counter(zip(*map(chain.column, ("id", "n", "trace")), strict=True)) == Counter(
        (key_of(number), number, f"t{number}") for number in sent
    )
    assert story.node.run(f"rejected drop {every} --all --output json")["dropped"] == KEYS / 5
    deleted = set(range(0, KEYS, 5)) - {key_of(number) for number in range(3000, 3200)}
    expected = {key_of(number): number for number in sent if key_of(number) not in deleted}
    assert state(story, latest) == expected
    assert shown(story, latest) == {first: ("reading", 0), second: ("reading", 0)}
    for name in (every, latest):
        story.node.run(f"source set {name} topics=none --output json")


def test_new_topics_and_partitions_are_read_and_a_deleted_one_is_named(
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


def test_a_topic_ends_where_its_first_open_transaction_begins(story: Story, shop: Shop, orders: str) -> None:
    topic, latest = shop.make("transactions"), f"foreign.{next(NUMBERS)}"
    story.add(root(latest, COLUMNS, event_time="at"))
    producer = Producer({**shop.clients, "transactional.id": topic})

    def begin(*numbers: int) -> None:
        producer.begin_transaction()
        for number in numbers:
            producer.produce(topic, json.dumps({"n": number, "at": "2026-01-01T00:00:00Z"}))
        producer.flush(30)

    producer.init_transactions(30)
    begin(1, 2, 3)
    producer.commit_transaction(30)
    begin(4)
    story.node.run(f"source set {orders} topics={topic} --output json")
    story.pull(orders)
    assert counts(story, orders) == once(range(1, 4))
    assert shown(story, orders) == {topic: ("reading", 0)}
    producer.abort_transaction(30)
    begin(5)
    story.node.run(f"source set {latest} topics={topic} topicStart=latest --output json")
    story.pull(f"{orders} {latest}")
    producer.commit_transaction(30)
    story.pull(f"{orders} {latest}")
    assert counts(story, orders) == once(range(1, 4), range(5, 6))
    assert counts(story, latest) == once(range(5, 6))
    assert shown(story, orders) == shown(story, latest) == {topic: ("reading", 0)}
    story.node.run(f"source set {latest} topics=none --output json")


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


def test_a_rejected_message_of_an_external_topic_is_not_published_again(
    story: Story, shop: Shop, orders: str
) -> None:
    topic = shop.make("bad")
    story.node.produce(topic, [b"{}", b'{"n": 1, "at": "2026-01-01T00:00:00Z"}'])
    story.node.run(f"source set {orders} topics={topic} --output json")
    story.pull(orders)
    assert "belongs to others" in story.node.fails(f"rejected retry {orders} --all")
    story.node.run(f"rejected drop {orders} {topic}/0/0 --output json")
    assert counts(story, orders) == once(range(1, 2))
