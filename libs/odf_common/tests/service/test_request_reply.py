"""Matching replies to callers, and timeouts."""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import pytest
from odf_testing.bus import MemoryBus

from odf_common.codec.envelopes import Envelope, body_of, decode, envelope
from odf_common.errors import Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import COORDINATOR_COMMANDS, COORDINATOR_REPLIES
from odf_common.proto.odf.bus.v1.bus_pb2 import Committed, ImportChain
from odf_common.service.request_reply import Replies, _Pending

DATASET = DatasetId.of_key(bytes(32))
SECONDS = 30.0  # more than any test waits


class AnsweringBus(MemoryBus):
    """Replies to each command when it is flushed, with `answer`."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: Callable[[Envelope], Iterable[Envelope]] = lambda _: ()
        self.replies = Replies(self)
        self._answered = 0

    def flush(self, timeout: float = 10.0) -> None:
        super().flush(timeout)
        sent = self.topics[COORDINATOR_COMMANDS]
        waiting, self._answered = sent[self._answered :], len(sent)
        for key, value in waiting:
            for reply in self.answer(decode(key, value)):
                assert self.replies.handle(reply) == ()


@pytest.fixture
def bus() -> AnsweringBus:
    bus = AnsweringBus()
    bus.replies.on_assigned(frozenset({0}))
    return bus


def committed(number: int, cause: Envelope) -> Envelope:
    return envelope(DATASET, Committed(head=bytes([number])), cause=cause)


def request(bus: AnsweringBus, number: int = 1, timeout: float = SECONDS) -> Envelope | None:
    command = ImportChain(new_head=bytes([number]))
    return bus.replies.request(COORDINATOR_COMMANDS, DATASET, command, timeout=timeout)


def head_in(reply: Envelope | None) -> bytes:
    assert reply is not None
    body = body_of(reply)
    assert isinstance(body, Committed)
    return body.head


def test_a_command_is_sent_for_its_dataset_and_its_reply_returned(bus: AnsweringBus) -> None:
    bus.answer = lambda command: [committed(command.import_chain.new_head[0] + 1, command)]
    assert [head_in(request(bus, number)) for number in (1, 2)] == [bytes([2]), bytes([3])]
    sent = [decode(*one) for one in bus.topics[COORDINATOR_COMMANDS]]
    assert [one.dataset_id for one in sent] == [str(DATASET)] * 2
    assert len({one.correlation_id for one in sent}) == 2


def test_each_of_several_callers_gets_its_own_reply_in_any_order(bus: AnsweringBus) -> None:
    commands: list[Envelope] = []

    def collect(command: Envelope) -> Iterable[Envelope]:
        commands.append(command)
        return ()

    bus.answer = collect
    with ThreadPoolExecutor(2) as pool:
        one, two = (pool.submit(request, bus, number) for number in (1, 2))
        while len(commands) < 2:
            threading.Event().wait(0.001)
        for command in sorted(commands, key=lambda each: each.import_chain.new_head, reverse=True):
            bus.replies.handle(committed(command.import_chain.new_head[0], command))
    assert (head_in(one.result()), head_in(two.result())) == (bytes([1]), bytes([2]))


def test_replies_to_other_processes_and_late_ones_are_no_answer(bus: AnsweringBus) -> None:
    foreign = envelope(DATASET, Committed(), correlation_id="of another process")
    bus.answer = lambda _: [foreign]
    assert request(bus, timeout=0.01) is None
    late = committed(1, decode(*bus.topics[COORDINATOR_COMMANDS][0]))
    bus.answer = lambda command: [late, committed(2, command)]
    assert head_in(request(bus, 2)) == bytes([2])


def test_a_failed_send_is_raised_and_no_longer_waited_for(bus: AnsweringBus) -> None:
    bus.losses = 1
    with pytest.raises(Unavailable):
        request(bus)


def test_a_caller_is_woken_once_its_reply_arrives(bus: AnsweringBus) -> None:
    class Woken(threading.Event):
        def set(self) -> None:
            assert pending().answer is not None
            super().set()

    def pending() -> _Pending:
        (found,) = bus.replies._waiting.values()
        return found

    def answer(command: Envelope) -> Iterable[Envelope]:
        pending().arrived = Woken()
        return [committed(1, command)]

    bus.answer = answer
    assert head_in(request(bus)) == bytes([1])


def test_no_command_is_sent_before_replies_are_received() -> None:
    bus = AnsweringBus()
    bus.answer = lambda command: [committed(1, command)]
    subscription = bus.replies.subscription(COORDINATOR_REPLIES)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(request, bus)
        threading.Event().wait(0.05)
        assert not bus.topics[COORDINATOR_COMMANDS]
        assert subscription.on_assigned is not None
        subscription.on_assigned(frozenset({0}))
        assert head_in(asked.result()) == bytes([1])


def test_replies_are_read_by_every_process_and_from_now_on() -> None:
    subscription = Replies(MemoryBus()).subscription(COORDINATOR_REPLIES)
    assert subscription.topic == COORDINATOR_REPLIES
    assert not subscription.group


def test_without_replies_a_command_is_sent_all_the_same_after_the_timeout() -> None:
    bus = AnsweringBus()
    assert request(bus, timeout=0.01) is None
    assert len(bus.topics[COORDINATOR_COMMANDS]) == 1
    assert not bus.replies._waiting


def test_the_wait_for_the_subscription_is_part_of_the_timeout() -> None:
    class Timed(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout)
            return False

    def never(_: Envelope) -> Iterable[Envelope]:
        (pending,) = bus.replies._waiting.values()
        pending.arrived = Timed()
        return ()

    waited: list[float | None] = []
    bus = AnsweringBus()
    bus.answer = never
    assert request(bus, timeout=0.05) is None
    (left,) = waited
    assert left is not None
    assert left < 0.02
