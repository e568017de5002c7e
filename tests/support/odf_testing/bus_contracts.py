"""Contracts of the ports `Bus` and `Topics` as tests; see `contracts`."""

import time

import pytest

from odf_common.codec.envelopes import decode, envelope
from odf_common.errors import InvalidInput, NotFound
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import (
    COORDINATOR_COMMANDS,
    DEAD_LETTERS,
    NOTIFICATIONS,
    PARTITIONS,
    Bus,
    DeadLetter,
    Inbox,
    ReceivedMessage,
    TopicInfo,
    Topics,
)
from odf_common.proto.odf.bus.v1.bus_pb2 import ImportChain
from odf_testing.contracts import a_dataset

PATIENCE_SECONDS = 30.0
QUIET_SECONDS = 0.5


def send(bus: Bus, topic: str, dataset: DatasetId, numbers: range) -> None:
    """Send numbered messages, and return when they are durable."""
    for number in numbers:
        bus.send(topic, envelope(dataset, ImportChain(new_head=bytes([number]))))
    bus.flush()


def numbers(messages: list[ReceivedMessage]) -> dict[DatasetId, list[int]]:
    """Return the numbers of messages by dataset, in the order of their arrival."""
    found: dict[DatasetId, list[int]] = {}
    for message in messages:
        one = decode(message.key, message.value)
        found.setdefault(DatasetId.parse(one.dataset_id), []).append(one.import_chain.new_head[0])
    return found


def take(inbox: Inbox, count: int) -> list[ReceivedMessage]:
    """Return the next `count` messages, after which none follows for a while."""
    found: list[ReceivedMessage] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages arrived"
        found += waiting(inbox)
    quiet = time.monotonic() + QUIET_SECONDS
    while time.monotonic() < quiet:
        found += waiting(inbox)
    assert len(found) == count
    return found


def waiting(inbox: Inbox) -> list[ReceivedMessage]:
    """Return a message if one arrives soon."""
    message = inbox.poll(0.1)
    return [] if message is None else [message]


class BusContract:
    """Messages of a dataset arrive in order, again until they are committed. Fixture: `bus`, its fixed topics empty."""

    def test_messages_of_a_dataset_arrive_in_the_order_in_which_they_were_sent(self, bus: Bus) -> None:
        """In one partition of the topic."""
        for start in (0, 50):
            for one in (1, 2, 3):
                send(bus, COORDINATOR_COMMANDS, a_dataset(one), range(start, start + 50))
        inbox = bus.subscribe(COORDINATOR_COMMANDS, group="readers")
        found = take(inbox, 300)
        assert numbers(found) == {a_dataset(one): list(range(100)) for one in (1, 2, 3)}
        assert len({(message.key, message.partition) for message in found}) == 3
        inbox.close()

    def test_uncommitted_messages_are_delivered_again_to_the_same_group(self, bus: Bus) -> None:
        """And only that; another group has separate positions."""
        send(bus, COORDINATOR_COMMANDS, a_dataset(), range(3))
        inbox = bus.subscribe(COORDINATOR_COMMANDS, group="readers")
        first, *_ = take(inbox, 3)
        inbox.commit(first)
        inbox.close()
        for group, left in (("readers", [1, 2]), ("others", [0, 1, 2])):
            inbox = bus.subscribe(COORDINATOR_COMMANDS, group=group)
            assert numbers(take(inbox, len(left))) == {a_dataset(): left}
            inbox.close()

    def test_without_a_group_every_inbox_receives_later_messages(self, bus: Bus) -> None:
        """Earlier messages are not delivered."""
        send(bus, NOTIFICATIONS, a_dataset(), range(2))
        inboxes = [bus.subscribe(NOTIFICATIONS, group=None) for _ in range(2)]
        send(bus, NOTIFICATIONS, a_dataset(), range(2, 5))
        for inbox in inboxes:
            assert numbers(take(inbox, 3)) == {a_dataset(): [2, 3, 4]}
            inbox.close()

    def test_the_only_member_of_a_group_is_assigned_all_partitions(self, bus: Bus) -> None:
        """Its callback hears of them before the first message."""
        assigned: list[frozenset[int]] = []
        send(bus, COORDINATOR_COMMANDS, a_dataset(), range(1))
        inbox = bus.subscribe(COORDINATOR_COMMANDS, group="readers", on_assigned=assigned.append)
        take(inbox, 1)
        assert inbox.has_assignment
        assert assigned[-1] == frozenset(range(PARTITIONS))
        inbox.close()

    def test_a_dead_letter_has_its_key_and_value(self, bus: Bus) -> None:
        """Any bytes."""
        letter = DeadLetter(
            topic="t", partition=1, offset=2, reason="why", key=b"\x00key", value=b"\xff\x00value"
        )
        bus.send_dead_letter(letter)
        bus.flush()
        inbox = bus.subscribe(DEAD_LETTERS, group="readers")
        (found,) = take(inbox, 1)
        assert (found.key, found.value) == (letter.key, letter.value)
        inbox.close()


class TopicsContract:
    """Topics are created once, described, and deleted. Fixtures: `topics`, and `name`, which no topic has."""

    def test_fixed_topics_are_created_under_the_prefix_unless_they_exist(
        self, topics: Topics, name: str
    ) -> None:
        """An existing topic is unchanged."""
        topics.ensure_topics([name], 2)
        first = topics.topic_id(topics.prefix + name)
        topics.ensure_topics([name, f"{name}.other"], 3)
        assert topics.topic_id(topics.prefix + name) == first
        assert topics.partitions(topics.prefix + name) == 2
        assert topics.partitions(f"{topics.prefix}{name}.other") == 3

    def test_an_existing_push_topic_is_left_unchanged(self, topics: Topics, name: str) -> None:
        """Its name is complete."""
        topics.create_push_topic(name, 2)
        topics.create_push_topic(name, 5)
        assert topics.partitions(name) == 2
        assert topics.watermarks(name, 1) == (0, 0)

    def test_known_topics_are_described_and_others_are_not_found(self, topics: Topics, name: str) -> None:
        """In one answer."""
        topics.create_push_topic(name, 2)
        found = topics.describe([name, f"{name}.other"])
        assert found[name] == TopicInfo(topic_id=topics.topic_id(name), low={0: 0, 1: 0}, high={0: 0, 1: 0})
        assert isinstance(found[f"{name}.other"], NotFound)
        assert topics.describe([]) == {}

    def test_a_topic_that_is_created_again_has_another_id(self, topics: Topics, name: str) -> None:
        """Positions in the old one mean nothing in the new one."""
        topics.create_push_topic(name)
        first = topics.topic_id(name)
        topics.delete_topic(name)
        await_gone(topics, name)
        topics.create_push_topic(name)
        assert topics.topic_id(name) != first

    def test_partitions_become_more_and_never_fewer(self, topics: Topics, name: str) -> None:
        """It stays the same topic."""
        topics.create_push_topic(name, 2)
        first = topics.topic_id(name)
        for total in (2, 3):
            topics.add_partitions(name, total)
            assert topics.partitions(name) == total
        with pytest.raises(InvalidInput, match="has 3"):
            topics.add_partitions(name, 1)
        for kept in (3_600_000, None):
            topics.set_retention(name, kept)
        assert (topics.partitions(name), topics.topic_id(name)) == (3, first)

    def test_a_missing_topic_is_not_found(self, topics: Topics, name: str) -> None:
        """For every request; deleting it does nothing."""
        topics.delete_topic(name)
        for question in (
            topics.topic_id,
            topics.partitions,
            lambda one: topics.watermarks(one, 0),
            lambda one: topics.add_partitions(one, 2),
            lambda one: topics.set_retention(one, None),
        ):
            with pytest.raises(NotFound):
                question(name)


def await_gone(topics: Topics, name: str) -> None:
    """Return when a deleted topic has disappeared, which takes a broker a while."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not isinstance(topics.describe([name])[name], NotFound):
        assert time.monotonic() < deadline
        time.sleep(0.05)
