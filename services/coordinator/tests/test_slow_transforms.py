"""Transforms that wait for the engine do not delay others, and are reported."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from odf_testing.coordinator import Coordinator
from odf_testing.passing_engine import PassingEngine

from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.ports.engine import EngineSilent, OnProgress
from odf_common.service.consumer.pools import STALLED_SECONDS
from odf_coordinator.transforms.runner import SILENCE_SECONDS
from odf_coordinator.transforms.scheduler import SchedulerLimits

SLOW = tuple(f"cities.slow.{number}" for number in range(5))
QUICK = ("cities.copy", "cities.other")


class SlowEngine(PassingEngine):
    """Does not answer for some datasets before `release` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()
        self.held: set[str] = set()

    def execute_transform(
        self, request: TransformRequest, on_progress: OnProgress | None = None
    ) -> TransformResponseSuccess:
        if request.dataset_alias in SLOW:
            self.held.add(request.dataset_alias)
            self.release.wait(60)
        return super().execute_transform(request, on_progress)

    @contextmanager
    def freed(self) -> Iterator[None]:
        """Release its calls in the end, whatever happens."""
        try:
            yield
        finally:
            self.release.set()


@pytest.fixture
def engine() -> SlowEngine:
    return SlowEngine()


@pytest.fixture
def fan(tmp_path: Path, engine: SlowEngine, root: str, derivative: str) -> Coordinator:
    node = Coordinator(home=tmp_path, engine=engine)
    names = (*SLOW, *QUICK)
    node.add(root, *(derivative.replace("name: cities.copy", f"name: {name}") for name in names))
    node.push("cities", "Oslo")
    return node


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def records(node: Coordinator, name: str) -> int:
    return node.find(name).state.next_offset


def test_slow_transforms_do_not_delay_others(fan: Coordinator, engine: SlowEngine) -> None:
    def are_through() -> bool:
        fan.now += STALLED_SECONDS + 1
        return [records(fan, name) for name in QUICK] == [1, 1]

    with fan.scheduler_running(), engine.freed():
        until(are_through)
        assert engine.held == set(SLOW)
        assert [records(fan, name) for name in SLOW] == [0] * len(SLOW)
        engine.release.set()
        until(lambda: [records(fan, name) for name in SLOW] == [1] * len(SLOW))


def test_few_transforms_are_started_at_a_time_while_none_takes_long(fan: Coordinator) -> None:
    runs = SchedulerLimits().runs
    taken = [fan.scheduler._begin() for _ in range(runs + 1)]
    fan.now += STALLED_SECONDS
    taken += [fan.scheduler._begin() for _ in range(runs + 1)]
    assert [one is not None for one in taken] == [*[True] * runs, False] * 2


def test_a_transform_without_reports_from_the_engine_is_named(fan: Coordinator, engine: SlowEngine) -> None:
    with fan.scheduler_running(), engine.freed():
        until(lambda: SLOW[0] in engine.held)
        known = fan.find(SLOW[0])
        assert fan.scheduler.stall_of(known.id) is None
        fan.now += SILENCE_SECONDS + 1
        stall = fan.scheduler.stall_of(known.id)
        assert stall is not None
        assert stall.reason == "the engine cannot be reached: no heartbeat"
        assert "end its process or container" in stall.remedy
        assert fan.scheduler.stall_of(known.id) == stall
        assert abs(time.time_ns() - stall.since.ns) < 60e9


def test_a_pull_ends_with_advice_when_the_engine_has_gone_and_the_transform_is_repeated(
    fan: Coordinator, engine: SlowEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> TransformResponseSuccess:
        raise EngineSilent(why="pings are missing")

    monkeypatch.setattr(engine, "execute_transform", gone)
    with fan.scheduler_running():
        *_, last = fan.puller.pull([QUICK[0]], is_all=False, is_recursive=False, is_wanted=lambda: True)
        monkeypatch.undo()
        assert (last.state, records(fan, QUICK[0])) == ("failed", 0)
        assert "pings are missing" in last.error
        assert "end its process" in last.error

        def is_repeated() -> bool:
            fan.now += STALLED_SECONDS + 1
            return records(fan, QUICK[0]) == 1

        engine.release.set()
        until(is_repeated)


def test_a_pull_ends_with_advice_when_the_engine_is_silent(fan: Coordinator, engine: SlowEngine) -> None:
    with fan.scheduler_running(), engine.freed():
        until(lambda: SLOW[0] in engine.held)
        fan.now += SILENCE_SECONDS + 1
        for name in (SLOW[0], QUICK[0]):
            *_, last = fan.puller.pull([name], is_all=False, is_recursive=False, is_wanted=lambda: True)
            assert last.state == "failed"
            assert "no heartbeat" in last.error
            assert "end its process" in last.error
