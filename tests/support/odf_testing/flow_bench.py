"""Flows over a store in memory, with a clock that tests move and tasks that do what tests say."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from odf_common.metadata.scalars import Timestamp
from odf_common.resources.registry import DATASET, FLOW, SOURCE
from odf_common.resources.resource_manifests import written_resources
from odf_common.resources.scalar_formats import ResourceId
from odf_common.resources.secret_keys import SecretKeys
from odf_coordinator.resources.attempts import Attempts
from odf_coordinator.resources.callers import Subject
from odf_coordinator.resources.documents import Json, type_id
from odf_coordinator.resources.flows.flow_controller import FlowController, FlowLoop
from odf_coordinator.resources.flows.flow_events import DatasetHead
from odf_coordinator.resources.flows.flow_planner import FlowPlanner
from odf_coordinator.resources.flows.flow_runner import ActiveRun, FlowLimits, FlowRunner
from odf_coordinator.resources.flows.flow_runs import RunKey
from odf_coordinator.resources.flows.flow_use_cases import FlowRuns
from odf_coordinator.resources.flows.task_port import Cancellation, TaskRequest
from odf_coordinator.resources.flows.task_records import TaskRun, finished_tasks, tasks_of
from odf_coordinator.resources.pre_apply import PreApply
from odf_coordinator.resources.sql_store import SqlResourceStore
from odf_coordinator.resources.store import Query, StoredResource
from odf_coordinator.resources.use_cases import Batch, ResourceRef, Resources
from odf_coordinator.resources.watch import Watch
from odf_testing.resource_node import begin, end

NODE = Subject()
KEYS = SecretKeys.new()
START = Timestamp.parse("2026-01-01T00:00:30Z")
SECOND = 1_000_000_000
TRANSFORM = "{kind: Ext, $schema: https://node.odf.example/schemas/flow/v1alpha1/Transform}"
VERIFY = "{kind: Ext, $schema: https://node.odf.example/schemas/flow/v1alpha1/Verify}"
LIMITS = FlowLimits(retry_seconds=(0.0, 0.0, 0.0), busy_seconds=0.0, retained_runs=3)


@dataclass
class ManualClock:
    """Moves when a test moves it."""

    time: Timestamp = START

    def now(self) -> Timestamp:
        return self.time

    def pass_seconds(self, seconds: float) -> None:
        self.time = Timestamp(self.time.ns + round(seconds * SECOND))


@dataclass
class FakeTasks:
    """Notes what was done; `act` may raise."""

    done: list[tuple[str, str]] = field(default_factory=list)
    requests: list[TaskRequest] = field(default_factory=list)
    act: Callable[[TaskRequest], str] = lambda _: "done"

    def perform(self, request: TaskRequest) -> str:
        self.requests.append(request)
        remark = self.act(request)
        self.done.append((request.target["headers"]["name"], type(request.spec).__name__))
        return remark


def flow(
    name: str = "nightly", *, target: str = "'Dataset:%'", triggers: str = "", tasks: str = TRANSFORM
) -> str:
    """Return a manifest of a flow."""
    return (
        f"{{$schema: Flow, headers: {{name: {name}}}, spec: {{target: {target}, triggers: [{triggers}], "
        f"tasks: [{tasks}]}}}}"
    )


def dataset(name: str, kind: str = "Derivative", labels: str = "{}") -> str:
    """Return a manifest of a dataset."""
    query = "transform: {kind: Sql, engine: spark, query: SELECT 1}"
    transform = f"{{kind: SetTransform, inputs: [{{datasetRef: an.input}}], {query}}}"
    metadata = transform if kind == "Derivative" else ""
    headers = f"{{name: {name}, labels: {labels}}}"
    return f"{{$schema: Dataset, headers: {headers}, spec: {{kind: {kind}, metadata: [{metadata}]}}}}"


class FlowBench:
    """A store with flows, whose passes and runs are made by the test, in its thread."""

    def __init__(self, store: SqlResourceStore | None = None, clock: ManualClock | None = None) -> None:
        self.store = store or SqlResourceStore.open(None)
        self.clock = clock or ManualClock()
        self.tasks = FakeTasks()
        self.heads: dict[str, DatasetHead] = {}
        self.runner = FlowRunner(self.store, self.clock, self.tasks, limits=LIMITS)
        self.planner = FlowPlanner(
            store=self.store, clock=self.clock, depth=self.runner.depth_of, retained_runs=LIMITS.retained_runs
        )
        self.loop = FlowLoop(self.planner, self.runner, Watch(self.store), self.heads.get)
        self.runner.before_end = self._observe  # the loop would begin other runs in threads
        self.controller = FlowController(self.store, self.clock, self.runner, lambda: self.heads)
        self.resources = Resources(
            store=self.store,
            clock=self.clock,
            pre_apply=lambda: PreApply(load_keys=lambda: KEYS),
            controlled=frozenset(str(kind.uri) for kind in (DATASET, FLOW, SOURCE)),
            owned_by=finished_tasks,
        )
        self.runs = FlowRuns(resources=self.resources, planner=self.planner, loop=self.loop)
        self._moved: dict[str, DatasetHead] = {}

    def _observe(self, did: str) -> None:
        if did in self.heads:
            self.planner.plan((), {did: self.heads[did]})

    def restart(self) -> "FlowBench":
        """Return the flows of the same store after a kill."""
        again = FlowBench(self.store, self.clock)
        again.heads.update(self.heads)
        return again

    def apply(self, *texts: str) -> None:
        """Apply manifests, and reconcile them."""
        self.resources.apply(NODE, Batch(written=written_resources("\n---\n".join(texts).encode())))
        self.reconcile()

    def reconcile(self) -> None:
        """Reconcile or remove what is not settled."""
        attempts = Attempts(store=self.store, clock=self.clock)
        for kind in (DATASET, SOURCE, FLOW):
            with self.store.read() as snapshot:
                page = snapshot.find(Query(types=(type_id(kind.uri),), include_deleted=True))
            for found in page.resources:
                if found.phase != "Pending" and found.deleted_ms is None:
                    continue
                begun = begin(attempts, found.id, ttl_ms=1)
                assert begun is not None
                if kind is FLOW and found.deleted_ms is not None:
                    self.controller.finalize(dict(begun.resource.document))
                elif kind is FLOW:
                    self.controller.reconcile(dict(begun.resource.document))
                end(attempts, begun)

    def plan(self) -> list[RunKey]:
        """Make a pass; return the runs in progress."""
        heads, self._moved = self._moved, {}
        return self.planner.plan(None, heads).running

    def work(self) -> None:
        """Make passes and carry out runs until nothing is due."""
        while running := self.plan():
            for key in running:
                self.runner.perform(key)

    def commit(self, name: str, records: int = 1) -> None:
        """Move the head of a dataset, as the committer reports it."""
        did = str(self.get("Dataset", name).did)
        before = self.heads.get(did, DatasetHead(block="0", blocks=1, records=0))
        blocks = before.blocks + 1
        self.heads[did] = DatasetHead(block=str(blocks), blocks=blocks, records=before.records + records)
        self._moved[did] = self.heads[did]

    def announce(self) -> None:
        """Report all heads again, as a coordinator does when it starts."""
        self._moved = dict(self.heads)

    def perform_once(self, key: RunKey) -> None:
        """Carry out a run, unless another runner has it."""
        active = ActiveRun(cancellation=Cancellation())
        active.cancellation.request()
        self.runner.perform(key, active)

    def by_id(self, id: ResourceId) -> StoredResource:
        """Return a resource, also one that is being deleted."""
        with self.store.read() as snapshot:
            found = snapshot.by_id(id)
        assert found is not None
        return found

    def tasks_of(self, key: RunKey) -> list[TaskRun]:
        """Return the tasks of an instance."""
        with self.store.read() as snapshot:
            return tasks_of(snapshot, key.flow, key.target)

    def get(self, kind: str, name: str) -> StoredResource:
        """Return a resource."""
        return self.resources.get(NODE, ResourceRef(type=kind, ref=name))

    def delete(self, kind: str, name: str, *, is_orphaning: bool = False) -> None:
        """Request a deletion."""
        self.resources.delete(NODE, ResourceRef(type=kind, ref=name), is_orphaning=is_orphaning)

    def states(self, name: str = "nightly", target: str = "") -> list[str]:
        """Return the states of the runs of a flow, oldest first."""
        return [run["state"] for run in reversed(self.history(name, target))]

    def history(self, name: str = "nightly", target: str = "") -> list[Json]:
        """Return the runs of a flow, newest first."""
        return self.runs.runs(NODE, ResourceRef(type="Flow", ref=name), target)

    def run_now(self, name: str = "nightly", target: str = "") -> list[Json]:
        """Start runs as a user does."""
        return self.runs.run_now(NODE, ResourceRef(type="Flow", ref=name), target)

    def activity(self, name: str = "nightly") -> Mapping[str, Any]:
        """Return the details of the flow's condition."""
        conditions = self.get("Flow", name).document["status"]["conditions"]
        return dict(conditions["https://opendatafabric.org/schemas/flow/v1alpha1/FlowActivity"])

    def id_of(self, name: str) -> ResourceId:
        """Return the id of a dataset."""
        return self.get("Dataset", name).id
