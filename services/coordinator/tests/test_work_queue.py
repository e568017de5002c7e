"""What is reported of running transforms, and of late records."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from time import time_ns

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from odf_testing.builders import a_dataset, a_derivative
from odf_testing.coordinator import Coordinator
from odf_testing.guarded import GuardedDict
from odf_testing.profiles import examples

from odf_common.errors import InvalidInput, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.identity.keys import generate
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
from odf_coordinator.transforms.scheduler import ReaderGraph, Result, WorkQueue

FAILED = Result(error=InvalidInput(text="no"))
ONE, TWO = generate().dataset_id, generate().dataset_id


def test_first_marked_is_first_taken_and_each_once_at_a_time() -> None:
    queue = WorkQueue()
    queue.enqueue(TWO)
    queue.enqueue(ONE)
    queue.enqueue(TWO)

    assert queue.pop(0.0) == (TWO, False)
    queue.enqueue(TWO)
    assert queue.pop(0.0) == (ONE, False)
    assert queue.pop(0.0) is None


def test_a_mark_during_a_run_requests_another_run() -> None:
    queue = WorkQueue()
    before = queue.enqueue(ONE)
    queue.pop(0.0)
    during = queue.enqueue(ONE)

    queue.finish(ONE, FAILED)

    assert queue.result(ONE, before) == FAILED
    assert queue.result(ONE, during) is None
    assert queue.pop(0.0) == (ONE, False)


def test_a_postponed_run_keeps_its_tickets_open_and_waits() -> None:
    queue = WorkQueue()
    ticket = queue.enqueue(ONE)
    queue.pop(0.0)

    queue.finish(ONE, None, again_at=5.0)

    assert queue.result(ONE, ticket) is None
    assert queue.next_due() == 5.0
    assert queue.pop(4.9) is None
    assert queue.pop(5.0) == (ONE, False)


def test_a_failure_is_reported_and_another_run_follows() -> None:
    queue = WorkQueue()
    ticket = queue.enqueue(ONE)
    queue.pop(0.0)
    queue.finish(ONE, FAILED, again_at=3.0)

    assert queue.result(ONE, ticket) == FAILED
    assert queue.pauses(ONE) == 1
    assert queue.pop(2.0) is None
    assert queue.pop(3.0) == (ONE, False)


def test_a_success_ends_a_row_of_failures() -> None:
    queue = WorkQueue()
    queue.enqueue(ONE)
    for until in (1.0, 2.0):
        queue.pop(until)
        queue.finish(ONE, None, again_at=until)
    assert queue.pauses(ONE) == 2
    queue.pop(2.0)

    queue.finish(ONE, Result())

    assert queue.pauses(ONE) == 0


def test_a_forced_mark_does_not_wait() -> None:
    queue = WorkQueue()
    queue.enqueue(ONE)
    queue.pop(0.0)
    queue.finish(ONE, None, again_at=100.0)

    queue.enqueue(ONE, is_forced=True)

    assert queue.pop(0.0) == (ONE, True)


def test_a_removed_dataset_needs_no_run() -> None:
    queue = WorkQueue()
    ticket = queue.enqueue(ONE)
    queue.forget(ONE)

    assert queue.pop(0.0) is None
    assert queue.result(ONE, ticket) == Result()


@pytest.mark.parametrize("is_added_again", [False, True])
@pytest.mark.parametrize(
    "end",
    [
        lambda queue: queue.finish(ONE, FAILED),
        lambda queue: queue.finish(ONE, FAILED, again_at=5.0),
        lambda queue: queue.finish(ONE, None, again_at=5.0),
    ],
    ids=["finish", "fail", "postpone"],
)
def test_the_end_of_a_run_of_a_removed_dataset_is_ignored(
    end: Callable[[WorkQueue], None], *, is_added_again: bool
) -> None:
    queue = WorkQueue()
    queue.enqueue(ONE)
    queue.pop(0.0)
    queue.forget(ONE)
    if not is_added_again:
        end(queue)
        assert len(queue) == 0
        return
    ticket = queue.enqueue(ONE)
    end(queue)
    assert (queue.result(ONE, ticket), queue.pauses(ONE)) == (None, 0)
    assert queue.pop(0.0) == (ONE, False)


def test_a_pause_that_a_forced_run_has_ended_starts_no_further_run() -> None:
    queue = WorkQueue()
    queue.enqueue(ONE)
    queue.pop(0.0)
    queue.finish(ONE, None, again_at=5.0)
    queue.enqueue(ONE, is_forced=True)
    queue.pop(0.0)
    queue.finish(ONE, Result())

    assert queue.next_due() is None
    assert queue.pop(6.0) is None


def test_a_pause_that_is_over_starts_no_second_run_while_a_forced_one_runs() -> None:
    queue = WorkQueue()
    queue.enqueue(ONE)
    queue.enqueue(TWO)
    assert [queue.pop(0.0), queue.pop(0.0)] == [(ONE, False), (TWO, False)]
    queue.finish(TWO, Result(), again_at=1.0)
    queue.finish(ONE, Result(), again_at=2.0)
    queue.enqueue(ONE, is_forced=True)
    assert queue.pop(0.0) == (ONE, True)
    assert [queue.pop(3.0), queue.pop(3.0)] == [(TWO, False), None]


def test_what_is_paused_does_not_count_as_waiting() -> None:
    queue = WorkQueue()
    counts = [queue.waiting()]
    for act in (
        lambda: queue.enqueue(ONE),
        lambda: queue.pop(0.0),
        lambda: queue.finish(ONE, None, again_at=5.0),
        lambda: queue.enqueue(ONE, is_forced=True),
    ):
        act()
        counts.append(queue.waiting())
    assert counts == [0, 1, 1, 0, 1]


def test_only_what_nothing_was_asked_of_is_dropped() -> None:
    queue = WorkQueue()
    queue.enqueue(ONE)
    queue.drop_idle(ONE)
    assert queue.pop(0.0) == (ONE, False)
    queue.finish(ONE, Result())
    queue.drop_idle(ONE)
    assert len(queue) == 0


def test_failures_in_a_row_are_counted_until_a_success() -> None:
    queue = WorkQueue()
    for failures in (1, 2):
        queue.enqueue(ONE)
        queue.pop(9.0)
        queue.finish(ONE, Result(), again_at=failures)
        assert queue.pauses(ONE) == failures


def test_a_derivative_reads_what_its_newest_query_reads() -> None:
    graph, inputs = ReaderGraph(), [a_dataset(name) for name in "abc"]
    first, second = (a_derivative(*some).state for some in (inputs[:2], inputs[1:]))
    assert first.dataset_id == second.dataset_id
    reader = first.dataset_id

    graph.record(first)
    graph.record(first)
    assert [graph.readers_of(one) for one in inputs] == [{reader}, {reader}, set()]
    graph.record(second)
    assert [graph.readers_of(one) for one in inputs] == [set(), {reader}, {reader}]
    graph.forget(reader)
    assert [graph.readers_of(one) for one in inputs] == [set(), set(), set()]
    assert not graph._readers, "nothing is kept of it"


ACTS: Mapping[str, Callable[[WorkQueue], object]] = {
    "mark": lambda queue: queue.enqueue(ONE),
    "force": lambda queue: queue.enqueue(ONE, is_forced=True),
    "run": lambda queue: queue.pop(0.0),
    "finish": lambda queue: queue.finish(ONE, Result()),
    "fail": lambda queue: queue.finish(ONE, FAILED, again_at=5.0),
    "postpone": lambda queue: queue.finish(ONE, None, again_at=5.0),
}
TABLE = """
before            mark     force    finish   fail     postpone
-                 queued   forced   idle     idle     idle
mark              queued   forced   queued   queued   queued
force             forced   forced   forced   forced   forced
mark,run          running  running  idle     paused   paused
mark,run,mark     running  running  queued   paused   paused
mark,run,force    running  running  forced   forced   forced
mark,run,postpone paused   forced   paused   paused   paused
mark,run,fail     paused   forced   paused   paused   paused
"""


def test_every_act_in_every_state_leads_to_its_state() -> None:
    (_, *acts), *rows = (row.split() for row in TABLE.strip().splitlines())
    for before, *expected in rows:
        for act, state in zip(acts, expected, strict=True):
            queue = WorkQueue()
            for each in (*before.split(","), act):
                ACTS.get(each, len)(queue)
            assert state_of(queue) == state, (before, act)


def state_of(queue: WorkQueue) -> str:
    match queue.waiting(), queue.next_due():
        case 0, None:
            return "idle"
        case 0, _:
            return "paused"
        case _, None:
            return "running"
        case _:
            return "forced" if queue.pop(0.0) == (ONE, True) else "queued"


class WorkQueueModel(RuleBasedStateMachine):
    """A queue and its model: no request is lost, none runs twice concurrently, tickets are answered in order."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = WorkQueue()
        self.now = 0.0
        self.running: dict[DatasetId, int] = {}
        self.asked: dict[DatasetId, int] = {}
        self.answered: dict[DatasetId, int] = {}

    @rule(one=st.sampled_from((ONE, TWO)), is_forced=st.booleans())
    def enqueue(self, one: DatasetId, is_forced: bool) -> None:
        self.asked[one] = self.queue.enqueue(one, is_forced=is_forced)

    @rule(seconds=st.sampled_from((0.0, 1.0, 5.0)))
    def take(self, seconds: float) -> None:
        self.now += seconds
        due = self.queue.next_due()
        taken = self.queue.pop(self.now)
        assert (taken is None) == (due is None or due > self.now)
        if taken is not None:
            assert taken[0] not in self.running
            self.running[taken[0]] = self.asked.get(taken[0], 0)

    @precondition(lambda self: self.running)
    @rule(end=st.sampled_from(("finish", "fail", "postpone")))
    def end(self, end: str) -> None:
        one, covered = self.running.popitem()
        if end == "postpone":
            self.queue.finish(one, None, again_at=self.now + 2)
            return
        self.queue.finish(one, Result(), again_at=self.now + 3 if end == "fail" else None)
        self.answered[one] = covered

    @precondition(lambda self: not self.running)
    @rule(one=st.sampled_from((ONE, TWO)))
    def forget(self, one: DatasetId) -> None:
        self.queue.forget(one)
        self.asked.pop(one, None)
        self.answered.pop(one, None)

    @invariant()
    def each_caller_is_answered_or_waits(self) -> None:
        for one, ticket in self.asked.items():
            is_answered = self.queue.result(one, ticket) is not None
            assert is_answered == (self.answered.get(one, 0) >= ticket)
            if not is_answered and one not in self.running:
                assert self.queue.next_due() is not None

    def teardown(self) -> None:
        for one in self.running:
            self.queue.finish(one, Result())
        for _ in range(4):
            self.now += 10
            while (taken := self.queue.pop(self.now)) is not None:
                self.queue.finish(taken[0], Result())
        assert self.queue.next_due() is None
        assert all(self.queue.result(one, ticket) is not None for one, ticket in self.asked.items())


TestWorkQueue = WorkQueueModel.TestCase
TestWorkQueue.settings = settings(max_examples=examples(30))


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
    pushed.publisher.report_progress(known.id, COUNTING)
    topic, said = pushed.bus.sent[-1]
    assert (topic, said.dataset_id) == (NOTIFICATIONS, str(known.id))
    assert said.transform_progress == TransformProgress(stage="computing", rows=3, total=5)


def test_a_transform_begins_and_ends_under_the_lock_of_those_who_ask() -> None:
    running = RunningTransforms()
    running._running = GuardedDict(running._guard)
    with running.track(a_dataset()):
        assert running.progress_of(a_dataset()) is not None
    assert running.progress_of(a_dataset()) is None
