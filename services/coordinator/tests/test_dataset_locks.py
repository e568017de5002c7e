import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from odf_testing.redis import MemoryLocks

from odf_common.identity.did import DatasetId
from odf_common.service.environment import FreeLocks
from odf_coordinator.commit.dataset_locks import DatasetBusy, DatasetLocks

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


def test_threads_that_wait_come_one_after_the_other_and_nothing_is_kept() -> None:
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


def test_who_waits_has_the_dataset_as_soon_as_it_is_released() -> None:
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
