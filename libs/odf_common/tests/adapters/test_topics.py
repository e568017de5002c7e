"""Topics of a broker that is temporarily busy."""

import subprocess
import sys
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import NewTopic, OffsetSpec

from odf_common.adapters.kafka import admin
from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.cluster import KafkaCluster, TopicPolicy, push_topic
from odf_common.errors import Unavailable
from odf_common.ports.bus import TopicInfo


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
