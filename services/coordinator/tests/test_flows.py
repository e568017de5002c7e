"""Flows over a store in memory: triggers, instances, runs, failures, deletion."""

import json
from collections.abc import Sequence

import pytest
from odf_testing.flow_bench import NODE, TRANSFORM, VERIFY, FlowBench, dataset, flow

from odf_common.errors import InvalidInput, Unavailable
from odf_common.resources.registry import TASK
from odf_common.resources.resource_manifests import InvalidManifests
from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.resources.apply import ResourceGone, ResourceNotFound
from odf_coordinator.resources.callers import Subject
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.flow_checks import NotCarriedOut
from odf_coordinator.resources.flows.flow_controller import FlowStillRuns
from odf_coordinator.resources.flows.flow_runs import RunKey
from odf_coordinator.resources.flows.flow_targets import own_only
from odf_coordinator.resources.flows.flow_use_cases import NoSuchTarget
from odf_coordinator.resources.flows.instances import SourceRecords
from odf_coordinator.resources.flows.source_counts import SourceCounter
from odf_coordinator.resources.flows.task_port import TaskRequest
from odf_coordinator.resources.requests import RequestKey, RequestKeyReused
from odf_coordinator.resources.store import Query
from odf_coordinator.resources.use_cases import ResourceRef

EACH_MINUTE = "{kind: Schedule, cron: '*/1 * * * *'}"
ON_UPDATE = "{kind: Event, events: {type: dataset.ref.updated}%s}"


@pytest.fixture
def bench() -> FlowBench:
    return FlowBench()


def fail(_: TaskRequest) -> str:
    raise InvalidInput(text="no")


def tasks_left(bench: FlowBench) -> list[str]:
    with bench.store.read() as snapshot:
        page = snapshot.find(Query(types=(type_id(TASK.uri),), include_deleted=True))
    return [task.name for task in page.resources]


def test_a_schedule_runs_the_tasks_of_each_target_in_order(bench: FlowBench) -> None:
    bench.apply(dataset("a"), dataset("b"), flow(triggers=EACH_MINUTE, tasks=f"{TRANSFORM}, {VERIFY}"))
    bench.work()
    assert bench.tasks.done == []
    bench.clock.pass_seconds(30)
    bench.work()
    assert sorted(bench.tasks.done) == [
        ("a", "TaskTransform"),
        ("a", "TaskVerify"),
        ("b", "TaskTransform"),
        ("b", "TaskVerify"),
    ]
    assert [kind for name, kind in bench.tasks.done if name == "a"] == ["TaskTransform", "TaskVerify"]
    assert bench.states() == ["Succeeded", "Succeeded"]
    assert bench.activity()["details"]["nextRun"] == "2026-01-01T00:02:00Z"


def test_a_schedule_catches_up_once_after_downtime(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow(triggers=EACH_MINUTE))
    bench.work()
    bench.clock.pass_seconds(3600)
    again = bench.restart()
    again.work()
    assert len(again.tasks.done) == 1


def test_the_task_resources_of_a_run_are_owned_by_the_flow_and_labelled(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow())
    bench.plan()
    bench.run_now()
    bench.work()
    task = bench.get("Task", "nightly.1.0")
    headers = task.document["headers"]
    flow_id = bench.get("Flow", "nightly").id
    assert headers["labels"] == {"flow": flow_id, "target": bench.id_of("a"), "outcome": "Succeeded"}
    assert headers["ownerReferences"] == [{"type": "Flow", "id": flow_id, "name": "nightly"}]
    assert (task.phase, task.document["status"]["observedGeneration"]) == ("Ready", 1)


def test_a_failed_task_ends_the_run_and_later_tasks_are_skipped(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow(tasks=f"{TRANSFORM}, {VERIFY}"))
    bench.tasks.act = fail
    bench.plan()
    bench.run_now()
    bench.work()
    (run,) = bench.history()
    assert run["state"] == "Failed"
    assert [task["state"] for task in run["tasks"]] == ["Failed", "Skipped"]
    assert run["tasks"][0]["message"] == "no"
    assert bench.get("Flow", "nightly").phase == "Ready"


def test_a_transient_failure_is_retried_three_times(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow())
    attempts = []

    def lose(_: TaskRequest) -> str:
        attempts.append(1)
        if len(attempts) < 4:
            raise Unavailable(what="the engine")
        return ""

    bench.tasks.act = lose
    bench.plan()
    bench.run_now()
    bench.work()
    assert (len(attempts), bench.states()) == (4, ["Succeeded"])
    attempts.clear()
    bench.tasks.act = lambda _: lose_always(attempts)
    bench.run_now()
    bench.work()
    assert (len(attempts), bench.states()) == (4, ["Succeeded", "Failed"])


def lose_always(attempts: list[int]) -> str:
    attempts.append(1)
    raise Unavailable(what="the engine")


def test_ten_failed_runs_pause_the_instance_until_a_manual_run_or_apply(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow(triggers=EACH_MINUTE))
    bench.tasks.act = fail
    for _ in range(15):
        bench.clock.pass_seconds(60)
        bench.work()
    assert len(bench.tasks.requests) == 10
    assert bench.activity()["details"]["pausedTargets"] == 1
    bench.tasks.act = lambda _: ""
    bench.run_now()
    bench.work()
    bench.clock.pass_seconds(60)
    bench.work()
    assert len(bench.tasks.done) == 2
    assert len(bench.history()) == 3, "older runs are dropped"


def test_an_annotation_pauses_a_flow_and_what_was_missed_runs_once(bench: FlowBench) -> None:
    paused = "annotations: {'https://opendatafabric.org/schemas/flow/v1alpha1/Paused': true}"
    bench.apply(dataset("a"), flow(f"nightly, {paused}", triggers=EACH_MINUTE))
    for _ in range(3):
        bench.clock.pass_seconds(60)
        bench.work()
    assert bench.tasks.done == []
    assert bench.activity()["code"] == "paused"
    bench.run_now()
    bench.work()
    assert len(bench.tasks.done) == 1
    bench.clock.pass_seconds(60)
    bench.work()
    bench.apply(flow("nightly, annotations: {}", triggers=EACH_MINUTE))
    bench.work()
    assert len(bench.tasks.done) == 2


def test_instances_follow_the_selector(bench: FlowBench) -> None:
    bench.apply(
        dataset("w.a", labels="{env: prod}"),
        dataset("w.b"),
        flow(target="{type: Dataset, name: 'w.%', labels: {env: prod}}", triggers=ON_UPDATE % ""),
    )
    bench.work()
    bench.commit("w.a")
    bench.commit("w.b")
    bench.work()
    assert [name for name, _ in bench.tasks.done] == ["w.a"]
    bench.apply(dataset("w.b", labels="{env: prod}"))
    bench.work()
    bench.commit("w.b")
    bench.work()
    assert [name for name, _ in bench.tasks.done] == ["w.a", "w.b"]
    bench.resources.rename(*_named("w.a"), "x.a")
    bench.work()
    bench.commit("x.a")
    bench.work()
    assert [name for name, _ in bench.tasks.done] == ["w.a", "w.b"]
    assert bench.activity()["details"]["targets"] == 1


def _named(name: str) -> tuple[Subject, ResourceRef]:
    return NODE, ResourceRef(type="Dataset", ref=name)


def test_events_within_a_cooldown_run_once_at_its_end(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow(triggers=ON_UPDATE % ", cooldown: 20s"))
    bench.work()
    for _ in range(3):
        bench.commit("a")
        bench.work()
    assert len(bench.tasks.done) == 1
    bench.clock.pass_seconds(20)
    again = bench.restart()
    again.work()
    assert len(again.tasks.done) == 1
    event = again.tasks.requests[0].event
    assert event is not None
    assert event["ref"]["interval"] == {"start": 2, "end": 2}


def test_a_full_batch_does_not_wait_for_the_end_of_the_cooldown(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow(triggers=ON_UPDATE % ", cooldown: 20s, cooldownMaxBatch: 2"))
    bench.work()
    for _ in range(3):
        bench.commit("a")
        bench.work()
    assert len(bench.tasks.done) == 2


def test_a_dataset_trigger_runs_the_targets_that_read_it(bench: FlowBench) -> None:
    trigger = "{kind: Dataset, dataset: raw, events: [dataset.data.added]}"
    bench.apply(dataset("raw", "Root"), dataset("a"), flow(target="Dataset:a", triggers=trigger))
    bench.work()
    bench.commit("raw", records=0)
    bench.work()
    assert bench.tasks.done == []
    bench.commit("raw", records=2)
    bench.work()
    assert bench.tasks.done == [("a", "TaskTransform")]


def test_a_commit_that_a_kill_hid_is_seen_once_at_the_next_start(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow(triggers=ON_UPDATE % ""))
    bench.work()
    bench.commit("a")
    again = bench.restart()
    for _ in range(2):  # the coordinator announces all heads
        again.announce()
        again.work()
    assert len(again.tasks.done) == 1


def test_flows_that_start_each_other_stop_at_a_depth(bench: FlowBench) -> None:
    trigger = "{kind: Dataset, dataset: %s}"
    bench.apply(
        dataset("a"),
        dataset("b"),
        flow("one", target="Dataset:a", triggers=trigger % "b"),
        flow("two", target="Dataset:b", triggers=trigger % "a"),
    )
    bench.work()

    def update(request: TaskRequest) -> str:
        bench.commit(request.target["headers"]["name"])
        return ""

    bench.tasks.act = update
    bench.commit("a")
    bench.work()
    assert len(bench.tasks.done) == 17


def test_a_finished_run_starts_a_flow_that_waits_for_it(bench: FlowBench) -> None:
    after = "{kind: Event, events: {type: flow.run.finished, data.flow: first, data.outcome: Succeeded}}"
    bench.apply(dataset("a"), flow("first"), flow("second", triggers=after, tasks=VERIFY))
    bench.work()
    bench.run_now("first")
    bench.work()
    assert bench.tasks.done == [("a", "TaskTransform"), ("a", "TaskVerify")]


def test_what_fires_during_a_run_is_one_follow_up(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow(triggers=f"{EACH_MINUTE}, {ON_UPDATE % ''}"))
    bench.work()
    bench.run_now()
    for _ in range(3):
        bench.commit("a")
        bench.clock.pass_seconds(60)
        bench.plan()
    assert bench.states() == ["Waiting"]
    bench.work()
    assert bench.states() == ["Succeeded", "Succeeded"]


def test_a_run_that_a_kill_cut_is_repeated_once_and_not_doubled(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow(tasks=f"{TRANSFORM}, {VERIFY}", triggers=EACH_MINUTE))
    bench.work()
    bench.clock.pass_seconds(60)
    (key,) = bench.plan()
    killed = _Killed()

    def die(request: TaskRequest) -> str:
        if type(request.spec).__name__ == "TaskVerify":
            raise killed
        return ""

    bench.tasks.act = die
    with pytest.raises(_Killed):
        bench.runner.perform(key)
    again = bench.restart()
    again.clock.pass_seconds(15)
    again.work()
    assert again.tasks.done == [("a", "TaskVerify")]
    assert again.states() == ["Succeeded"]


class _Killed(BaseException):
    """No handler sees it, as none sees SIGKILL."""


def test_a_task_that_another_runner_has_is_not_begun(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow())
    bench.plan()
    bench.run_now()
    (key,) = bench.plan()
    other = bench.restart()

    def look(_: TaskRequest) -> str:
        other.perform_once(key)
        assert other.tasks.requests == []
        return ""

    bench.tasks.act = look
    bench.runner.perform(key)
    assert bench.states() == ["Succeeded"]


def test_a_target_that_a_task_cannot_handle_is_skipped(bench: FlowBench) -> None:
    bench.apply(dataset("a", "Root"), flow())
    bench.plan()
    bench.run_now()
    bench.work()
    (run,) = bench.history()
    assert (run["state"], bench.tasks.requests) == ("Skipped", [])
    assert run["tasks"][0]["message"] == "Transform is impossible for a Root dataset"


def test_a_deleted_flow_ends_its_runs_and_leaves_no_tasks(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow(triggers=EACH_MINUTE))
    bench.work()
    bench.clock.pass_seconds(60)
    bench.work()
    bench.run_now()
    assert bench.states() == ["Succeeded", "Waiting"]
    bench.delete("Flow", "nightly")
    bench.reconcile()
    assert tasks_left(bench) == []
    bench.clock.pass_seconds(600)
    bench.work()
    assert len(bench.tasks.done) == 1


def test_finished_tasks_of_a_deleted_flow_stay_if_they_are_orphaned(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow(triggers=EACH_MINUTE))
    bench.work()
    bench.clock.pass_seconds(60)
    bench.work()
    bench.run_now()
    bench.delete("Flow", "nightly", is_orphaning=True)
    bench.reconcile()
    assert tasks_left(bench) == ["nightly.1.0"]
    assert "ownerReferences" not in bench.get("Task", "nightly.1.0").document["headers"]


def test_a_repeated_request_to_run_a_flow_starts_no_other_run(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow())
    bench.plan()
    key, wanted = RequestKey.read("k", b""), ResourceRef(type="Flow", ref="nightly")
    started = bench.runs.run_now(NODE, wanted, "", key)
    bench.work()
    assert bench.runs.run_now(NODE, wanted, "", key) == started
    assert bench.states() == ["Succeeded"]
    with pytest.raises(RequestKeyReused):
        bench.runs.run_now(NODE, wanted, "a", RequestKey.read("k", b"a"))


def test_a_flow_is_deleted_after_its_running_task_has_ended(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow())
    bench.plan()
    bench.run_now()
    (key,) = bench.plan()

    def delete(request: TaskRequest) -> str:
        bench.delete("Flow", "nightly")
        with pytest.raises(FlowStillRuns):
            bench.controller.finalize(dict(bench.by_id(key.flow).document))
        bench.runner.extend_leases()
        request.cancellation.check()
        return ""

    bench.tasks.act = delete
    bench.runner.perform(key)
    (task,) = bench.tasks_of(key)
    assert task.details["runOutcome"] == "Cancelled"
    bench.reconcile()
    assert tasks_left(bench) == []


def test_a_deleted_task_cancels_its_run(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow(tasks=f"{TRANSFORM}, {VERIFY}"))
    bench.plan()
    bench.run_now()
    bench.delete("Task", "nightly.1.1")
    planned = bench.planner.plan(None, {})
    assert planned.cancelled == [RunKey(bench.get("Flow", "nightly").id, bench.id_of("a"))]


def test_a_target_that_a_flow_does_not_have_cannot_be_run(bench: FlowBench) -> None:
    bench.apply(dataset("a"), dataset("b"), flow(target="Dataset:a"))
    bench.plan()
    with pytest.raises(NoSuchTarget, match="nightly has no target b"):
        bench.run_now(target="b")
    (run,) = bench.run_now(target="a")
    assert (run["run"], run["state"], run["target"]["name"]) == (1, "Waiting", "a")


def test_a_renamed_flow_and_another_of_its_former_name_number_their_runs_apart(bench: FlowBench) -> None:
    bench.apply(dataset("a"), flow())
    bench.plan()
    bench.run_now()
    bench.work()
    bench.resources.rename(NODE, ResourceRef(type="Flow", ref="nightly"), "daily")
    bench.reconcile()
    bench.apply(flow())
    bench.plan()
    (run,) = bench.run_now()
    assert run["run"] == 2
    assert len(bench.history("daily")) == 1


def source(ingress: str = "{kind: RestEndpoint}") -> str:
    return f"{{$schema: Source, headers: {{name: orders}}, spec: {{ingress: {ingress}, read: {{kind: NdJson}}}}}}"


FROM_ORDERS = "{kind: Source, source: orders, minRecordsToAwait: 3}"
INGEST = "{kind: Ingest, source: orders}"


def test_a_source_starts_a_run_for_each_target_that_lacks_enough_records(bench: FlowBench) -> None:
    bench.apply(
        dataset("a", "Root"), dataset("b", "Root"), source(), flow(triggers=FROM_ORDERS, tasks=INGEST)
    )
    bench.plan()
    dids = {str(bench.get("Dataset", name).did): name for name in "ab"}
    waiting = {"a": 3, "b": 2}

    def count(document: bytes, datasets: Sequence[str]) -> list[int]:
        assert json.loads(document)["headers"]["name"] == "orders"
        return [waiting[dids[did]] for did in datasets]

    def note(flows: Sequence[ResourceId], records: SourceRecords) -> None:
        bench.planner.plan(flows, {}, records)

    counter = SourceCounter(bench.store, bench.clock, count, note, own_only)
    counter.work()
    bench.work()
    assert bench.tasks.done == [("a", "TaskIngest")]
    assert (bench.history()[0]["trigger"], bench.states()) == ("Source", ["Succeeded"])
    assert sorted(bench.tasks.requests[0].consumers) == sorted(dids)
    waiting |= {"a": 0, "b": 3}
    bench.clock.pass_seconds(1)
    counter.work()
    bench.work()
    assert [name for name, _ in bench.tasks.done] == ["a", "b"]


def test_a_source_that_is_polled_starts_no_run(bench: FlowBench) -> None:
    with pytest.raises(NotCarriedOut, match="orders is polled, so it does not tell when it has new data"):
        bench.apply(
            dataset("a", "Root"),
            source("{kind: Url, url: 'https://example.org'}"),
            flow(triggers=FROM_ORDERS, tasks=INGEST),
        )


def test_a_buffer_that_drops_records_is_refused(bench: FlowBench) -> None:
    buffer = "{kind: Memory, overflowPolicy: DropOldest}"
    with pytest.raises(InvalidManifests, match="supports Reject only"):
        bench.apply(source(f"{{kind: RestEndpoint, buffer: {buffer}}}"))


def test_what_was_removed_is_told_from_what_never_existed(bench: FlowBench) -> None:
    bench.apply(source())
    found = bench.get("Source", "orders")
    bench.delete("Source", "orders")
    with pytest.raises(ResourceGone):
        bench.get("Source", "orders")
    bench.reconcile()
    for ref in ("orders", "ORDERS", found.id):
        with pytest.raises(ResourceGone, match="was deleted"):
            bench.get("Source", ref)
    with pytest.raises(ResourceNotFound) as unknown:
        bench.get("Source", "others")
    assert not isinstance(unknown.value, ResourceGone)
    bench.apply(source())
    assert bench.get("Source", "orders").id != found.id
