"""The order of a reader's actions: results and dead letters before positions, and inboxes that are lost or closed."""

import threading
from collections.abc import Iterable

import pytest
from odf_testing.bus import MemoryBus, MemoryInbox, MemoryTopics

from odf_common.codec.envelopes import Envelope, envelope
from odf_common.errors import InvalidInput, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import (
    COORDINATOR_COMMANDS,
    COORDINATOR_REPLIES,
    DeadLetter,
    Inbox,
    OnAssigned,
    ReceivedMessage,
)
from odf_common.proto.odf.bus.v1.bus_pb2 import Committed, Propose
from odf_common.service.consumer.consumer_loop import Handler, OutgoingMessage, Reader, Subscription
from odf_common.service.consumer.message_lanes import MAX_IN_FLIGHT

DATASET = DatasetId.of_key(bytes(32))
POSITION = ("odf.test", COORDINATOR_COMMANDS)


class Stop(threading.Event):
    """Is set by the test, or after `looks` checks; pauses take no time."""

    def __init__(self, looks: int = 100) -> None:
        super().__init__()
        self.left = looks
        self.is_seen = threading.Event()
        self.pauses: list[float | None] = []

    def is_set(self) -> bool:
        self.left -= 1
        is_over = self.left < 0 or super().is_set()
        if is_over:
            self.is_seen.set()
        return is_over

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        return super().is_set()


class NotedInbox(MemoryInbox):
    """Records commits and closing; the first polls of the bus's inboxes fail."""

    noted: "NotedBus"

    def poll(self, timeout: float) -> ReceivedMessage | None:
        if self.noted.failing_polls > 0:
            self.noted.failing_polls -= 1
            raise Unavailable(what="Kafka")
        message = super().poll(timeout)
        self.noted.polled += message is not None
        return message

    def commit(self, message: ReceivedMessage) -> None:
        self.noted.acts.append(f"commit {message.offset}")
        super().commit(message)

    def close(self) -> None:
        self.noted.acts.append("close")


class NotedBus(MemoryBus):
    """Records the order of calls."""

    def __init__(self, *messages: Envelope) -> None:
        super().__init__()
        self.acts: list[str] = []
        self.polled = 0
        self.failing_polls = 0
        for message in messages:
            super().send(COORDINATOR_COMMANDS, message)

    def send(self, topic: str, envelope: Envelope) -> None:
        self.acts.append("send")
        super().send(topic, envelope)

    def send_dead_letter(self, letter: DeadLetter) -> None:
        self.acts.append("letter")
        super().send_dead_letter(letter)

    def flush(self, timeout: float = 10.0) -> None:
        super().flush(timeout)
        self.acts.append("flush")

    def subscribe(self, topic: str, *, group: str | None, on_assigned: OnAssigned | None = None) -> Inbox:
        self.acts.append("subscribe")
        inbox = NotedInbox(self, topic, group)
        inbox.noted = self
        return inbox


def message() -> Envelope:
    return envelope(DATASET, Propose())


def answering(cause: Envelope) -> Iterable[OutgoingMessage]:
    yield OutgoingMessage(topic=COORDINATOR_REPLIES, envelope=envelope(DATASET, Committed(), cause=cause))


def refusing(_: Envelope) -> Iterable[OutgoingMessage]:
    raise InvalidInput(text="nonsense")


def reading(bus: MemoryBus, handler: Handler, threads: int = 0) -> Reader:
    subscription = Subscription(topic=COORDINATOR_COMMANDS, handler=handler, threads=threads)
    return Reader(subscription, group="odf.test", bus=bus, topics=MemoryTopics())


def then(stop: Stop, handler: Handler) -> Handler:
    """Return a handler after which the reader stops."""

    def handle(one: Envelope) -> Iterable[OutgoingMessage]:
        stop.set()
        return handler(one)

    return handle


@pytest.mark.parametrize(("handler", "sent"), [(answering, "send"), (refusing, "letter")])
def test_a_position_moves_once_what_was_sent_has_arrived(handler: Handler, sent: str) -> None:
    bus, stop = NotedBus(message()), Stop()
    reading(bus, then(stop, handler)).run(stop)
    assert bus.acts == ["subscribe", sent, "flush", "commit 0", "close"]


@pytest.mark.parametrize("raw", [b"\xff", Envelope(dataset_id=str(DATASET)).SerializeToString()])
def test_a_dead_letter_that_did_not_arrive_leaves_its_message_in_its_place(raw: bytes) -> None:
    bus = NotedBus()
    bus.send_raw(COORDINATOR_COMMANDS, str(DATASET).encode(), raw)
    bus.losses = 1
    reading(bus, answering).run(Stop(looks=2))
    assert bus.acts == ["subscribe", "letter", "close"]
    assert bus.positions == {}


def test_a_lost_inbox_is_closed_and_after_a_pause_another_is_opened() -> None:
    bus, stop = NotedBus(message()), Stop()
    bus.failing_polls = 1
    reading(bus, then(stop, answering)).run(stop)
    assert bus.acts == ["subscribe", "close", "subscribe", "send", "flush", "commit 0", "close"]
    assert len(stop.pauses) == 1


def test_a_reader_that_is_stopped_before_it_could_open_an_inbox_ends() -> None:
    stop = Stop()

    class Lost(MemoryBus):
        def subscribe(self, topic: str, *, group: str | None, on_assigned: OnAssigned | None = None) -> Inbox:
            stop.set()
            raise Unavailable(what="Kafka")

    reading(Lost(), answering).run(stop)
    assert len(stop.pauses) == 1


def test_a_message_that_is_handled_while_the_reader_stops_is_committed() -> None:
    bus, stop = NotedBus(message()), Stop(looks=2)

    def slow(one: Envelope) -> Iterable[OutgoingMessage]:
        assert stop.is_seen.wait(10)
        return answering(one)

    reading(bus, slow, threads=1).run(stop)
    assert bus.acts == ["subscribe", "send", "flush", "commit 0", "close"]


def test_no_more_messages_are_read_while_too_many_are_in_flight() -> None:
    def unavailable(_: Envelope) -> Iterable[OutgoingMessage]:
        raise Unavailable(what="engine")

    bus = NotedBus(*[message()] * (MAX_IN_FLIGHT + 2))
    reading(bus, unavailable).run(Stop(looks=MAX_IN_FLIGHT + 2))
    assert bus.polled == MAX_IN_FLIGHT
