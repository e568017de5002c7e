"""How librdkafka handles paused partitions, with its mock broker."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from odf_common.adapters.kafka import client_config
from odf_common.adapters.kafka import records as kafka_records
from odf_common.adapters.kafka.client_config import LATE_LOG_SECONDS, LOGGER, note_connected
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.adapters.kafka.quiet_partitions import Partition, QuietLimits
from odf_common.adapters.kafka.records import KafkaRecords
from odf_common.errors import Unavailable


def a_message(
    at: tuple[str, int], offset: int, value: bytes | None = b"x", news: KafkaError | None = None
) -> Message:
    return Message(
        topic=at[0], partition=at[1], offset=offset, value=value, error=news, timestamp=(1, offset * 1000)
    )


class Client:
    """A consumer that returns configured messages."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.messages: list[Message] = []
        self.calls: list[tuple[str, list[tuple[str, int, int]]]] = []
        self.failure: KafkaException | None = None
        self.requests: list[list[tuple[str, int]]] = []  # partitions whose leaders were requested

    def consume(self, count: int, timeout: float) -> list[Message]:
        if self.failure is not None:
            raise self.failure
        found, self.messages = self.messages[:count], self.messages[count:]
        return found

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> None:
        assert timeout == 0, "the reader's thread does not wait for an answer"
        self.requests.append([(place.topic, place.partition) for place in places])
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def __getattr__(self, name: str) -> Callable[[list[TopicPartition]], None]:
        def note(places: list[TopicPartition]) -> None:
            self.calls.append(
                (name, sorted((place.topic, place.partition, place.offset) for place in places))
            )

        return note


A, B = ("a", 0), ("b", 1)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> tuple[KafkaRecords, Client]:
    monkeypatch.setattr(kafka_records, "new_consumer", Client)
    made = KafkaRecords(KafkaCluster("localhost:1"))
    client: Any = made._consumer
    return made, client


def test_messages_of_one_partition_are_one_chunk(reader: tuple[KafkaRecords, Client]) -> None:
    made, client = reader
    made.assign({A: 5})
    client.messages = [a_message(A, 5, b"one"), a_message(A, 6, None), a_message(A, 7, b"two")]
    (chunk,) = made.take(10, 0).chunks
    assert chunk.partition == A
    assert chunk.values == [b"one", None, b"two"]
    assert chunk.offsets == range(5, 8)
    assert chunk.timestamps() == [5000, 6000, 7000]


def test_keys_and_the_last_header_of_each_name_belong_to_a_chunk(reader: tuple[KafkaRecords, Client]) -> None:
    made, client = reader
    made.assign({A: 0})
    named: list[tuple[str, str | bytes | None]] = [("h", b"1"), ("h", b"2"), ("none", None)]
    client.messages = [
        Message(topic="a", partition=0, offset=0, value=b"x", key=b"k", headers=named),
        a_message(A, 1),
    ]
    (chunk,) = made.take(10, 0).chunks
    assert chunk.keys() == [b"k", None]
    assert chunk.headers(("h", "none")) == {"h": [b"2", None], "none": [None, None]}


def test_headers_whose_names_are_not_text_are_ignored(
    reader: tuple[KafkaRecords, Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: Message) -> None:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")

    made, client = reader
    made.assign({A: 0})
    client.messages = [a_message(A, 0)]
    (chunk,) = made.take(10, 0).chunks
    monkeypatch.setattr(kafka_records, "Message", SimpleNamespace(headers=unreadable))
    (value,) = chunk.headers(("h",))["h"]
    with pytest.raises(UnicodeDecodeError):
        (value or b"").decode()


def test_offsets_with_gaps_are_kept_one_by_one(reader: tuple[KafkaRecords, Client]) -> None:
    made, client = reader
    made.assign({A: 0})
    client.messages = [a_message(A, 0), a_message(A, 4)]
    (chunk,) = made.take(10, 0).chunks
    assert list(chunk.offsets) == [0, 4]


def test_partitions_are_told_apart_and_each_keeps_its_order(reader: tuple[KafkaRecords, Client]) -> None:
    made, client = reader
    made.assign({A: 0, B: 0})
    client.messages = [a_message(A, 0), a_message(B, 0), a_message(A, 1), a_message(("gone", 0), 3)]
    assert [(chunk.partition, list(chunk.offsets)) for chunk in made.take(10, 0).chunks] == [
        (A, [0, 1]),
        (B, [0]),
    ]


def test_ends_and_faults_are_reported_and_are_no_messages(reader: tuple[KafkaRecords, Client]) -> None:
    made, client = reader
    made.assign({A: 0, B: 0})
    client.messages = [
        a_message(A, 0),
        a_message(A, 1, news=KafkaError(KafkaError._PARTITION_EOF)),
        a_message(B, 9, news=KafkaError(KafkaError.OFFSET_OUT_OF_RANGE, "out of range")),
        a_message(B, 9, news=KafkaError(KafkaError._TRANSPORT)),
    ]
    taken = made.take(10, 0)
    assert [len(chunk.values) for chunk in taken.chunks] == [1]
    assert taken.ends == {A: 1}
    assert list(taken.faults) == [B]


def test_assigning_again_moves_a_partition_and_leaves_the_others(reader: tuple[KafkaRecords, Client]) -> None:
    made, client = reader
    made.assign({A: 0, B: 0})
    made.assign({A: 7})
    made.unassign([A, ("unknown", 0)])
    assert client.calls == [
        ("incremental_assign", [("a", 0, 0), ("b", 1, 0)]),
        ("incremental_unassign", [("a", 0, -1001)]),
        ("incremental_assign", [("a", 0, 7)]),
        ("incremental_unassign", [("a", 0, -1001)]),
    ]


def test_leaders_of_newly_assigned_partitions_are_requested_at_once(
    reader: tuple[KafkaRecords, Client],
) -> None:
    made, client = reader
    made.assign({})
    made.assign({A: 0, B: 0})
    made.assign({("c", 0): 0})
    assert client.requests == [[A, B], [("c", 0)]]


def test_positions_of_a_group_are_never_used(reader: tuple[KafkaRecords, Client]) -> None:
    _, client = reader
    assert client.config["enable.auto.commit"] is False
    assert client.config["auto.offset.reset"] == "error"


def test_a_client_that_fails_is_unavailable(reader: tuple[KafkaRecords, Client]) -> None:
    made, client = reader
    client.failure = KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    with pytest.raises(Unavailable):
        made.take(1, 0)


REFUSED = "FAIL [thrd:a]: a: Connect to ipv4#127.0.0.1:9 failed: Connection refused"


def test_refused_connections_are_errors_only_after_the_broker_has_answered(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    starting = client_config._StartupFilter()
    monkeypatch.setattr(client_config, "_STARTING", starting)
    monkeypatch.setattr(LOGGER, "filters", [starting])
    LOGGER.error(REFUSED)
    LOGGER.error("FAIL [thrd:a]: a: SSL handshake failed")
    note_connected()
    LOGGER.error(REFUSED)  # from before: the client was polled only now
    monkeypatch.setattr(starting, "ends_at", starting.ends_at - LATE_LOG_SECONDS)
    note_connected()
    LOGGER.error(REFUSED)
    assert [(one.levelname, "refused" in one.message) for one in caplog.records] == [
        ("ERROR", False),
        ("ERROR", True),
    ]


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
