"""Passes over the flows of the store: instances follow the selectors, triggers fire, and due runs start.

A pass is one transaction, so a run starts once however often the node is killed, and however many coordinators plan.
"""

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import structlog

from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Clock
from odf_common.resources.conditions import FALSE, FLOW_ACTIVITY, TRUE, StatusCondition, with_condition
from odf_common.resources.labels import labels_by_key
from odf_common.resources.phases import Phase
from odf_common.resources.registry import Types
from odf_common.resources.scalar_formats import CORE_BASE, ResourceId
from odf_common.resources.specs import FlowSpec, FlowTriggerDataset, FlowTriggerEvent
from odf_coordinator.resources.attempts import with_status
from odf_coordinator.resources.flow_checks import flow_spec
from odf_coordinator.resources.flows.flow_events import (
    Heads,
    end_listening,
    is_listening,
    observe_heads,
    read_events,
)
from odf_coordinator.resources.flows.flow_runs import (
    FLOW_KEY,
    RunKey,
    drop_history,
    instance_of,
    start_run,
)
from odf_coordinator.resources.flows.flow_targets import MaySelect, all_flows, find_targets, own_only
from odf_coordinator.resources.flows.instances import (
    MAX_DEPTH,
    Audience,
    FlowInstance,
    ObservedEvent,
    RunCause,
    SourceRecords,
    Trigger,
    advance,
)
from odf_coordinator.resources.flows.task_records import FLOWS, remove_task, task_run, tasks_of
from odf_coordinator.resources.lookups import account_of
from odf_coordinator.resources.store import (
    EventKind,
    ResourceStore,
    StoredResource,
    Transaction,
)

log = structlog.stdlib.get_logger(__name__)

PAUSED: Final = f"{CORE_BASE}/flow/Paused"
SHOWN_TARGETS: Final = 20
NO_RECORDS: Final[SourceRecords] = MappingProxyType({})
_LOOKUP: Final = Types().uri_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The result of a pass."""

    wake_at: dict[ResourceId, Timestamp] = field(default_factory=dict)
    """Times of the next pass over flows; absent: the next one follows a change."""
    seen: list[ResourceId] = field(default_factory=list)
    """The flows of this pass."""
    running: list[RunKey] = field(default_factory=list)
    """Instances with a run in progress."""
    cancelled: list[RunKey] = field(default_factory=list)
    """Instances whose run has to end."""
    skipped: list[RunKey] = field(default_factory=list)
    """Instances whose run ended at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPlanner:
    """Plans the runs of flows."""

    store: ResourceStore
    clock: Clock
    depth: Callable[[ResourceId], int] = lambda _: 0
    """Number of runs that led to a commit to this Dataset: one more than that of the run in progress on it."""
    may_select: MaySelect = own_only
    retained_runs: int = 20

    def plan(
        self, due: Container[ResourceId] | None, heads: Heads, records: SourceRecords = NO_RECORDS
    ) -> Planned:
        """Look at flows: those that are due (None: all), and those that wait for the events that have happened.

        `records` are those that wait at sources, as far as they were counted now.
        """
        planned = Planned()
        with self.store.transaction() as transaction:
            now = self.clock.now()
            flows = all_flows(transaction)
            events = self._events(transaction, flows, heads, now)
            for flow in flows:
                is_due = due is None or flow.id in due
                if is_due or (events and waits_for_events(flow)):
                    _Step(self, transaction, flow, now, planned).run(events, records)
        return planned

    def run_now(self, flow_id: ResourceId, target: ResourceId | None) -> list[FlowInstance]:
        """Start a run of one instance or of all, or have it follow the run in progress; return the instances."""
        with self.store.transaction() as transaction:
            flow = transaction.by_id(flow_id)
            if flow is None:
                return []
            now = self.clock.now()
            _Step(self, transaction, flow, now, Planned()).run([])  # its targets may be new
            notes = transaction.notes(flow_id)
            targets = [ResourceId(key) for key in notes if key != FLOW_KEY and target in {None, key}]
            for key in targets:
                instance = replace(FlowInstance.from_plain(notes[key]), failures=0)
                fired = instance.fire(RunCause(trigger=Trigger.MANUAL))
                transaction.save_notes(flow_id, {key: fired.plain()})
            _Step(self, transaction, flow, now, Planned()).run([])
            found = (instance_of(transaction, RunKey(flow_id, key)) for key in targets)
            return [instance for instance in found if instance is not None]

    def remove_finished(self, tasks: Iterable[ResourceId]) -> None:
        """Remove tasks that a user has deleted, if they have ended; the run of the others is cancelled."""
        with self.store.transaction() as transaction:
            for found in transaction.by_ids([*tasks]).values():
                if task_run(found).is_finished:
                    remove_task(transaction, found, self.clock.now().ms)

    def _events(
        self, transaction: Transaction, flows: Iterable[StoredResource], heads: Heads, now: Timestamp
    ) -> list[ObservedEvent]:
        if not is_listening(transaction):
            return []
        if not any(map(waits_for_events, flows)):
            end_listening(transaction)
            return []
        events = [*observe_heads(transaction, heads, now, self.depth), *read_events(transaction)]
        for event in events:
            if event.depth > MAX_DEPTH:
                log.warning(
                    "flows start each other in a circle; the event is ignored", node_event=event.plain["id"]
                )
        return events


def waits_for_events(flow: StoredResource) -> bool:
    """Return whether a flow has a trigger for events."""
    triggers = flow_spec(flow.document["spec"]).triggers
    return any(isinstance(one, FlowTriggerEvent | FlowTriggerDataset) for one in triggers)


def is_paused(flow: StoredResource) -> bool:
    """Return whether a user has paused a flow by an annotation."""
    annotations = labels_by_key(flow.document["headers"]["annotations"], _LOOKUP)
    return annotations.get(PAUSED) is True


class _Step:
    """One flow in a pass."""

    def __init__(
        self,
        planner: FlowPlanner,
        transaction: Transaction,
        flow: StoredResource,
        now: Timestamp,
        planned: Planned,
    ) -> None:
        self._records = NO_RECORDS
        self._planner, self._transaction, self._flow, self._now = planner, transaction, flow, now
        self._planned = planned
        self._spec: FlowSpec = flow_spec(flow.document["spec"])
        self._notes = transaction.notes(flow.id)
        self._instances = {
            ResourceId(key): FlowInstance.from_plain(plain)
            for key, plain in self._notes.items()
            if key != FLOW_KEY
        }
        self._dropped: list[ResourceId] = []
        self._wake_times: list[Timestamp] = []

    def run(self, events: Sequence[ObservedEvent], records: SourceRecords = NO_RECORDS) -> None:
        """Advance all instances, and start their runs."""
        self._records = records
        flow = self._flow
        is_ready = flow.phase == Phase.READY.value
        targets = find_targets(self._transaction, flow, self._spec.target, self._planner.may_select)
        if is_ready:
            self._follow_selector(targets)
            self._forget_failures()
        self._advance(events, targets, is_ready=is_ready)
        self._note_cancellations(targets)
        self._save()
        self._report(targets)

    def _follow_selector(self, targets: Mapping[ResourceId, StoredResource]) -> None:
        """Create instances of new targets, and drop those of others; a run in progress ends first."""
        for target in targets:
            self._instances.setdefault(target, FlowInstance(since=self._now))
        for target, instance in [*self._instances.items()]:
            if target in targets:
                continue
            if instance.run is not None:
                self._instances[target] = replace(instance, pending=None, triggers={})
                continue
            del self._instances[target]
            self._dropped.append(target)
            if self._is_gone(target):
                drop_history(self._transaction, RunKey(self._flow.id, target), 0, self._now)

    def _is_gone(self, target: ResourceId) -> bool:
        found = self._transaction.by_id(target)
        return found is None or found.deleted_ms is not None

    def _forget_failures(self) -> None:
        """Forget failed runs after the flow was applied again."""
        note = self._notes.get(FLOW_KEY, {})
        if note.get("generation") != self._flow.generation:
            changed = {**note, "generation": self._flow.generation}
            self._transaction.save_notes(self._flow.id, {FLOW_KEY: changed})
            self._instances = {key: replace(one, failures=0) for key, one in self._instances.items()}

    def _advance(
        self,
        events: Sequence[ObservedEvent],
        targets: Mapping[ResourceId, StoredResource],
        *,
        is_ready: bool,
    ) -> None:
        texts = [_canonical(plain) for plain in self._flow.document["spec"]["triggers"]]
        triggers = dict(zip(texts, self._spec.triggers, strict=True))
        paused = is_paused(self._flow)
        owner = account_of(self._flow)
        for key, instance in self._instances.items():
            if key not in targets:
                continue
            audience = Audience(target=key, targets=targets, owner=owner, records=self._records)
            advanced = advance(instance, triggers, self._now, events, audience)
            if advanced.wake_at is not None:
                self._wake_times.append(advanced.wake_at)
            self._instances[key] = advanced.instance
            if is_ready and advanced.instance.is_due(is_paused=paused):
                self._start(targets[key])

    def _start(self, target: StoredResource) -> None:
        instance = self._instances[target.id]
        started, is_skipped = start_run(self._transaction, self._flow, target, instance, self._now)
        self._instances[target.id] = started
        if is_skipped:
            key = RunKey(self._flow.id, target.id)
            drop_history(self._transaction, key, self._planner.retained_runs, self._now)
            self._planned.skipped.append(key)

    def _note_cancellations(self, targets: Mapping[ResourceId, StoredResource]) -> None:
        """Note the runs whose target is gone, and those with a task that a user has deleted."""
        for key, instance in self._instances.items():
            run_key = RunKey(self._flow.id, key)
            if instance.run is None:
                continue
            tasks = tasks_of(self._transaction, self._flow.id, key, run=instance.run)
            is_deleted = any(task.resource.deleted_ms is not None for task in tasks)
            if is_deleted or (key not in targets and self._is_gone(key)):
                self._planned.cancelled.append(run_key)
            self._planned.running.append(run_key)

    def _save(self) -> None:
        plain: dict[str, Any] = {key: one.plain() for key, one in self._instances.items()}
        changed = {key: note for key, note in plain.items() if self._notes.get(key) != note}
        self._transaction.save_notes(self._flow.id, {**changed, **dict.fromkeys(self._dropped)})

    def _report(self, targets: Mapping[ResourceId, StoredResource]) -> None:
        """Write the condition of the flow, if it has changed."""
        wake_at = min(self._wake_times, default=None)
        self._planned.seen.append(self._flow.id)
        if wake_at is not None:
            self._planned.wake_at[self._flow.id] = wake_at
        flow = self._transaction.by_id(self._flow.id)
        assert flow is not None
        status = flow.document["status"]
        before = {key: StatusCondition.from_plain(one) for key, one in status["conditions"].items()}
        after = with_condition(before, FLOW_ACTIVITY, self._activity(targets, wake_at))
        if after is not before:
            conditions = {key: one.plain() for key, one in after.items()}
            change = with_status(
                flow,
                {**status, "conditions": conditions},
                EventKind.CONDITION_CHANGED,
                self._now.ms,
                subject=FLOWS,
            )
            self._transaction.save([change])

    def _activity(
        self, targets: Mapping[ResourceId, StoredResource], wake_at: Timestamp | None
    ) -> StatusCondition:
        running = [key for key, one in self._instances.items() if one.run is not None]
        ends = [one.last for one in self._instances.values() if one.last is not None]
        paused = is_paused(self._flow)
        details = {
            "targets": len(targets),
            "running": [targets[key].name for key in running if key in targets][:SHOWN_TARGETS],
            "pausedTargets": sum(one.is_paused for one in self._instances.values()),
            "nextRun": None if wake_at is None or paused else str(wake_at),
            "lastRun": max(ends, key=lambda one: str(one["finishedAt"]), default=None),
        }
        return StatusCondition(
            value=FALSE if paused else TRUE,
            code="paused" if paused else "running" if running else "waiting",
            observed_generation=self._flow.generation,
            last_transition_time=self._now,
            details=details,
        )


def _canonical(plain: object) -> str:
    return json.dumps(plain, sort_keys=True, ensure_ascii=False)
