import errno
import threading
import time
from collections.abc import Callable, Iterable
from typing import cast

import pytest
from odf_testing.bus import MemoryBus, MemoryInbox, MemoryTopics

from odf_common.adapters.kafka.cluster import partition_of
from odf_common.codec.envelopes import Envelope, body_of, decode, envelope
from odf_common.errors import InvalidInput, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import (
    COORDINATOR_COMMANDS,
    COORDINATOR_REPLIES,
    FIXED_TOPICS,
    PARTITIONS,
    Inbox,
    OnAssigned,
)
from odf_common.proto.odf.bus.v1.bus_pb2 import Committed, Propose
from odf_common.service.consumer.consumer_loop import (
    MAX_ATTEMPTS_AFTER_BUG,
    Handler,
    OutgoingMessage,
    Reader,
    Subscription,
)

DATASET = DatasetId.of_key(bytes(32))
OTHER = next(  # in the same partition
    one
    for one in (DatasetId.of_key(bytes(31) + bytes([number])) for number in range(1, 256))
    if partition_of(str(one).encode()) == partition_of(str(DATASET).encode())
)


def answering(envelope_: Envelope) -> Iterable[OutgoingMessage]:
    yield OutgoingMessage(topic=COORDINATOR_REPLIES, envelope=envelope(DATASET, Committed(), cause=envelope_))


def run_until(
    bus: MemoryBus, handler: Handler, claim: Callable[[], bool], *, group: bool = True, threads: int = 0
) -> MemoryTopics:
    """Run a reader until the claim holds; what it raises is raised here."""
    topics = MemoryTopics()
    reader = Reader(
        Subscription(topic=COORDINATOR_COMMANDS, handler=handler, group=group, threads=threads),
        group="odf.test",
        bus=bus,
        topics=topics,
    )
    stop = threading.Event()
    raised: list[Exception] = []

    def run() -> None:
        try:
            reader.run(stop)
        except Exception as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 5
    try:
        while thread.is_alive() and not claim() and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        stop.set()
        thread.join(5)
    assert not thread.is_alive()
    if raised:
        raise raised[0]
    assert claim()
    return topics


def test_results_are_sent_and_then_the_position_moves() -> None:
    bus = MemoryBus()
    bus.send(COORDINATOR_COMMANDS, envelope(DATASET, Propose()))
    topics = run_until(bus, answering, lambda: bus.positions.get(("odf.test", COORDINATOR_COMMANDS)) == 1)
    (answer,) = bus.topics[COORDINATOR_REPLIES]
    assert isinstance(body_of(decode(*answer)), Committed)
    assert set(topics.names) == set(FIXED_TOPICS)


def test_an_unreachable_dependency_is_retried() -> None:
    bus = MemoryBus()
    bus.losses = 2
    bus.send(COORDINATOR_COMMANDS, envelope(DATASET, Propose()))
    calls = []

    def handler(message: Envelope) -> Iterable[OutgoingMessage]:
        calls.append(message.message_id)
        if len(calls) == 1:
            raise Unavailable(what="engine")
        return answering(message)

    run_until(bus, handler, lambda: bool(bus.positions))
    assert len(calls) == 4
    assert bus.letters == []


def test_an_error_of_ours_is_a_dead_letter_and_the_next_message_is_handled() -> None:
    bus = MemoryBus()
    bus.send(COORDINATOR_COMMANDS, envelope(DATASET, Propose(system_time={"seconds": 1})))
    bus.send(COORDINATOR_COMMANDS, envelope(DATASET, Propose(system_time={"seconds": 2})))

    def handler(message: Envelope) -> Iterable[OutgoingMessage]:
        if message.propose.system_time.seconds == 1:
            raise InvalidInput(text="nonsense")
        return answering(message)

    run_until(bus, handler, lambda: bus.positions.get(("odf.test", COORDINATOR_COMMANDS)) == 2)
    (letter,) = bus.letters
    assert (letter.topic, letter.offset) == (COORDINATOR_COMMANDS, 0)
    assert letter.reason == "InvalidInput: nonsense"
    assert len(bus.topics[COORDINATOR_REPLIES]) == 1


@pytest.mark.parametrize("value", [b"\xff", b""])
def test_an_invalid_message_is_a_dead_letter(value: bytes) -> None:
    bus = MemoryBus()
    bus.send_raw(COORDINATOR_COMMANDS, b"did:odf:x", value)
    run_until(bus, answering, lambda: bool(bus.positions))
    assert [letter.value for letter in bus.letters] == [value]


@pytest.mark.parametrize("may_ignore", [True, False])
def test_an_unknown_kind_is_skipped_if_allowed(may_ignore: bool) -> None:
    bus = MemoryBus()
    raw = Envelope(dataset_id=str(DATASET), may_ignore=may_ignore).SerializeToString()
    bus.send_raw(COORDINATOR_COMMANDS, str(DATASET).encode(), raw)
    run_until(bus, answering, lambda: bool(bus.positions))
    assert len(bus.letters) == (0 if may_ignore else 1)


def test_a_bug_is_a_dead_letter_on_the_third_attempt_and_ends_nothing_else() -> None:
    bus = MemoryBus()
    bus.send(COORDINATOR_COMMANDS, envelope(DATASET, Propose(system_time={"seconds": 1})))
    bus.send(COORDINATOR_COMMANDS, envelope(DATASET, Propose(system_time={"seconds": 2})))
    calls = []

    def handler(message: Envelope) -> Iterable[OutgoingMessage]:
        calls.append(message.propose.system_time.seconds)
        if message.propose.system_time.seconds == 1:
            raise ZeroDivisionError
        return answering(message)

    run_until(bus, handler, lambda: bus.positions.get(("odf.test", COORDINATOR_COMMANDS)) == 2)
    assert calls == [1, 1, 1, 2]
    assert [letter.reason for letter in bus.letters] == ["ZeroDivisionError on attempt 3"]


def test_a_full_disk_delays_a_message_and_makes_no_dead_letter() -> None:
    bus = MemoryBus()
    bus.send(COORDINATOR_COMMANDS, envelope(DATASET, Propose()))
    failures = [OSError(errno.ENOSPC, "full")] * (MAX_ATTEMPTS_AFTER_BUG + 1)

    def handler(message: Envelope) -> Iterable[OutgoingMessage]:
        if failures:
            raise failures.pop()
        return answering(message)

    run_until(bus, handler, lambda: bus.positions.get(("odf.test", COORDINATOR_COMMANDS)) == 1)
    assert (failures, bus.letters) == ([], [])


def test_a_stop_during_retries_leaves_the_message_for_the_next_reader() -> None:
    bus = MemoryBus()
    bus.send(COORDINATOR_COMMANDS, envelope(DATASET, Propose()))
    tried = threading.Event()

    def handler(_: Envelope) -> Iterable[OutgoingMessage]:
        tried.set()
        raise Unavailable(what="engine")

    run_until(bus, handler, tried.is_set)
    assert bus.positions == {}


@pytest.mark.parametrize("threads", [0, 4])
def test_an_unavailable_dataset_does_not_delay_others_and_keeps_its_order(threads: int) -> None:
    bus = MemoryBus()
    freed = threading.Event()
    answered: list[tuple[str, int]] = []
    for number in (1, 2):
        bus.send(COORDINATOR_COMMANDS, envelope(DATASET, Propose(system_time={"seconds": number})))
        bus.send(COORDINATOR_COMMANDS, envelope(OTHER, Propose(system_time={"seconds": number})))

    def handler(message: Envelope) -> Iterable[OutgoingMessage]:
        if message.dataset_id == str(DATASET) and not freed.is_set():
            raise Unavailable(what="lock")
        answered.append((message.dataset_id, message.propose.system_time.seconds))
        return answering(message)

    def free_once_the_other_is_done() -> bool:
        if len(answered) == 2 and not freed.is_set():
            assert answered == [(str(OTHER), 1), (str(OTHER), 2)]
            assert bus.positions == {}
            freed.set()
        return bus.positions.get(("odf.test", COORDINATOR_COMMANDS)) == 4

    run_until(bus, handler, free_once_the_other_is_done, threads=threads)
    assert answered[2:] == [(str(DATASET), 1), (str(DATASET), 2)]
    assert bus.letters == []


def test_handlers_that_block_do_not_delay_other_datasets() -> None:
    bus = MemoryBus()
    done = threading.Event()
    bus.send(COORDINATOR_COMMANDS, envelope(DATASET, Propose()))
    bus.send(COORDINATOR_COMMANDS, envelope(OTHER, Propose()))

    def handler(message: Envelope) -> Iterable[OutgoingMessage]:
        if message.dataset_id == str(OTHER):
            done.set()
        assert done.wait(10)
        return answering(message)

    at_end = ("odf.test", COORDINATOR_COMMANDS)
    run_until(bus, handler, lambda: bus.positions.get(at_end) == 2, threads=2)
    assert len(bus.topics[COORDINATOR_REPLIES]) == 2


def test_a_reader_is_ready_once_partitions_are_assigned_and_says_which() -> None:
    bus, topics, assigned = MemoryBus(), MemoryTopics(), list[frozenset[int]]()
    inboxes: list[MemoryInbox] = []
    reassign: list[OnAssigned] = []
    subscribe = bus.subscribe

    def unassigned(topic: str, *, group: str | None, on_assigned: OnAssigned | None = None) -> Inbox:
        inbox = cast("MemoryInbox", subscribe(topic, group=group, on_assigned=on_assigned))
        inboxes.append(inbox)
        assert on_assigned is not None
        reassign.append(on_assigned)
        inbox.has_assignment = False
        return inbox

    bus.subscribe = unassigned  # type: ignore[method-assign]
    subscription = Subscription(topic=COORDINATOR_COMMANDS, handler=answering, on_assigned=assigned.append)
    reader = Reader(subscription, group="odf.test", bus=bus, topics=topics)
    stop = threading.Event()
    thread = threading.Thread(target=reader.run, args=(stop,), daemon=True)
    thread.start()
    try:
        assert not reader.ready.wait(0.05)
        inboxes[0].has_assignment = True
        assert reader.ready.wait(5)
        reassign[0](frozenset())
        assert assigned == [frozenset(range(PARTITIONS)), frozenset()]
    finally:
        stop.set()
        thread.join(5)
