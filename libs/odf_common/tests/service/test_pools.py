import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from odf_common.errors import StorageUnavailable, Unavailable
from odf_common.ports.clock import Backoff
from odf_common.service.consumer.pools import ElasticLimit, ElasticPool, SerialQueue
from odf_common.service.consumer.retry import keep_trying


def test_stalled_tasks_take_no_thread_from_others() -> None:
    pool, release = ElasticPool(2, name="test", stalled=0.02), threading.Event()
    stalled = [pool.submit(release.wait, 10) for _ in range(12)]
    assert pool.submit(lambda: "done").result(10) == "done"
    release.set()
    assert all(one.result(10) for one in stalled)


def test_tasks_that_stall_later_take_no_thread_either() -> None:
    pool = ElasticPool(1, name="test", stalled=0.02)
    for _ in range(3):
        release = threading.Event()
        stalled = [pool.submit(release.wait, 10) for _ in range(pool.workers + 2)]
        assert pool.submit(lambda: "done").result(5) == "done"
        release.set()
        assert all(one.result(10) for one in stalled)
        time.sleep(0.05)  # nothing waits, and nothing checks for stalled tasks


def test_no_more_tasks_run_at_once_than_configured_while_none_stalls() -> None:
    pool, now, most = ElasticPool(2, name="test", stalled=60), 0, 0
    guard = threading.Lock()

    def task() -> None:
        nonlocal now, most
        with guard:
            now += 1
            most = max(most, now)
        time.sleep(0.001)
        with guard:
            now -= 1

    for one in [pool.submit(task) for _ in range(50)]:
        one.result(10)
    assert most <= 2
    assert pool.workers <= 2


def test_threads_beyond_the_usual_number_end() -> None:
    pool, release = ElasticPool(1, name="test", stalled=0.01), threading.Event()
    stalled = [pool.submit(release.wait, 10) for _ in range(6)]
    assert pool.submit(lambda: 1).result(10) == 1
    release.set()
    assert all(one.result(10) for one in stalled)
    deadline = time.monotonic() + 10
    while pool.workers > 1:
        assert time.monotonic() < deadline
        assert pool.submit(lambda: 1).result(10) == 1


def test_tasks_are_counted_by_one_thread_at_a_time() -> None:
    lock, begun, counted = threading.Lock(), threading.Event(), threading.Event()
    was_locked: list[bool] = []

    class Noting(ElasticLimit):
        def begin(self) -> int:
            was_locked.append(lock.locked())
            return super().begin()

        def end(self, number: int) -> None:
            was_locked.append(lock.locked())
            super().end(number)
            counted.set()

    pool = ElasticPool(1, name="test")
    pool._limit, pool._changed = Noting(1, most=1), threading.Condition(lock)
    pool.submit(begun.wait, 10)
    begun.set()  # after `submit` has released the lock
    assert counted.wait(10)
    assert was_locked == [True, True]
    with lock:
        assert pool.workers == 1, "it waits for the next task"


def test_an_error_is_that_of_its_task_alone() -> None:
    pool = ElasticPool(1, name="test")
    bad = pool.submit(lambda: 1 // 0)
    assert pool.submit(lambda: 1).result(10) == 1
    with pytest.raises(ZeroDivisionError):
        bad.result(10)


def test_a_queue_keeps_its_order_and_a_stalled_one_does_not_delay_others() -> None:
    pool, release = ElasticPool(1, name="test", stalled=0.02), threading.Event()
    stuck, other = SerialQueue(pool), SerialQueue(pool)
    waiting = [stuck.submit(lambda: release.wait(10)) for _ in range(20)]
    order: list[int] = []
    for one in [other.submit(partial(order.append, number)) for number in range(50)]:
        one.result(10)
    assert order == list(range(50))
    assert pool.workers <= 2
    release.set()
    assert all(one.result(10) for one in waiting)


def test_a_queue_that_was_empty_runs_later_tasks() -> None:
    begun: list[Callable[[], None]] = []
    queue = SerialQueue(cast("Executor", SimpleNamespace(submit=begun.append)))
    for number in range(2):
        answer = queue.submit(lambda: number)  # noqa: B023
        begun.pop()()
        assert answer.result(0) == number
        assert begun == [], "it takes no thread while it has no task"


def test_a_queue_continues_after_a_task_that_fails() -> None:
    with ThreadPoolExecutor(1) as pool:
        queue = SerialQueue(pool)
        bad = queue.submit(lambda: 1 // 0)
        assert queue.submit(lambda: 2).result(10) == 2
        assert isinstance(bad.exception(10), ZeroDivisionError)


def test_tasks_that_have_run_for_long_make_room_up_to_a_limit() -> None:
    now = 0.0
    limit = ElasticLimit(2, stalled=10.0, most=4, now=lambda: now)
    assert limit.room() == 2
    first = limit.begin()
    now = 1.0
    limit.begin()
    assert limit.room() == 0
    now = 9.9
    assert limit.room() == 0
    now = 10.0
    assert limit.room() == 1, "of the first"
    now = 11.0
    assert limit.room() == 2
    limit.begin()
    limit.begin()
    now = 30.0
    assert (limit.room(), limit.running) == (0, 4), "all stall, and there may be no more"
    limit.end(first)
    assert (limit.room(), limit.running) == (1, 3)


def test_pauses_grow_up_to_the_longest() -> None:
    backoff = Backoff(first=0.1, most=0.5)
    assert [backoff.pause(failures) for failures in range(6)] == [0.1, 0.1, 0.2, 0.4, 0.5, 0.5]
    assert Backoff(first=0.1, most=10.0, factor=3).pause(3) == 0.1 * 9


def test_pauses_of_endless_retries_do_not_overflow() -> None:
    assert Backoff(first=0.2, most=15.0).pause(10**9) == 15.0


def test_an_action_is_retried_until_it_succeeds_or_the_service_stops() -> None:
    tries = 0

    def third() -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise Unavailable(what="Kafka")
        return tries

    assert keep_trying(third, threading.Event()) == 3
    stop, tries = threading.Event(), -(10**9)
    stop.set()
    assert keep_trying(third, stop) is None
    assert tries == 1 - 10**9


def test_an_error_that_is_final_is_raised_at_once() -> None:
    def failing() -> None:
        raise StorageUnavailable(why="full")

    with pytest.raises(StorageUnavailable):
        keep_trying(failing, threading.Event(), final=StorageUnavailable)
