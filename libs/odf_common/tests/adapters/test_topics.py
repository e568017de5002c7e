"""Topics of a broker that is temporarily busy."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from hashlib import sha3_256
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from odf_common.adapters.kafka import admin
from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.client_config import LOGGER, producer_config
from odf_common.adapters.kafka.cluster import (
    KafkaCluster,
    TopicPolicy,
    missing_topics,
    murmur2,
    node_topics,
    partition_of,
    push_topic,
)
from odf_common.adapters.kafka.dead_letter_messages import CUTS, KafkaLetters, message_of, smaller_cuts
from odf_common.adapters.kafka.kafka_bus import KafkaBus
from odf_common.adapters.kafka.topic_claims import TopicClaim, TopicsTaken, owner_of
from odf_common.adapters.kafka.topic_messages import publish
from odf_common.errors import Unavailable
from odf_common.ports.bus import DEAD_LETTERS, FIXED_TOPICS, NODE_CLAIMS, DeadLetter, StoredLetter, TopicInfo
from odf_common.service.node_home import HomeCopied, node_id, require_original


class Fenced:
    """Refuses topics in the first `times` requests, like a cluster whose only broker is fenced."""

    def __init__(self, times: int) -> None:
        """Begin."""
        self.times = times
        self.asked: list[list[str]] = []

    def create_topics(self, topics: list[NewTopic], **_: object) -> dict[str, "Future[None]"]:
        """Respond like the client."""
        self.asked.append([topic.topic for topic in topics])
        found = {}
        for topic in topics:
            found[topic.topic] = future = Future[None]()
            if topic.topic == "slow" and len(self.asked) <= self.times:
                error = KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, "All brokers are currently fenced")
                future.set_exception(KafkaException(error))
            else:
                future.set_result(None)
        return found


def creating(monkeypatch: pytest.MonkeyPatch, times: int) -> tuple[KafkaTopics, Fenced]:
    topics, fenced = KafkaTopics(KafkaCluster("127.0.0.1:1")), Fenced(times)
    monkeypatch.setattr(topics, "_admin", fenced)
    monkeypatch.setattr(topics, "_are_led", lambda *_: True)
    return topics, fenced


def create(topics: Any) -> None:
    topics._create([push_topic(TopicPolicy(), name) for name in ("quick", "slow")])


def test_topics_are_created_once_the_broker_is_no_longer_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    topics, fenced = creating(monkeypatch, 2)
    create(topics)
    assert fenced.asked == [["quick", "slow"], ["slow"], ["slow"]]


def test_a_broker_that_stays_fenced_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    topics, _ = creating(monkeypatch, 10**9)
    monkeypatch.setattr(admin, "ADMIN_TIMEOUT_SECONDS", 0.1)
    with pytest.raises(Unavailable, match="All brokers are currently fenced"):
        create(topics)


def test_partitions_that_were_added_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    topics, counts = KafkaTopics(KafkaCluster("127.0.0.1:1")), iter((2, 2, 3))

    def describe(names: set[str]) -> dict[str, TopicInfo]:
        high = dict.fromkeys(range(next(counts)), 0)
        return {name: TopicInfo(topic_id="id", low=high, high=high) for name in names}

    monkeypatch.setattr(topics, "describe", describe)
    topics._await({"one"}, partitions=3)
    assert list(counts) == []


# The garbage collector runs in the client's own thread once no other thread uses the client.
ABANDONED = """
import gc, threading
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.cluster import KafkaCluster

cluster = AdminClient({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1})
(broker,) = cluster.list_topics(timeout=30).brokers.values()
address = f"{broker.host}:{broker.port}"
producer = Producer({"bootstrap.servers": address})
producer.produce("one", b"", partition=0)
assert producer.flush(30) == 0
gc.disable()
abandoned, done = threading.Event(), threading.Event()


def answered(_):
    abandoned.wait()
    gc.collect()
    done.set()


def ask():
    topics = KafkaTopics(KafkaCluster(address))
    topics.itself = topics
    (answer,) = topics._admin.list_offsets({TopicPartition("one", 0): OffsetSpec.latest()}).values()
    answer.add_done_callback(answered)


ask()
abandoned.set()
assert done.wait(30)
print("alive")
"""


NAMES = """
import time
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.cluster import KafkaCluster

cluster = AdminClient({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1})
(broker,) = cluster.list_topics(timeout=30).brokers.values()
address = f"{broker.host}:{broker.port}"
producer = Producer({"bootstrap.servers": address})
for name in ("one", "two"):
    producer.produce(name, b"", partition=0)
assert producer.flush(30) == 0
print(*sorted(KafkaTopics(KafkaCluster(address)).list_names()))
"""


def test_all_topics_are_listed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NAMES], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.split() == ["one", "two"]


class Timed(KafkaTopics):
    """A topic of two partitions, the second of which has no message at or after the time."""

    def __init__(self) -> None:
        """Connect to no broker."""

    def partitions(self, name: str) -> int:
        return 2

    def _offsets(self, name: str, partitions: Any, spec: OffsetSpec) -> dict[int, int]:
        return {0: 9, 1: 5} if spec._value == OffsetSpec.latest()._value else {0: 4, 1: -1}


def test_a_partition_without_messages_after_a_time_begins_at_its_end() -> None:
    assert Timed().offsets_at("one", 1000) == {0: 4, 1: 5}


def test_a_response_that_arrives_after_its_caller_has_left_ends_no_process() -> None:
    done = subprocess.run([sys.executable, "-c", ABANDONED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


STRICT = TopicPolicy(is_ours=False, replication_factor=3, min_insync_replicas=2)


def test_all_topics_of_a_node_have_its_prefix() -> None:
    names = [spec.name for spec in node_topics(TopicPolicy(), "team.")]
    assert names == [f"team.{name}" for name in (*FIXED_TOPICS, NODE_CLAIMS)]


def test_replicas_are_the_brokers_unless_they_are_configured() -> None:
    assert {
        (spec.replication_factor, spec.config.get("min.insync.replicas")) for spec in node_topics(STRICT, "")
    } == {(3, "2")}
    assert {spec.replication_factor for spec in node_topics(TopicPolicy(), "")} == {-1}


def test_claims_are_kept_forever_in_one_partition_and_dead_letters_for_a_month() -> None:
    specs = {spec.name: spec for spec in node_topics(TopicPolicy(), "")}
    assert (specs[NODE_CLAIMS].partitions, specs[NODE_CLAIMS].config) == (1, {"retention.ms": "-1"})
    assert specs[DEAD_LETTERS].config == {"retention.ms": str(30 * 24 * 3600 * 1000)}


def test_topics_that_an_administrator_has_to_create_are_listed_with_their_configuration() -> None:
    error = missing_topics([push_topic(STRICT, "odf.push.orders.default", 2)])
    properties = "partitions=2, replication-factor=3, retention.ms=-1, min.insync.replicas=2"
    assert str(error).endswith(f"odf.push.orders.default ({properties})")
    assert "`odf topics`" in error.advice()


# Values of org.apache.kafka.common.utils.UtilsTest.
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_kafkas(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0xFFFFFFFF


def test_a_key_without_bytes_has_a_partition_too() -> None:
    assert 0 <= partition_of(b"") < 8


TOPIC, PARTITIONS = "topic", 4
MOST = int(producer_config(KafkaCluster(""))["message.max.bytes"])


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


@pytest.fixture
def bus() -> Iterator[KafkaBus]:
    """A bus without a broker: what is sent is queued."""
    made = KafkaBus(KafkaCluster("127.0.0.1:1"))
    yield made
    made._producer.purge()
    made.close()


@pytest.mark.parametrize("size", [0, CUTS[0] + 1, MOST - 200, 2 * MOST])
def test_a_letter_of_any_size_is_sent(bus: KafkaBus, size: int) -> None:
    facts = {"dataset": "did:odf:" + "f" * 70, "source": "default"}
    letter = DeadLetter(
        topic="topic",
        partition=0,
        offset=1,
        reason="r" * 100_000,
        key=b"k" * 78,
        value=bytes(size),
        facts=facts,
    )
    bus.send_dead_letter(letter)
    (delivery,) = bus._unflushed.pending  # what is too large is refused, and not queued
    assert delivery.error is None


@pytest.mark.parametrize("size", [0, 10, 100_000, 2 * MOST])
def test_each_cut_of_a_letter_is_smaller_and_the_last_one_is_tiny(size: int) -> None:
    letter = DeadLetter(
        topic="topic", partition=0, offset=1, reason="r" * 100_000, key=b"k", value=bytes(size)
    )
    cuts = list(smaller_cuts(letter))
    sizes = [
        len(value) + sum(len(text) for _, text in headers)
        for value, headers in (message_of(letter, most) for most in cuts)
    ]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 500


def test_a_letter_that_was_cut_says_how_large_the_message_was_and_which() -> None:
    letter = DeadLetter(topic="topic", partition=2, offset=1, reason="r", value=b"x" * 5000)
    value, headers = message_of(letter, 1024)
    facts = {name: text.decode() for name, text in headers}
    assert value == b"x" * 1024
    assert (facts["size"], facts["sha3-256"]) == ("5000", sha3_256(b"x" * 5000).hexdigest())
    assert (facts["topic"], facts["partition"], facts["offset"]) == ("topic", "2", "1")


FIRST = TopicClaim(node_id="a", home="/a/.odf", host="one", at="2026-01-01T00:00:00Z")
SECOND = TopicClaim(node_id="b", home="/b/.odf", host="two", at="2026-01-02T00:00:00Z")


def test_the_earliest_claim_wins_and_a_repeat_changes_nothing() -> None:
    assert owner_of([]) is None
    assert owner_of([FIRST, SECOND, FIRST]) == FIRST


def test_of_two_that_take_over_at_once_the_first_wins() -> None:
    third = replace(SECOND, node_id="c", replaces="a")
    assert owner_of([FIRST, replace(SECOND, replaces="a"), third]) == replace(SECOND, replaces="a")
    assert owner_of([FIRST, replace(SECOND, replaces="z")]) == FIRST


def test_records_are_json_and_others_are_skipped() -> None:
    assert TopicClaim.decode(FIRST.encode()) == FIRST
    assert b'"nodeId": "a"' in FIRST.encode()
    for value in (b"", b"{", b"[]", b"null", b'{"nodeId": 1}', b"\xff"):
        assert TopicClaim.decode(value) is None


def test_the_error_names_the_first_node_and_has_advice() -> None:
    error = TopicsTaken(kafka="k:9092", prefix="", owner=FIRST)
    assert "home /a/.odf on host one, since 2026-01-01T00:00:00Z" in str(error)
    assert "ODF_KAFKA_PREFIX" in error.advice()
    assert "--take-over" in error.advice()


def test_a_home_has_one_permanent_id(tmp_path: Path) -> None:
    first = node_id(tmp_path)
    assert len(first) == 32
    assert node_id(tmp_path) == first
    assert [file.name for file in tmp_path.iterdir()] == ["node-id"]


def test_a_copied_home_is_distinguished_from_its_original_and_a_moved_one_is_fine(tmp_path: Path) -> None:
    home, copy, link = tmp_path / "home", tmp_path / "copy", tmp_path / "link"
    home.mkdir()
    owner = replace(FIRST, node_id=node_id(home), home=str(home), host=socket.gethostname())
    shutil.copytree(home, copy)
    link.symlink_to(home)
    with pytest.raises(HomeCopied, match=f"the home {copy} is a copy of {home}") as caught:
        require_original(copy, owner)
    assert "ODF_KAFKA_PREFIX" in caught.value.advice()
    require_original(home, owner)
    require_original(link, owner)
    require_original(copy, replace(owner, host="another"))
    shutil.rmtree(home)
    require_original(copy, owner)
