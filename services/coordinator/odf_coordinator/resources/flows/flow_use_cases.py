"""The operations on flows, which commands and REST call: run now, and list runs."""

from dataclasses import dataclass

from odf_common.errors import Conflict
from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.resources.callers import Subject
from odf_coordinator.resources.documents import Json
from odf_coordinator.resources.flow_checks import flow_spec
from odf_coordinator.resources.flows.flow_controller import FlowLoop
from odf_coordinator.resources.flows.flow_planner import FlowPlanner
from odf_coordinator.resources.flows.task_records import runs_of, tasks_of
from odf_coordinator.resources.requests import Repeated, RequestKey
from odf_coordinator.resources.store import StoredResource
from odf_coordinator.resources.use_cases import ResourceRef, Resources


class NoSuchTarget(Conflict):
    """A flow has no instance to run."""

    MESSAGE = "{flow} has no target {target}"
    ADVICE = "compare `spec.target` with the names and labels of what you want it to run for"

    flow: str
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRuns:
    """Runs of flows, for users."""

    resources: Resources
    planner: FlowPlanner
    loop: FlowLoop

    def run_now(
        self, subject: Subject, wanted: ResourceRef, target: str, key: RequestKey | None = None
    ) -> list[Json]:
        """Start runs for one target or all; return the runs, or those that they follow.

        Raises `NoSuchTarget`; `RequestKeyReused` for a key that was sent with another request.
        """
        flow = self.resources.get(subject, wanted)
        self.resources.require_writable(subject, flow)
        store, now_ms = self.resources.store, self.resources.clock.now().ms
        try:
            if key is not None:
                with store.read() as snapshot:
                    key.require_new(snapshot, flow.id, now_ms)
        except Repeated as repeated:
            answer: list[Json] = repeated.answer
            return answer
        started = self._start(subject, flow, target)
        if key is not None:
            with store.transaction() as transaction:
                key.keep(transaction, flow.id, started, now_ms)
        return started

    def _start(self, subject: Subject, flow: StoredResource, target: str) -> list[Json]:
        target_id = self._target(subject, flow, target)
        started = self.planner.run_now(flow.id, target_id)
        self.loop.request(flow.id)
        if not started:
            raise NoSuchTarget(flow=flow.name, target=target or "at all")
        numbers = {instance.run for instance in started}
        return [run for run in self._runs(flow, target_id) if run["run"] in numbers]

    def runs(self, subject: Subject, wanted: ResourceRef, target: str = "") -> list[Json]:
        """Return the runs of a flow, newest first."""
        flow = self.resources.get(subject, wanted, is_deleted_too=True)
        return self._runs(flow, self._target(subject, flow, target))

    def _runs(self, flow: StoredResource, target: ResourceId | None) -> list[Json]:
        with self.resources.store.read() as snapshot:
            return runs_of(tasks_of(snapshot, flow.id, target))

    def _target(self, subject: Subject, flow: StoredResource, ref: str) -> ResourceId | None:
        if not ref:
            return None
        selector = flow_spec(flow.document["spec"]).target
        kind = self.resources.types().of_identity(selector.type)
        assert kind is not None
        account = flow.document["headers"]["account"].get("name", "")
        wanted = ResourceRef(type=str(kind.uri), ref=ref, account=account)
        return self.resources.get(subject, wanted).id
