"""Wires flows: planner, runner, loop and controller."""

from dataclasses import dataclass, field

import structlog

from odf_common.errors import OdfError
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.clock import Clock
from odf_common.resources.references import AccountHandle
from odf_coordinator.catalog.datasets import Datasets
from odf_coordinator.resources.flows.flow_controller import FlowController, FlowLoop, head_of
from odf_coordinator.resources.flows.flow_events import DatasetHead
from odf_coordinator.resources.flows.flow_planner import FlowPlanner
from odf_coordinator.resources.flows.flow_runner import FlowLimits, FlowRunner
from odf_coordinator.resources.flows.flow_targets import own_only
from odf_coordinator.resources.flows.source_counts import CountRecords, SourceCounter
from odf_coordinator.resources.flows.task_port import Tasks
from odf_coordinator.resources.lookups import NODE_ACCOUNT
from odf_coordinator.resources.store import ResourceStore, StoredResource
from odf_coordinator.resources.watch import Watch

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPorts:
    """The parts of the coordinator that flows use."""

    tasks: Tasks
    datasets: Datasets
    is_multi_tenant: bool = False
    limits: FlowLimits = field(default_factory=FlowLimits)
    count_records: CountRecords = lambda _, datasets: [0] * len(datasets)

    def head_of(self, did: str) -> DatasetHead | None:
        """Return the head of a dataset; None without one."""
        try:
            handle = self.datasets.by_id(DatasetId.parse(did))
        except OdfError as error:
            log.warning("flows cannot see a dataset", dataset_id=did, why=str(error))
            return None
        return None if handle is None else head_of(handle.state)

    def read_heads(self) -> dict[str, DatasetHead]:
        """Return the heads of all datasets that can be read."""
        return {str(handle.id): head_of(handle.state) for handle in self.datasets.all()}

    def may_select(self, owner: AccountHandle, resource: StoredResource) -> bool:
        """Return whether flows of an account may work on a resource: on a node of several accounts, its own."""
        return not self.is_multi_tenant or owner.name == NODE_ACCOUNT or own_only(owner, resource)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flows:
    """The flows of a node."""

    planner: FlowPlanner
    runner: FlowRunner
    loop: FlowLoop
    controller: FlowController
    counter: SourceCounter


def build_flows(store: ResourceStore, clock: Clock, watch: Watch, ports: FlowPorts) -> Flows:
    """Wire flows over a store."""
    runner = FlowRunner(store, clock, ports.tasks, may_select=ports.may_select, limits=ports.limits)
    planner = FlowPlanner(
        store=store,
        clock=clock,
        depth=runner.depth_of,
        may_select=ports.may_select,
        retained_runs=ports.limits.retained_runs,
    )
    loop = FlowLoop(planner, runner, watch, ports.head_of)
    return Flows(
        planner=planner,
        runner=runner,
        loop=loop,
        counter=SourceCounter(store, clock, ports.count_records, loop.note_records, ports.may_select),
        controller=FlowController(store, clock, runner, ports.read_heads),
    )
