import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from odf_testing.guarded import GuardedDict
from odf_testing.redis import MemoryLocks
from structlog.testing import capture_logs

from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import Lock
from odf_common.service.environment import FreeLocks
from odf_coordinator.commit import dataset_locks
from odf_coordinator.commit.dataset_locks import POLL_SECONDS, DatasetBusy, DatasetLocks

ONE, OTHER = (DatasetId.of_key(bytes(31) + bytes([n])) for n in (1, 2))


def test_a_busy_dataset_is_refused_after_a_while_and_others_are_free() -> None:
    locks = DatasetLocks(FreeLocks(), 10_000, local_seconds=0.01)

    with locks.hold(ONE):
        with (
            pytest.raises(DatasetBusy, match="another operation has worked on it for 0"),
            locks.hold(ONE),
        ):
            pass
        with locks.hold(OTHER):
            assert len(locks) == 2

    assert len(locks) == 0


def test_waiting_threads_take_turns_and_nothing_is_kept() -> None:
    locks = DatasetLocks(FreeLocks(), 10_000)
    inside, most = 0, 0

    def work(_: int) -> None:
        nonlocal inside, most
        for _ in range(50):
            with locks.hold(ONE):
                inside += 1
                most = max(most, inside)
                inside -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))

    assert (most, len(locks)) == (1, 0)


def test_a_waiting_thread_gets_the_dataset_as_soon_as_it_is_released() -> None:
    locks = DatasetLocks(FreeLocks(), 10_000)

    def work() -> int:
        with locks.hold(ONE):
            return len(locks)

    with ThreadPoolExecutor(1) as pool:
        with locks.hold(ONE):
            waiting = pool.submit(work)
            while locks._local[ONE].users < 2:
                time.sleep(0.001)
        assert waiting.result() == 1


def test_the_lock_shared_with_other_processes_is_released_however_the_work_ends() -> None:
    shared = MemoryLocks(lambda: 0.0)
    locks = DatasetLocks(shared, 10_000)

    def work() -> None:
        with locks.hold(ONE):
            assert set(shared.held) == {ONE}
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()

    assert shared.held == {}


def test_a_shared_lock_that_stays_held_is_ignored_after_a_while_and_stays_its_owners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("odf_coordinator.commit.dataset_locks.SHARED_SECONDS", 0.0)
    shared = MemoryLocks(lambda: 0.0)
    theirs = shared.acquire(ONE, 60_000)

    with DatasetLocks(shared, 60_000).hold(ONE):
        pass

    assert shared.held[ONE][0] is theirs


@dataclass
class Clock:
    """Replaces `time`: each sleep takes `step`, whatever was requested."""

    step: float
    now: float = 0.0
    sleeps: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += self.step


class BusyLocks:
    """Another process holds every lock for the first `free_after` attempts."""

    def __init__(self, free_after: int) -> None:
        self._left = free_after

    def acquire(self, dataset: DatasetId, ttl_ms: int) -> Lock | None:
        self._left -= 1
        return FreeLocks().acquire(dataset, ttl_ms) if self._left < 0 else None


@pytest.mark.parametrize(
    ("ttl_ms", "step", "sleeps"),
    [
        (1000, 0.5, 2),
        (1000, 0.4996, 3),  # 0.4 ms are left after two of them
        (60_000, 0.5, 4),
    ],
)
def test_a_shared_lock_is_polled_until_it_would_have_expired_but_two_seconds_at_most(
    monkeypatch: pytest.MonkeyPatch, ttl_ms: int, step: float, sleeps: int
) -> None:
    clock = Clock(step)
    monkeypatch.setattr(dataset_locks, "time", clock)

    with capture_logs() as logs, DatasetLocks(BusyLocks(9), ttl_ms).hold(ONE):
        pass

    assert clock.sleeps == [POLL_SECONDS] * sleeps
    waits = [(one["event"], one["dataset_id"], one["ms"], one["is_held"]) for one in logs]
    assert waits == [("waited for another process", str(ONE), round(sleeps * step * 1000), False)]


def test_a_shared_lock_that_is_released_meanwhile_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_locks, "time", Clock(POLL_SECONDS, now=0.0))

    with capture_logs() as logs, DatasetLocks(BusyLocks(1), 10_000).hold(ONE):
        pass

    assert [(one["ms"], one["is_held"]) for one in logs] == [(20, True)]


def test_locks_that_are_free_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1.0, now=1000.0)
    monkeypatch.setattr(dataset_locks, "time", clock)

    with capture_logs() as logs, DatasetLocks(FreeLocks(), 10_000).hold(ONE):
        pass

    assert (clock.sleeps, logs) == ([], [])


class SlowLock:
    """A lock that is free after `seconds` of a clock."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds

    def acquire(self, *, timeout: float) -> bool:
        self._clock.now += self._seconds
        return self._seconds < timeout

    def release(self) -> None:
        pass


def test_a_wait_for_an_operation_of_this_process_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1.0)
    monkeypatch.setattr(dataset_locks, "time", clock)
    locks = DatasetLocks(FreeLocks(), 10_000)
    locks._local[ONE] = dataset_locks._Local(lock=SlowLock(clock, 0.25))  # type: ignore[arg-type]

    with capture_logs() as logs, locks.hold(ONE):
        pass

    waits = [(one["event"], one["ms"], one["is_held"]) for one in logs]
    assert waits == [("waited for an operation of this process", 250, True)]


def test_a_lock_is_looked_up_and_dropped_by_one_thread_at_a_time() -> None:
    locks = DatasetLocks(FreeLocks(), 10_000)
    locks._local = GuardedDict(locks._guard)

    with locks.hold(ONE):
        assert len(locks) == 1

    assert len(locks) == 0
