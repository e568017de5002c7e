"""Partitions that are handed over to the watch and back, with librdkafka's mock broker."""

import random
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from odf_common.adapters.kafka.client_config import LOGGER
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.adapters.kafka.quiet_partitions import Partition, QuietLimits
from odf_common.adapters.kafka.records import KafkaRecords

pytestmark = pytest.mark.waits

PATIENCE = 60.0
WAIT_MS = 200  # of the watch's fetches


class Topics:
    """Partitions that grow, a reader of them, and the messages that it has read."""

    def __init__(self, address: str, count: int, name: str, limits: QuietLimits) -> None:
        """Write one message to each of `count` topics."""
        self._producer = Producer({"bootstrap.servers": address}, logger=LOGGER)
        self.places: list[Partition] = [(f"{name}-{number}", 0) for number in range(count)]
        self.written = dict.fromkeys(self.places, 0)
        self.taken: dict[Partition, list[int]] = {place: [] for place in self.places}
        for place in self.places:
            self.write(place)
        self.records = KafkaRecords(KafkaCluster(address), limits=limits)
        self.records.assign(dict.fromkeys(self.places, 0))

    def write(self, place: Partition) -> None:
        """Publish a message."""
        self._producer.produce(place[0], b"", partition=0)
        assert self._producer.flush(PATIENCE) == 0
        self.written[place] += 1

    def take(self) -> None:
        """Read the messages available now."""
        for chunk in self.records.take(100, 0.02).chunks:
            self.taken[chunk.partition] += chunk.offsets

    def take_all(self) -> None:
        """Read until all written messages have arrived."""
        deadline = time.monotonic() + PATIENCE
        while any(len(self.taken[place]) < self.written[place] for place in self.places):
            assert time.monotonic() < deadline, self.taken
            self.take()

    def rest(self) -> None:
        """Return once all partitions are quiet."""
        deadline = time.monotonic() + PATIENCE
        while self.records._quiet != set(self.places):
            assert time.monotonic() < deadline, self.records._quiet
            self.take()

    def require_each_once_in_order(self) -> None:
        """Raise unless each message arrived exactly once."""
        assert self.taken == {place: list(range(count)) for place, count in self.written.items()}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    owner = AdminClient({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1}, logger=LOGGER)
    (one,) = owner.list_topics(timeout=10).brokers.values()
    yield f"{one.host}:{one.port}"
    del owner  # the broker ends with the client that started it


LIMITS = QuietLimits(max_unwatched=1, quiet_seconds=0.0, search_seconds=0.0, fetch_wait_ms=WAIT_MS)
MANY_CLIENTS = replace(LIMITS, max_former=1, max_per_client=2)


@pytest.fixture(
    params=[LIMITS, MANY_CLIENTS],
    ids=["one client", "clients are replaced"],
)
def topics(address: str, request: pytest.FixtureRequest) -> Iterator[Topics]:
    made = Topics(address, 4, f"t{abs(hash(request.node.name))}", request.param)
    yield made
    made.records.close()


def test_by_default_a_partition_is_watched_after_ten_seconds_without_a_message() -> None:
    assert QuietLimits() == QuietLimits(
        max_unwatched=32,
        quiet_seconds=10.0,
        search_seconds=1.0,
        max_former=1000,
        max_per_client=1000,
        fetch_wait_ms=4000,
    )


def test_a_quiet_partition_is_not_fetched_until_a_message_arrives(topics: Topics) -> None:
    for _ in range(3):
        topics.take_all()
        topics.rest()
        topics.write(topics.places[0])
        topics.take_all()
        assert topics.places[0] not in topics.records._quiet
    topics.require_each_once_in_order()


def test_few_partitions_need_no_watch(address: str) -> None:
    topics = Topics(address, 4, "few", replace(LIMITS, max_unwatched=4))
    topics.take_all()
    for _ in range(20):
        topics.take()
    assert topics.records._watch is None
    topics.records.close()


def test_a_quiet_partition_is_unassigned_and_assigned_again(topics: Topics) -> None:
    topics.take_all()
    topics.rest()
    place = topics.places[1]
    topics.records.unassign([place])
    topics.write(place)
    topics.records.assign({place: 0})
    topics.taken[place] = []
    topics.take_all()
    topics.require_each_once_in_order()


def test_a_quiet_partition_that_is_paused_rests_until_it_is_resumed(topics: Topics) -> None:
    topics.take_all()
    topics.rest()
    place = topics.places[2]
    topics.records.pause([place])
    topics.write(place)
    for _ in range(20):
        topics.take()
    assert topics.taken[place] == [0]
    topics.records.resume([place])
    topics.take_all()
    topics.require_each_once_in_order()


@pytest.mark.parametrize("topics", [MANY_CLIENTS], indirect=True)
def test_a_client_that_has_handed_over_many_partitions_is_replaced_and_the_watch_has_several(
    topics: Topics,
) -> None:
    first = topics.records._consumer
    topics.take_all()
    topics.rest()
    topics.take()
    assert topics.records._consumer is not first
    assert topics.records._watch is not None
    assert [len(client.watched) for client in topics.records._watch._clients] == [2, 2]
    for place in topics.places:
        topics.write(place)
    topics.take_all()
    topics.require_each_once_in_order()


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 6))]
)
def test_whatever_happens_each_message_arrives_once_and_in_order(topics: Topics, seed: int) -> None:
    choice = random.Random(seed)
    for _ in range(120):
        place = choice.choice(topics.places)
        match choice.choice(("write", "write", "assign", "pause", "resume", "take", "take", "wait")):
            case "write":
                topics.write(place)
            case "assign":
                topics.records.assign({place: len(topics.taken[place])})
            case "pause":
                topics.records.pause([place])
            case "resume":
                topics.records.resume([place])
            case "wait":
                time.sleep(WAIT_MS / 1000 * choice.random())
            case _:
                topics.take()
    topics.records.resume(topics.places)
    topics.take_all()
    topics.require_each_once_in_order()
