"""When derivatives run, and when failed runs are retried."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.builders import a_dataset
from odf_testing.coordinator import DATA, Coordinator
from odf_testing.passing_engine import PassingEngine
from structlog.testing import capture_logs

from odf_common.chain.walk import iterate
from odf_common.data.schema_evolution import schema_of_event, schema_to_event
from odf_common.errors import InvalidInput, InvalidQuery, StorageUnavailable, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.events import ExecuteTransform, SetDataSchema, SetInfo
from odf_common.ports.engine import EngineNotAvailable, EngineProgress, OnProgress
from odf_coordinator.catalog.datasets import DatasetHandle
from odf_coordinator.commit.committer import Committed
from odf_coordinator.transforms.runner import StepInputs, Transformer, late_rows
from odf_coordinator.transforms.scheduler import Result, SchedulerLimits

PATIENCE_SECONDS = 20.0


@pytest.fixture
def copy(node: Coordinator, root: str, derivative: str) -> DatasetId:
    node.add(root, derivative)
    node.work()
    return node.find("cities.copy").id


def test_the_commit_of_a_run_does_not_start_another(node: Coordinator, copy: DatasetId) -> None:
    node.push("cities", "Oslo")
    assert node.scheduler.work()
    assert node.scheduler.waiting() == 0
    assert node.find("cities.copy").state.last_offset == 0


def test_the_commit_of_another_after_the_last_look_of_a_run_starts_another_run(
    node: Coordinator, copy: DatasetId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a rollback, before the run has ended: no input commits anything that would start one."""
    before = node.find("cities.copy").state.head
    perform_step, rollbacks = Transformer.perform, [before]

    def perform(transformer: Transformer, handle: DatasetHandle, plan: StepInputs) -> None:
        perform_step(transformer, handle, plan)
        with ThreadPoolExecutor(1) as other:
            while rollbacks:
                other.submit(node.editor.reset, "cities.copy", rollbacks.pop(), is_forced=True).result()

    monkeypatch.setattr(Transformer, "perform", perform)
    node.push("cities", "Oslo")
    assert node.scheduler.work()
    assert node.find("cities.copy").state.head == before
    assert node.scheduler.work()
    assert node.find("cities.copy").state.last_offset == 0
    assert node.scheduler.waiting() == 0


def test_a_commit_of_a_run_that_is_announced_later_starts_no_other(
    node: Coordinator, copy: DatasetId
) -> None:
    node.push("cities", "Oslo")
    assert node.scheduler.work()
    node.scheduler.on_announced(copy)
    assert node.scheduler.waiting() == 0
    node.editor.commit_event("cities.copy", SetInfo(description="x"))
    assert node.scheduler.waiting() == 1


def test_a_rollback_to_the_last_commit_of_a_run_starts_another(node: Coordinator, copy: DatasetId) -> None:
    """What prevented runs after it, such as another query, is gone."""
    node.push("cities", "Oslo")
    assert node.scheduler.work()
    own = node.find("cities.copy").state.head
    node.editor.commit_event("cities.copy", SetInfo(description="x"))
    while node.scheduler.work():
        pass
    node.editor.reset("cities.copy", own, is_forced=True)
    assert node.scheduler.waiting() == 1


def test_one_run_reads_across_a_change_of_the_inputs_columns(node: Coordinator, copy: DatasetId) -> None:
    node.push("cities", "Oslo")
    node.engine.columns = ("event_time", "city")
    wider = DATA.append(pa.field("size", pa.int64()))
    node.push_table("cities", pa.table({"event_time": [0], "city": ["Rome"], "size": [1]}, schema=wider), 1)
    assert node.work() == 1
    assert node.find("cities.copy").state.last_offset == 1


def test_a_derivative_that_is_not_assigned_to_this_instance_runs_only_on_request(
    node: Coordinator, copy: DatasetId
) -> None:
    key = node.home / "keys" / copy.folder
    content = key.read_bytes()
    key.unlink()
    node.push("cities", "Oslo")
    assert node.work() == 0
    key.write_bytes(content)
    node.scheduler.request(copy)
    assert node.work() == 1
    assert node.find("cities.copy").state.last_offset == 0


def test_runs_that_a_dependency_prevents_are_retried_with_backoff(node: Coordinator, copy: DatasetId) -> None:
    node.engine.failures = [Unavailable(what="the engine") for _ in range(3)]
    node.push("cities", "Oslo")
    with capture_logs():
        for pause in (0.2, 0.4, 0.8):
            assert node.work() == 1
            node.now += pause - 0.01
            assert node.work() == 0
            node.now += 0.02
    assert node.scheduler.missing_dependency(copy) != ""
    assert node.work() == 1
    assert node.scheduler.missing_dependency(copy) == ""


def test_failed_runs_are_retried_with_backoff(node: Coordinator, copy: DatasetId) -> None:
    node.engine.failures = [ZeroDivisionError() for _ in range(3)]
    node.push("cities", "Oslo")
    with capture_logs():
        for pause in (0.2, 0.4, 0.8):
            assert node.work() == 1
            node.now += pause - 0.01
            assert node.work() == 0
            node.now += 0.02
    assert "ZeroDivisionError" in node.stall_text(copy)
    assert node.work() == 1
    assert node.stall_text(copy) == ""


def test_a_failed_run_ends_although_its_remedy_cannot_be_found(
    node: Coordinator, copy: DatasetId, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise StorageUnavailable(file="names", why="Input/output error")

    node.engine.failures = [EngineNotAvailable(text="another version")]
    node.push("cities", "Oslo")
    with monkeypatch.context() as failing, capture_logs():
        failing.setattr("odf_coordinator.transforms.scheduler.query_remedy", fail)
        assert node.work() == 1
    node.now += 1
    assert node.work() == 1
    assert node.stall_text(copy) == ""


def test_a_run_that_is_due_waits_for_a_free_slot(
    node: Coordinator, copy: DatasetId, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = list[float]()
    monkeypatch.setattr(node.scheduler._changed, "wait", waits.append)
    node.scheduler.request(copy)
    node.scheduler._wait()
    for _ in range(SchedulerLimits().runs):
        node.scheduler._slots.begin()
    node.scheduler._wait()
    assert waits == [SchedulerLimits().stall_check_seconds]


def test_readers_are_looked_up_under_the_lock(
    node: Coordinator, copy: DatasetId, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, readers, held = node.find("cities"), node.scheduler._readers.readers_of, list[bool]()

    def readers_of(dataset: DatasetId) -> frozenset[DatasetId]:
        held.append(node.scheduler._changed._is_owned())  # type: ignore[attr-defined]
        return readers(dataset)

    def unreadable(*_: object) -> None:
        raise Unavailable(what="the disk")

    monkeypatch.setattr(node.scheduler._readers, "readers_of", readers_of)
    node.scheduler.on_announced(known.id)
    monkeypatch.setattr(node.refs, "head", unreadable)
    with capture_logs():
        node.scheduler.on_announced(known.id)
    assert held == [True, True]


def test_a_dependency_that_has_answered_is_available_again(node: Coordinator, copy: DatasetId) -> None:
    node.engine.failures = [Unavailable(what="the engine"), InvalidQuery(text="no")]
    node.push("cities", "Oslo")
    with capture_logs():
        node.work()
        node.now += 1
        node.work()
    assert (node.scheduler.missing_dependency(copy), node.stall_text(copy)) == ("", "no")


def test_a_query_that_failed_is_retried_only_on_request(node: Coordinator, copy: DatasetId) -> None:
    node.engine.failures = [InvalidQuery(text="no")]
    with capture_logs():
        node.push("cities", "Oslo")
        node.work()
        node.push("cities", "Rome", minute=1)
        node.work()
    assert node.stall_text(copy) == "no"
    assert node.find("cities.copy").state.last_offset is None

    node.scheduler.request(copy)
    node.work()
    assert node.stall_text(copy) == ""
    assert node.find("cities.copy").state.last_offset == 1


def test_those_who_wait_for_a_run_learn_at_once_that_it_failed(node: Coordinator, copy: DatasetId) -> None:
    asked, error = threading.Event(), InvalidQuery(text="no")

    def wait() -> Result | None:
        asked.set()
        return node.scheduler.wait(copy, ticket, 3 * PATIENCE_SECONDS)

    def fail(*_: object, **__: object) -> None:
        assert asked.wait(PATIENCE_SECONDS)
        time.sleep(0.05)  # until it waits
        raise error

    ticket = node.scheduler.request(copy)
    with ThreadPoolExecutor(1) as pool, patch.object(node.scheduler, "_transform", fail), capture_logs():
        waiting = pool.submit(wait)
        node.work()
        result = waiting.result(PATIENCE_SECONDS)
    assert result is not None
    assert result.error is error


def test_those_who_wait_for_a_run_learn_at_once_that_its_dataset_was_removed(
    node: Coordinator, copy: DatasetId
) -> None:
    asked = threading.Event()

    def wait() -> Result | None:
        asked.set()
        return node.scheduler.wait(copy, ticket, 3 * PATIENCE_SECONDS)

    ticket = node.scheduler.request(copy)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        assert asked.wait(PATIENCE_SECONDS)
        time.sleep(0.05)  # until it waits
        node.scheduler.on_removed(copy)
        assert waiting.result(PATIENCE_SECONDS) == Result()


def test_an_input_that_is_available_again_is_noticed_on_request(node: Coordinator, copy: DatasetId) -> None:
    before = node.push("cities", "Oslo").state.head
    after = node.push("cities", "Rome", minute=1).state.head
    with capture_logs():
        node.work()
        node.editor.reset("cities", before, is_forced=True)
        node.push("cities", "Lima", minute=2)
        node.work()
    assert "no longer in its chain" in node.stall_text(copy)

    node.editor.reset("cities", before, is_forced=True)
    cities = node.find("cities").id
    back = node.importer.import_chain(cities, expected_head=before, new_head=after, alias="")
    assert isinstance(back, Committed)
    node.scheduler.request(copy)
    node.work()
    assert node.stall_text(copy) == ""


def test_a_deleted_derivative_is_in_no_queue(node: Coordinator, copy: DatasetId) -> None:
    node.push("cities", "Oslo")
    node.work()
    node.names.delete("cities.copy")
    node.scheduler.on_removed(copy)
    node.push("cities", "Rome", minute=1)
    assert node.work() == 0
    assert len(node.scheduler._queue) == 0


def test_late_records_of_a_run_that_was_overtaken_are_not_counted(node: Coordinator, copy: DatasetId) -> None:
    class Overtaken(PassingEngine):
        def execute_transform(
            self, request: TransformRequest, on_progress: OnProgress | None = None
        ) -> TransformResponseSuccess:
            answer = super().execute_transform(request, on_progress)
            if len(self.requests) == 1:
                node.editor.commit_event("cities.copy", SetInfo(description="x"))
            return answer

    engine = Overtaken()
    engine.progress = (EngineProgress(late=3),)
    node.scheduler._transformer = replace(node.scheduler._transformer, engine=engine)
    node.push("cities", "Oslo")
    with capture_logs():
        node.work()
    assert len(engine.requests) == 2
    assert late_rows(node.blobs, copy) == 3


def test_a_scheduler_without_work_sleeps(node: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    node.scheduler._limits = SchedulerLimits(idle_seconds=0.1)
    stop, take = threading.Event(), node.scheduler._begin
    looks: list[None] = []

    def counted() -> tuple[int, DatasetId, bool] | None:
        looks.append(None)
        if len(looks) == 3:
            stop.set()
        return take()

    monkeypatch.setattr(node.scheduler, "_begin", counted)
    began = time.monotonic()
    node.scheduler.run(stop)
    assert time.monotonic() - began >= 0.2, "it waited before each further look"


def test_a_run_that_ends_wakes_those_that_wait_for_a_slot(
    node: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.scheduler._limits = SchedulerLimits(idle_seconds=60.0, stall_check_seconds=60.0)
    stop, may_end, has_room = threading.Event(), threading.Event(), threading.Event()
    datasets = [a_dataset(number) for number in range(SchedulerLimits().runs + 1)]
    begun = list[DatasetId]()

    def steps(dataset: DatasetId, is_forced: bool) -> None:
        begun.append(dataset)
        if len(begun) > SchedulerLimits().runs:
            has_room.set()
        else:
            assert may_end.wait(PATIENCE_SECONDS)

    monkeypatch.setattr(node.scheduler, "_transform", steps)
    tickets = [(dataset, node.scheduler.request(dataset)) for dataset in datasets]
    thread = threading.Thread(target=node.scheduler.run, args=(stop,), daemon=True)
    thread.start()
    try:
        assert not has_room.wait(0.2)
        may_end.set()
        assert has_room.wait(PATIENCE_SECONDS)
        assert all(node.scheduler.wait(*ticket, PATIENCE_SECONDS) for ticket in tickets)
    finally:
        stop.set()
        node.scheduler.on_removed(datasets[0])
        thread.join()


def test_nothing_is_kept_of_a_dataset_that_was_removed_during_its_run(
    node: Coordinator, copy: DatasetId
) -> None:
    node.scheduler.request(copy)
    node.catalog.remove("cities.copy")
    assert node.scheduler.work()
    assert copy not in node.scheduler._queue._jobs


WIDE = pa.schema(
    [("event_time", pa.timestamp("ms", "UTC")), ("city", pa.string()), ("population", pa.int64())]
)


def push_wide(node: Coordinator, city: str, population: int | None, minute: int) -> None:
    columns = {"event_time": [minute * 60_000], "city": [city], "population": [population]}
    node.push_table("cities", pa.table(columns, schema=WIDE), minute)


def transforms(node: Coordinator, ref: str) -> list[ExecuteTransform]:
    known = node.find(ref)
    blocks = iterate(node.datasets.reader(known.id), known.state.head)
    events = [decoded.block.event for _, decoded, _ in blocks]
    return [event for event in events if isinstance(event, ExecuteTransform)][::-1]


@pytest.fixture
def widened(node: Coordinator, root: str, derivative: str) -> Coordinator:
    """An input that gained a column between records that no derivative has read yet."""
    node.add(root, derivative)
    node.push("cities", "Oslo")
    node.push("cities", "Rome", minute=1)
    push_wide(node, "Lima", 10, 2)
    push_wide(node, "Bonn", 3, 3)
    return node


def test_a_step_ends_before_its_input_changes_its_schema(widened: Coordinator) -> None:
    widened.work()

    first, second = widened.engine.requests
    assert [len(one.query_inputs[0].data_paths) for one in (first, second)] == [2, 2]
    steps = [event.query_inputs[0] for event in transforms(widened, "cities.copy")]
    assert [one.new_offset for one in steps] == [1, 3]
    assert steps[1].prev_block_hash == steps[0].new_block_hash
    assert steps[1].new_block_hash == widened.find("cities").state.head


def test_one_run_does_all_pending_steps(widened: Coordinator) -> None:
    copy = widened.find("cities.copy")
    ticket = widened.scheduler.request(copy.id)

    assert widened.scheduler.work()

    assert widened.scheduler.wait(copy.id, ticket, 0) == Result()
    before, after = copy.state, widened.find("cities.copy").state
    assert after.sequence_number - before.sequence_number == 4
    assert after.next_offset - before.next_offset == 4


def test_each_step_gets_the_schema_of_its_records(widened: Coordinator) -> None:
    schemas = []

    class Looking(PassingEngine):
        def execute_transform(
            self, request: TransformRequest, on_progress: OnProgress | None = None
        ) -> TransformResponseSuccess:
            schemas.append(pq.read_schema(request.query_inputs[0].schema_file).names[4:])
            return super().execute_transform(request, on_progress)

    object.__setattr__(widened.scheduler._transformer, "engine", Looking())

    widened.work()

    assert schemas == [["city"], ["city", "population"]]


def test_a_column_that_an_input_gains_is_added_to_a_select_star(widened: Coordinator) -> None:
    widened.work()

    table = widened.record_reader.tail("cities.copy", 9)
    assert table["population"].to_pylist() == [None, None, 10, 3]
    known = widened.find("cities.copy")
    schemas = [
        decoded.block.event
        for _, decoded, _ in iterate(widened.datasets.reader(known.id), known.state.head)
        if isinstance(decoded.block.event, SetDataSchema)
    ]
    assert len(schemas) == 2


def test_a_query_that_names_its_columns_is_unaffected(widened: Coordinator) -> None:
    class Naming(PassingEngine):
        columns = ("event_time", "city")

    object.__setattr__(widened.scheduler._transformer, "engine", Naming())

    widened.work()

    assert widened.record_reader.tail("cities.copy", 9).column_names[4:] == ["city"]
    assert widened.find("cities.copy").state.last_offset == 3


def test_a_schema_change_without_pending_records_ends_no_step(
    node: Coordinator, root: str, derivative: str
) -> None:
    node.add(root, derivative)
    node.push("cities", "Oslo")
    node.work()
    push_wide(node, "Lima", 10, 2)

    node.work()

    assert len(node.engine.requests) == 2
    assert transforms(node, "cities.copy")[-1].query_inputs[0].new_offset == 1


def test_a_schema_without_records_is_read_so_that_queries_may_name_its_columns(
    node: Coordinator, root: str, derivative: str
) -> None:
    node.add(root, derivative)
    node.push("cities", "Oslo")
    node.work()
    schema = node.find("cities").state.schema
    assert schema is not None
    wide = schema_of_event(schema).append(WIDE.field("population"))

    node.propose(node.find("cities"), [schema_to_event(wide)])
    node.work()

    step = transforms(node, "cities.copy")[-1].query_inputs[0]
    assert (step.new_block_hash, step.new_offset) == (node.find("cities").state.head, None)


def test_a_derivative_without_output_before_the_schema_change_cannot_continue(widened: Coordinator) -> None:
    class Silent(PassingEngine):
        def execute_transform(
            self, request: TransformRequest, on_progress: OnProgress | None = None
        ) -> TransformResponseSuccess:
            del request, on_progress
            return TransformResponseSuccess()

    object.__setattr__(widened.scheduler._transformer, "engine", Silent())
    known = widened.find("cities.copy")
    plan = widened.scheduler._transformer.plan(known)
    assert plan is not None

    with pytest.raises(InvalidInput, match="cannot record how far the input was read"):
        widened.scheduler._transformer.perform(known, plan)
