"""Planning of instances of flows, without a store: nothing is lost, nothing runs twice, and what can never run is refused."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from odf_testing.flow_bench import TRANSFORM, VERIFY

from odf_common.errors import InvalidInput
from odf_common.identity.dataset_refs import DatasetId, Name
from odf_common.metadata.scalars import Timestamp
from odf_common.resources.references import AccountHandle
from odf_common.resources.registry import Types
from odf_common.resources.resource_manifests import manifests_of, written_resources
from odf_common.resources.scalar_formats import Did, ResourceId
from odf_common.resources.specs import FlowSpec
from odf_coordinator.resources.flow_checks import NotCarriedOut, check_flow, flow_spec
from odf_coordinator.resources.flows.instances import (
    MAX_DEPTH,
    MAX_FAILURES,
    Audience,
    FlowInstance,
    ObservedEvent,
    RunCause,
    RunOutcome,
    Trigger,
    WaitingRecords,
    advance,
)

SECOND = 1_000_000_000
START = Timestamp.parse("2026-01-01T00:00:00Z")
TARGET = "7d4e2c1e-77d1-4a0c-8e57-0d6c1f3b9a21"
OWNER = AccountHandle(
    id=ResourceId("6f6e2c1e-77d1-4a0c-8e57-0d6c1f3b9a21"),
    did=Did(DatasetId.of_key(bytes(32))),
    name=Name("odf"),
)
AUDIENCE = Audience(target=TARGET, targets=(TARGET,), owner=OWNER)
NEW = FlowInstance(since=START)
UPDATES = "{kind: Event, events: {type: dataset.ref.updated}, cooldown: 10s}"


def a_flow(target: str = "'Dataset:w.%'", triggers: str = "", tasks: str = TRANSFORM) -> FlowSpec:
    text = f"{{$schema: Flow, headers: {{name: f}}, spec: {{target: {target}, triggers: [{triggers}], tasks: [{tasks}]}}}}"
    (manifest,) = manifests_of(written_resources(text.encode()), Types())
    return flow_spec(manifest.spec)


def an_event(number: int, *, dataset: str = TARGET, depth: int = 0) -> ObservedEvent:
    about = {"id": dataset, "name": "w.a", "account": "odf"}
    plain = {"specversion": "1.0", "id": str(number), "source": "/", "type": "dataset.ref.updated"}
    return ObservedEvent(plain={**plain, "time": str(START), "dataset": about}, depth=depth)


def after(seconds: float) -> Timestamp:
    return Timestamp(START.ns + round(seconds * SECOND))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("wait"), st.integers(1, 30)),
            st.tuples(st.just("event"), st.integers(1, 3)),
            st.tuples(st.just("end"), st.sampled_from([RunOutcome.SUCCEEDED, RunOutcome.CANCELLED])),
            st.tuples(st.just("restart"), st.just(0)),
        ),
        max_size=40,
    )
)
def test_each_event_leads_to_a_run_that_starts_after_it_and_one_runs_at_a_time(
    steps: list[tuple[str, int | RunOutcome]],
) -> None:
    triggers = {"t": a_flow(triggers=UPDATES).triggers[0]}
    instance, seconds, events, runs, unheard = NEW, 0.0, 0, 0, False

    def look(*found: ObservedEvent) -> Timestamp | None:
        nonlocal instance, runs, unheard
        advanced = advance(instance, triggers, after(seconds), found, AUDIENCE)
        instance = advanced.instance
        unheard |= bool(found)
        if instance.is_due(is_paused=False):
            runs += 1
            instance = instance.start(runs)
            unheard = bool(instance.triggers["t"]["gathered"])
        return advanced.wake_at

    for kind, value in steps:
        if kind == "wait":
            assert isinstance(value, int)
            seconds += value
            look()
        elif kind == "event":
            assert isinstance(value, int)
            look(*(an_event(events + n) for n in range(value)))
            events += value
        elif kind == "end" and instance.run is not None:
            assert isinstance(value, RunOutcome)
            instance = instance.finish(value, after(seconds))
            look()
        elif kind == "restart":
            instance = FlowInstance.from_plain(instance.plain())
    for _ in range(3):  # the last cooldown ends, and nothing is left
        if instance.run is not None:
            instance = instance.finish(RunOutcome.SUCCEEDED, after(seconds))
        seconds += 10
        look()
    assert not unheard
    assert runs <= events
    assert (runs == 0) is (events == 0)


@given(st.lists(st.integers(1, 300), max_size=30))
def test_a_schedule_never_runs_twice_for_a_time_and_catches_up_once(pauses: list[int]) -> None:
    triggers = {"t": a_flow(triggers="{kind: Schedule, cron: '*/1 * * * *'}").triggers[0]}
    instance, seconds = advance(NEW, triggers, START, (), AUDIENCE).instance, 0
    for pause in pauses:
        minutes = seconds // 60
        seconds += pause
        instance = advance(instance, triggers, after(seconds), (), AUDIENCE).instance
        assert instance.is_due(is_paused=False) is (seconds // 60 > minutes)
        instance = replace(instance, pending=None)


def test_what_fires_during_a_run_is_merged_and_manual_counts() -> None:
    running = NEW.fire(RunCause(trigger=Trigger.MANUAL)).start(1)
    schedule, event = (
        RunCause(trigger=Trigger.SCHEDULE),
        RunCause(trigger=Trigger.EVENT, event={"id": "1"}, depth=2),
    )
    assert running.fire(event).fire(schedule).pending == RunCause(
        trigger=Trigger.SCHEDULE, event={"id": "1"}, depth=2
    )
    merged = running.fire(RunCause(trigger=Trigger.MANUAL)).fire(event).pending
    assert merged is not None
    assert merged.trigger is Trigger.MANUAL
    assert not running.fire(event).is_due(is_paused=False)


def test_an_instance_pauses_after_ten_failures_and_runs_when_a_user_says_so() -> None:
    instance = NEW
    for number in range(MAX_FAILURES):
        instance = instance.fire(RunCause(trigger=Trigger.SCHEDULE))
        assert instance.is_due(is_paused=False)
        instance = instance.start(number).finish(RunOutcome.FAILED, START)
    assert not instance.fire(RunCause(trigger=Trigger.SCHEDULE)).is_due(is_paused=False)
    by_hand = instance.fire(RunCause(trigger=Trigger.MANUAL))
    assert by_hand.is_due(is_paused=True)
    assert by_hand.start(99).finish(RunOutcome.SUCCEEDED, START).failures == 0


SOURCE = "5a4e2c1e-77d1-4a0c-8e57-0d6c1f3b9a21"


class Fed:
    """An instance that waits for 10 records, or for 5 seconds."""

    def __init__(self) -> None:
        text = f"{{kind: Source, source: {SOURCE}, minRecordsToAwait: 10, maxAwaitInterval: 5s}}"
        self.triggers = {"t": a_flow(triggers=text).triggers[0]}
        self.instance = NEW

    def see(self, records: int, seconds: float, *, asked: float | None = None, is_last: bool = False) -> bool:
        """Return whether a run starts now for the records that wait."""
        waiting = WaitingRecords(
            records=records, asked=after(seconds if asked is None else asked), is_last=is_last
        )
        audience = replace(AUDIENCE, records={(SOURCE, TARGET): waiting})
        self.instance = advance(self.instance, self.triggers, after(seconds), (), audience).instance
        self.instance = FlowInstance.from_plain(self.instance.plain())
        if not self.instance.is_due(is_paused=False):
            return False
        assert self.instance.pending == RunCause(trigger=Trigger.SOURCE)
        self.instance = self.instance.start(1)
        return True

    def end(self, outcome: RunOutcome, seconds: float) -> None:
        self.instance = self.instance.finish(outcome, after(seconds))


def test_a_source_fires_for_enough_records_or_after_a_wait() -> None:
    fed = Fed()
    assert [fed.see(4, 0), fed.see(4, 4), fed.see(9, 4.9), fed.see(9, 5)] == [False, False, False, True]
    assert not fed.see(30, 6), "one run at a time"
    fed.end(RunOutcome.SUCCEEDED, 7)
    assert not fed.see(30, 7.5, asked=6.5), "counted before the run ended"
    assert fed.see(10, 8)
    fed.end(RunOutcome.SUCCEEDED, 9)
    assert [fed.see(0, 10), fed.see(1, 11), fed.see(1, 15), fed.see(1, 16)] == [False, False, False, True]
    fed.end(RunOutcome.SUCCEEDED, 17)
    assert fed.see(1, 18, is_last=True), "a source that is being deleted has no more records"


def test_records_of_a_failed_run_start_another_one_after_a_pause() -> None:
    fed = Fed()
    assert fed.see(10, 0)
    fed.end(RunOutcome.FAILED, 1)
    assert [fed.see(10, 2), fed.see(10, 10.9), fed.see(10, 11)] == [False, False, True]
    fed.end(RunOutcome.FAILED, 12)
    assert [fed.see(10, 31.9), fed.see(10, 32)] == [False, True]


@pytest.mark.parametrize(
    ("event", "fires"),
    [
        (an_event(1), True),
        (an_event(1, dataset="another"), False),
        (an_event(1, depth=MAX_DEPTH), True),
        (an_event(1, depth=MAX_DEPTH + 1), False),
    ],
)
def test_an_event_concerns_the_instance_of_its_dataset(event: ObservedEvent, *, fires: bool) -> None:
    triggers = {"t": a_flow(triggers=UPDATES).triggers[0]}
    instance = advance(NEW, triggers, START, [event], AUDIENCE).instance
    assert (instance.pending is not None) is fires


def test_the_state_of_a_trigger_that_the_flow_no_longer_has_is_dropped() -> None:
    old = {"old": a_flow(triggers=UPDATES).triggers[0]}
    instance = advance(NEW, old, START, [an_event(1), an_event(2)], AUDIENCE).instance
    assert instance.triggers["old"]["gathered"] == ["2"]
    assert advance(instance, {}, START, (), AUDIENCE).instance.triggers == {}


@pytest.mark.parametrize(
    ("flow", "place", "text"),
    [
        ({"tasks": ""}, "spec.tasks", "needs a task"),
        ({"tasks": "{kind: Compaction}"}, "spec.tasks[0].kind", "this node cannot compact datasets yet"),
        ({"tasks": f"{VERIFY}, {{kind: GarbageCollection}}"}, "spec.tasks[1].kind", "cannot collect garbage"),
        ({"target": "'Account:%'"}, "spec.tasks[0]", "Transform needs a Dataset; the target selects Account"),
        (
            {"target": "{type: Dataset, labels: {datasetKind: Root}}"},
            "spec.tasks[0]",
            "Transform is impossible for Root datasets",
        ),
        (
            {
                "target": "{type: Dataset, labels: {datasetKind: Derivative}}",
                "tasks": "{kind: Ingest, source: s}",
            },
            "spec.tasks[0]",
            "Ingest is impossible for Derivative datasets",
        ),
        ({"triggers": "{kind: Dataset, dataset: 'w.%'}"}, "spec.triggers[0]", "the flow starts itself"),
        (
            {"triggers": "{kind: Event, events: {type: flow.run.finished}}"},
            "spec.triggers[0]",
            "the flow starts itself",
        ),
    ],
)
def test_a_flow_that_can_never_run_or_starts_itself_is_refused(
    flow: dict[str, str], place: str, text: str
) -> None:
    with pytest.raises(InvalidInput, match=text) as refused:
        check_flow(a_flow(**flow))
    assert refused.value.where == place
    assert isinstance(refused.value, NotCarriedOut) is place.endswith("kind")


@pytest.mark.parametrize(
    "flow",
    [
        {"triggers": UPDATES},
        {"triggers": "{kind: Dataset, dataset: 'raw.%'}"},
        {"triggers": "{kind: Dataset, dataset: 'w.%'}", "tasks": VERIFY},
        {"triggers": "{kind: Event, events: {type: flow.run.finished, data.flow: other}}"},
        {"tasks": "{kind: Ingest, source: s}", "triggers": "{kind: Source, source: s}"},
    ],
)
def test_a_flow_that_may_run_is_accepted(flow: dict[str, str]) -> None:
    check_flow(a_flow(**flow))
