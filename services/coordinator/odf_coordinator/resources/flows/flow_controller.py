"""The controller of Flow resources, and the loop that plans and runs them."""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from odf_common.chain.state import ChainState
from odf_common.errors import Conflict, OdfError
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Clock
from odf_common.resources.failures import DependencyMissing
from odf_common.resources.registry import DATASET, FLOW, TASK
from odf_common.resources.scalar_formats import ResourceId
from odf_common.resources.specs import FlowTriggerSource
from odf_common.service.reconcile_loop import Json
from odf_coordinator.resources.documents import references_in, type_id
from odf_coordinator.resources.flow_checks import NotCarriedOut, flow_spec
from odf_coordinator.resources.flows.flow_events import (
    PHASE_CHANGES,
    DatasetHead,
    Heads,
    begin_listening,
    is_listening,
)
from odf_coordinator.resources.flows.flow_planner import FlowPlanner, Planned, waits_for_events
from odf_coordinator.resources.flows.flow_runner import HOLDER, FlowRunner, count_run
from odf_coordinator.resources.flows.flow_runs import cancel_flow
from odf_coordinator.resources.flows.instances import RunOutcome, SourceRecords
from odf_coordinator.resources.flows.source_counts import is_polled
from odf_coordinator.resources.store import EventKind, ResourceEvent, ResourceStore, Snapshot, StoredResource
from odf_coordinator.resources.watch import Watch

log = structlog.stdlib.get_logger(__name__)

SWEEP_SECONDS: Final = 60.0
REPLAN_SECONDS: Final = 1.0
STOP_SECONDS: Final = 5.0  # that a deletion waits for running tasks
_OF_MATCHES: Final = frozenset(
    {
        EventKind.CREATED,
        EventKind.HEADERS_CHANGED,
        EventKind.SPEC_CHANGED,
        EventKind.RENAMED,
        EventKind.DELETION_REQUESTED,
        EventKind.DELETED,
    }
)
ReadHeads = Callable[[], Heads]
"""Returns the heads of all datasets of the node."""


class FlowStillRuns(Conflict):
    """A deleted flow waits for its running tasks."""

    MESSAGE = "tasks still run: {tasks}"
    ADVICE = "they were asked to end; the flow is deleted afterwards"

    tasks: str


class FlowController:
    """Reconciles flows: checks that what they refer to exists, and ends their runs when they are deleted."""

    def __init__(self, store: ResourceStore, clock: Clock, runner: FlowRunner, read_heads: ReadHeads) -> None:
        """Check flows of a store, and end the runs that `runner` carries out."""
        self._store, self._clock, self._runner, self._read_heads = store, clock, runner, read_heads

    def reconcile(self, resource: Json) -> Mapping[str, Json | None]:
        """Raise `DependencyMissing` unless all references are resolved; then events are reported from now on."""
        assert FLOW.spec is not None
        for path, (_, plain) in references_in(FLOW.spec, resource["spec"]).items():
            if "id" not in plain:
                raise DependencyMissing(text=f"{path}: {plain.get('name', 'it')} does not exist")
        with self._store.read() as snapshot:
            _check_sources(snapshot, resource)
            flow = snapshot.by_id(ResourceId(resource["headers"]["id"]))
            is_new = flow is not None and waits_for_events(flow) and not is_listening(snapshot)
        if is_new:
            heads = self._read_heads()
            with self._store.transaction() as transaction:
                if not is_listening(transaction):
                    begin_listening(transaction, heads)
        return {}

    def finalize(self, resource: Json) -> None:
        """End the runs of a flow, and remove their tasks; raises `FlowStillRuns`."""
        flow = ResourceId(resource["headers"]["id"])
        self._runner.cancel_flow(flow, STOP_SECONDS)
        with self._store.transaction() as transaction:
            running, cancelled = cancel_flow(transaction, flow, self._clock.now(), HOLDER)
        for _ in range(cancelled):
            count_run(RunOutcome.CANCELLED)
        if running:
            raise FlowStillRuns(tasks=", ".join(running))


def _check_sources(snapshot: Snapshot, flow: Json) -> None:
    """Raise `NotCarriedOut` for a trigger by a source that only a poll shows to have new data."""
    for n, trigger in enumerate(flow_spec(flow["spec"]).triggers):
        if not isinstance(trigger, FlowTriggerSource) or not trigger.source.id:
            continue
        source = snapshot.by_id(ResourceId(trigger.source.id))
        if source is not None and is_polled(source.document):
            text = f"{source.name} is polled, so it does not tell when it has new data; use a trigger of kind Schedule"
            raise NotCarriedOut(where=f"spec.triggers[{n}].source", text=text)


class FlowLoop:
    """Plans flows when something has happened or a time has come, and has their runs carried out."""

    def __init__(
        self,
        planner: FlowPlanner,
        runner: FlowRunner,
        watch: Watch,
        head_of: Callable[[str], DatasetHead | None],
    ) -> None:
        """Plan with `planner` for `runner`; `head_of` returns the head of a dataset by its DID."""
        self._planner, self._runner, self._watch, self._head_of = planner, runner, watch, head_of
        runner.before_end = self._observe
        runner.ended = self.request
        self._due: set[ResourceId] = set()
        self._is_all_due = True
        self._heads: dict[str, DatasetHead] = {}
        self._is_event_due = False
        self._records: SourceRecords = {}
        self._deleted_tasks: set[ResourceId] = set()
        self._wake_at: dict[ResourceId, Timestamp] = {}
        self._changed = threading.Condition()

    def on_committed(self, state: ChainState) -> None:
        """Take note of a head that has moved."""
        with self._changed:
            self._heads[str(state.dataset_id)] = head_of(state)
            self._changed.notify_all()

    def request(self, flow: ResourceId) -> None:
        """Look at a flow in the next pass."""
        with self._changed:
            self._due.add(flow)
            self._changed.notify_all()

    def note_records(self, flows: Collection[ResourceId], records: SourceRecords) -> None:
        """Take note of records that wait at the sources of flows."""
        with self._changed:
            self._due |= set(flows)
            self._records = {**self._records, **records}
            self._changed.notify_all()

    def run(self, stop: threading.Event) -> None:
        """Plan until stopped."""
        threading.Thread(target=self._follow, args=(stop,), daemon=True, name="watch flows").start()
        runner = threading.Thread(target=self._runner.run, args=(stop,), name="run flows")
        runner.start()
        swept = time.monotonic()
        while not stop.is_set():
            if time.monotonic() > swept + SWEEP_SECONDS:
                swept = time.monotonic()
                self._is_all_due = True
            try:
                self.work()
            except OdfError as error:
                log.warning("flows cannot be planned now", code=error.code, why=str(error))
                self._is_all_due = True
                stop.wait(REPLAN_SECONDS)
            self._wait()
        runner.join()

    def work(self) -> None:
        """Plan what is due, and start the runs."""
        with self._changed:
            now = self._planner.clock.now()
            due = {flow for flow, at in self._wake_at.items() if at <= now} | self._due
            heads, self._heads = self._heads, {}
            records, self._records = self._records, {}
            is_all, self._is_all_due = self._is_all_due, False
            is_event, self._is_event_due = self._is_event_due, False
            self._due = set()
            deleted, self._deleted_tasks = self._deleted_tasks, set()
        if deleted:
            self._planner.remove_finished(deleted)
        if not (due or heads or is_all or is_event):
            return
        try:
            planned = self._planner.plan(None if is_all else due, heads, records)
        except BaseException:
            with self._changed:
                self._heads = {**heads, **self._heads}
            raise
        self._carry_out(planned)

    def _observe(self, did: str) -> None:
        """Report the events of a target before its task ends, so that they count as caused by it."""
        head = self._head_of(did) if did else None
        if head is not None:
            self._carry_out(self._planner.plan((), {did: head}))

    def _carry_out(self, planned: Planned) -> None:
        with self._changed:
            for flow in planned.seen:
                self._wake_at.pop(flow, None)
            self._wake_at |= planned.wake_at
        for _ in planned.skipped:
            count_run(RunOutcome.SKIPPED)
        for key in planned.running:
            self._runner.submit(key)
        for key in planned.cancelled:
            self._runner.cancel(key)

    def _wait(self) -> None:
        with self._changed:
            if self._due or self._heads or self._is_all_due or self._is_event_due:
                return
            now = self._planner.clock.now()
            pauses = [(at.ns - now.ns) / 1e9 for at in self._wake_at.values()]
            self._changed.wait(max(0.0, min([*pauses, 1.0])))

    def _follow(self, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                for event, resource in self._watch.changes(None, lambda: not stop.is_set()):
                    self.note(event, resource)
            except OdfError as error:
                log.warning("resources cannot be watched now", code=error.code, why=str(error))
                stop.wait(REPLAN_SECONDS)
            with self._changed:
                self._is_all_due = True

    def note(self, event: ResourceEvent, resource: StoredResource | None) -> None:
        """Take note of a change of a resource."""
        is_flow = resource is not None and resource.type == type_id(FLOW.uri)
        is_task = resource is not None and resource.type == type_id(TASK.uri)
        with self._changed:
            if is_task:
                assert resource is not None
                if event.kind is EventKind.DELETION_REQUESTED:
                    owners = resource.document["headers"].get("ownerReferences", ())
                    self._due.update(ResourceId(owner["id"]) for owner in owners)
                    self._deleted_tasks.add(resource.id)
                self._is_event_due |= event.kind in PHASE_CHANGES
            elif is_flow:
                if event.kind in _OF_MATCHES or event.kind in PHASE_CHANGES:
                    self._due.add(event.resource)
            elif event.kind in _OF_MATCHES:
                self._is_all_due = True
                self._note_dataset(resource)
            else:
                self._is_event_due |= event.kind in PHASE_CHANGES
            self._changed.notify_all()

    def _note_dataset(self, resource: StoredResource | None) -> None:
        """Look at the head of a Dataset that has appeared: its chain may be older."""
        if resource is not None and resource.type == type_id(DATASET.uri) and resource.did:
            head = self._head_of(resource.did)
            if head is not None:
                self._heads.setdefault(resource.did, head)


def head_of(state: ChainState) -> DatasetHead:
    """Return the head of a chain."""
    return DatasetHead(block=str(state.head), blocks=state.sequence_number + 1, records=state.next_offset)
