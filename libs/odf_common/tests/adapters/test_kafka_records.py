from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from odf_common.adapters.kafka import records
from odf_common.adapters.kafka.cluster import KafkaCluster
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
    monkeypatch.setattr(records, "new_consumer", Client)
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
    monkeypatch.setattr(records, "Message", SimpleNamespace(headers=unreadable))
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
