import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
from odf_testing.guarded import GuardedDict

from odf_common.errors import Unavailable
from odf_common.ports.bus import ReceivedMessage
from odf_common.service.consumer.message_lanes import POSTPONED_BACKOFF, MessageLanes


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
