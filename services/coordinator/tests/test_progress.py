"""What is reported of running transforms, and of late records."""

import json
import threading
from collections.abc import Callable, Iterator
from time import time_ns

import pytest
from odf_testing.builders import a_dataset
from odf_testing.coordinator import Coordinator
from odf_testing.guarded import GuardedDict

from odf_common.errors import Unavailable
from odf_common.ports.bus import NOTIFICATIONS
from odf_common.ports.engine import EngineProgress
from odf_common.proto.odf.bus.v1.bus_pb2 import TransformProgress
from odf_coordinator.operations.pull import PullProgress
from odf_coordinator.transforms.runner import (
    REPORT_AFTER_SECONDS,
    SILENCE_SECONDS,
    RunningTransforms,
    late_rows,
)

COUNTING = EngineProgress(stage="computing", rows=3, total=5)
DONE = EngineProgress(stage="writing", rows=5, total=5, late=2)


@pytest.fixture
def pushed(node: Coordinator, root: str, derivative: str) -> Coordinator:
    node.add(root, derivative)
    node.work()
    node.push("cities", "Oslo")
    return node


def pulled(node: Coordinator) -> Iterator[PullProgress]:
    return node.puller.pull(["cities.copy"], is_all=False, is_recursive=False, is_wanted=lambda: True)


def test_a_pull_reports_progress_and_late_records(pushed: Coordinator) -> None:
    known = pushed.find("cities.copy")
    said = threading.Event()

    def slowly() -> Iterator[EngineProgress]:
        yield COUNTING
        said.wait(60)
        yield DONE

    pushed.engine.progress = slowly()
    steps = pulled(pushed)
    first = next(steps)
    working = threading.Thread(target=pushed.work, daemon=True)
    working.start()
    heard = next(step for step in steps if step.progress == COUNTING)
    said.set()
    *_, last = steps
    working.join()
    assert (first.progress, heard.state) == (None, "running")
    assert (last.state, last.new_records, last.new_late) == ("updated", 1, 2)
    assert pushed.scheduler.running.progress_of(known.id) is None


def test_late_records_are_counted_once_the_step_is_committed(pushed: Coordinator) -> None:
    known = pushed.find("cities.copy")
    pushed.engine.progress = (COUNTING, DONE)
    pushed.engine.failures = [Unavailable(what="the engine")]
    pushed.work()
    assert late_rows(pushed.blobs, known.id) == 0
    pushed.now += 60
    pushed.work()
    assert late_rows(pushed.blobs, known.id) == 2
    assert pushed.scheduler.running.progress_of(known.id) is None


def test_counts_of_late_records_are_summed_and_shown(
    odf: Callable[..., int], node: Coordinator, capsys: pytest.CaptureFixture[str]
) -> None:
    for minute in range(2):
        node.push("cities", "Oslo", minute=minute)
        node.engine.progress = (DONE,)
        node.work()

    assert odf("list", "-o", "json") == 0

    rows = {row["alias"]: row["late"] for row in json.loads(capsys.readouterr().out)}
    assert rows == {"cities": 0, "cities.copy": 4}
    assert odf("list") == 0
    head, *_ = capsys.readouterr().out.splitlines()
    assert head.split()[-1] == "late"


def test_an_unreadable_count_is_reported_as_none(node: Coordinator) -> None:
    for text in ("many", "-3", "", "9" * 30):
        node.blobs.set_note(a_dataset(), "late", text)
        assert late_rows(node.blobs, a_dataset()) == 0


def test_reports_of_a_longer_step_are_passed_on_until_it_ends() -> None:
    time, reports, dataset = [0.0], [], a_dataset()
    running = RunningTransforms(lambda _, now: reports.append(now), clock=lambda: time[0])
    with running.track(dataset) as short:
        short.note(COUNTING)
        short.note(DONE)
    assert reports == []
    with running.track(dataset) as long:
        long.note(EngineProgress())
        time[0] = REPORT_AFTER_SECONDS
        long.note(COUNTING)
        assert running.progress_of(dataset) == COUNTING
    assert reports == [COUNTING, EngineProgress()]
    assert running.progress_of(dataset) is None


def test_an_engine_is_silent_once_it_has_sent_no_report_for_a_time() -> None:
    time, dataset = [0.0], a_dataset()
    running = RunningTransforms(clock=lambda: time[0])
    with running.track(dataset) as work:
        time[0] = SILENCE_SECONDS - 1
        assert (running.has_silence(), running.silent_since(dataset)) == (False, None)
        time[0] = SILENCE_SECONDS
        assert running.has_silence()
        since = running.silent_since(dataset)
        assert since is not None
        assert 0 <= time_ns() - since.ns - SILENCE_SECONDS * 1e9 < 60e9
        assert running.silent_since(a_dataset(1)) is None
        work.note(COUNTING)
        assert not running.has_silence()
    time[0] *= 9
    assert not running.has_silence()


def test_the_progress_of_the_engine_is_published_on_the_bus(pushed: Coordinator) -> None:
    known = pushed.find("cities.copy")
    pushed.publisher.working(known.id, COUNTING)
    topic, said = pushed.bus.sent[-1]
    assert (topic, said.dataset_id) == (NOTIFICATIONS, str(known.id))
    assert said.transform_progress == TransformProgress(stage="computing", rows=3, total=5)


def test_a_transform_begins_and_ends_under_the_lock_of_those_who_ask() -> None:
    running = RunningTransforms()
    running._running = GuardedDict(running._guard)
    with running.track(a_dataset()):
        assert running.progress_of(a_dataset()) is not None
    assert running.progress_of(a_dataset()) is None
