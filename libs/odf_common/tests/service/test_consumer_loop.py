import errno
import threading
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import cast

import pytest
from odf_testing.bus import MemoryBus, MemoryInbox, MemoryTopics
from odf_testing.guarded import GuardedDict

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
    ReceivedMessage,
)
from odf_common.proto.odf.bus.v1.bus_pb2 import Committed, Propose
from odf_common.service import metrics
from odf_common.service.consumer.consumer_loop import (
    MAX_ATTEMPTS_AFTER_BUG,
    Handler,
    OutgoingMessage,
    Reader,
    Subscription,
)
from odf_common.service.consumer.message_lanes import POSTPONED_BACKOFF, MessageLanes

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


def count_retries() -> float:
    (metric,) = metrics.RETRIES.collect()
    return sum(sample.value for sample in metric.samples if sample.name == "odf_retries_total")


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

    before = count_retries()
    run_until(bus, handler, lambda: bool(bus.positions))
    assert len(calls) == 4
    assert count_retries() == before + 3
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


def message(offset: int, key: bytes = b"a", partition: int = 0) -> ReceivedMessage:
    return ReceivedMessage(topic="t", partition=partition, offset=offset, key=key, value=b"x")


def settled(lanes: MessageLanes, claim: Callable[[], bool]) -> list[tuple[int, int]]:
    """Settle until the claim holds; returns the positions that became known."""
    positions: list[tuple[int, int]] = []
    deadline = time.monotonic() + 10
    while not claim() and time.monotonic() < deadline:
        positions += [(one.partition, one.offset) for one in lanes.settle()]
        time.sleep(0.002)
    assert claim()
    return positions + [(one.partition, one.offset) for one in lanes.settle()]


def test_a_position_waits_for_the_earliest_message_that_is_not_done() -> None:
    held = True

    def take(one: ReceivedMessage, _: int) -> None:
        if one.key == b"stuck" and held:
            raise Unavailable(what="lock")

    lanes = MessageLanes(take)
    for one in (message(0), message(1, b"stuck"), message(2), message(0, partition=1)):
        lanes.put(one)

    assert {(one.partition, one.offset) for one in lanes.settle()} == {(0, 0), (1, 0)}
    held = False
    time.sleep(0.06)
    lanes.settle()
    assert [(one.partition, one.offset) for one in lanes.settle()] == [(0, 2)]


def test_a_message_is_abandoned_after_a_while_together_with_those_after_it() -> None:
    tries: list[int] = []

    def take(one: ReceivedMessage, _: int) -> None:
        tries.append(one.offset)
        raise Unavailable(what="lock")

    lanes = MessageLanes(take, give_up_after=0.1)
    lanes.put(message(0))
    lanes.put(message(1))

    assert settled(lanes, lambda: 1 in tries) == [(0, 1)]
    assert tries.count(0) > 1
    assert tries[-1] == 1
    assert tries.count(1) == 1


def test_partitions_that_come_again_are_settled_again() -> None:
    lanes = MessageLanes(lambda *_: None)
    for offset in (5, 6, 5, 6, 7):
        lanes.put(message(offset))
    assert [one.offset for one in lanes.settle()] == [7]


def test_no_more_messages_are_taken_than_the_lanes_hold() -> None:
    freed = threading.Event()
    lanes = MessageLanes(lambda *_: assert_(freed.wait(10)), threads=2, limit=2)
    lanes.put(message(0, b"a"))
    assert lanes.has_room(0)
    lanes.put(message(1, b"b"))
    assert not lanes.has_room(0)
    assert not lanes.is_idle
    freed.set()
    assert lanes.has_room(10)
    lanes.close()
    assert lanes.is_idle
    assert [one.offset for one in lanes.settle()] == [1]


def test_a_message_that_is_done_makes_room_at_once() -> None:
    freed = threading.Event()
    lanes = MessageLanes(lambda *_: assert_(freed.wait(10)), threads=1, limit=1)
    lanes.put(message(0))
    began = time.monotonic()
    threading.Timer(0.05, freed.set).start()
    assert lanes.has_room(10)
    assert time.monotonic() - began < 5
    lanes.close()


def test_messages_not_started_before_closing_are_not_handled() -> None:
    begun, freed = threading.Event(), threading.Event()

    def take(*_: object) -> None:
        begun.set()
        assert freed.wait(10)

    lanes = MessageLanes(take, threads=1)
    lanes.put(message(0))
    lanes.put(message(1))
    assert begun.wait(10)
    threading.Timer(0.05, freed.set).start()
    lanes.close()
    assert [one.offset for one in lanes.settle()] == [0]


def test_an_error_unrelated_to_a_message_is_raised_to_the_reader() -> None:
    def take(*_: object) -> None:
        raise ZeroDivisionError

    lanes = MessageLanes(take, threads=1)
    lanes.put(message(0))
    with pytest.raises(ZeroDivisionError):
        settled(lanes, lambda: False)
    lanes.close()


def assert_(claim: bool) -> None:
    assert claim


def test_a_message_is_retried_after_its_pause_and_not_after_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, attempts = [100.0], list[int]()

    def take(_: ReceivedMessage, attempt: int) -> None:
        attempts.append(attempt)
        raise Unavailable(what="lock")

    def tried_at(now: float) -> int:
        clock[0] = now
        lanes.settle()
        return len(attempts)

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    lanes = MessageLanes(take)
    lanes.put(message(0))
    assert [tried_at(now) for now in (100.04, 100.0 + POSTPONED_BACKOFF.first, 100.1, 101.0)] == [1, 2, 2, 3]
    lanes.close()
    assert tried_at(110.0) == 3
    assert attempts == [1, 2, 3]


def test_a_message_that_waits_for_another_attempt_is_left_when_its_threads_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, now = threading.Event(), time.monotonic()

    def take(*_: object) -> None:
        begun.set()
        raise Unavailable(what="lock")

    lanes = MessageLanes(take, threads=1)
    lanes.put(message(0))
    assert begun.wait(10)
    lanes.close()
    monkeypatch.setattr(time, "monotonic", lambda: now + 10)
    assert lanes.settle() == []


def test_lanes_are_looked_up_and_changed_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    done, now = list[int](), time.monotonic()

    def take(one: ReceivedMessage, attempt: int) -> None:
        if (one.offset, attempt) == (0, 1):
            raise Unavailable(what="lock")
        done.append(one.offset)

    lanes = MessageLanes(take)
    lock = cast("threading.Lock", SimpleNamespace(locked=lanes._changed._is_owned))  # type: ignore[attr-defined]
    lanes._lanes, lanes._later = GuardedDict(lock), GuardedDict(lock)
    for offset in (0, 1):
        lanes.put(message(offset))
    monkeypatch.setattr(time, "monotonic", lambda: now + 10)
    lanes.settle()

    assert done == [0, 1]
    assert lanes.is_idle
