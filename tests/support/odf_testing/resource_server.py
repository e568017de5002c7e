"""The resources of a node over gRPC, with a store in memory and without controllers."""

from typing import Any, cast

import grpc

from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.resources.registry import CORE_TYPES
from odf_common.resources.secret_keys import SecretKeys
from odf_coordinator.resources.attempts import Attempts
from odf_coordinator.resources.flows.flow_servicer import FlowServicer
from odf_coordinator.resources.flows.flow_servicer import register as register_flows
from odf_coordinator.resources.flows.flow_use_cases import FlowRuns
from odf_coordinator.resources.pre_apply import PreApply
from odf_coordinator.resources.resource_servicer import ResourceServicer, register
from odf_coordinator.resources.secret_rotation import SecretRotation
from odf_coordinator.resources.sql_store import SqlResourceStore
from odf_coordinator.resources.use_cases import Resources
from odf_coordinator.resources.watch import Watch


def resources_in_memory() -> Resources:
    """Return resources over a new store, of all types."""
    keys = SecretKeys.new()
    return Resources(
        store=SqlResourceStore.open(None),
        clock=SYSTEM_CLOCK,
        pre_apply=lambda: PreApply(load_keys=lambda: keys),
        controlled=frozenset(str(kind.uri) for kind in CORE_TYPES),
    )


def serve_resources(server: grpc.Server, resources: Resources | None = None) -> tuple[str, ...]:
    """Add the service of resources to a server, by default of new ones; return its full name."""
    resources = resources or resources_in_memory()
    watch = Watch(resources.store)
    resources.changed.append(watch.notify)
    attempts = Attempts(store=resources.store, clock=resources.clock, changed=watch.notify)
    rotation = SecretRotation(
        store=resources.store, load=SecretKeys.new, add=SecretKeys.new, drop=SecretKeys.new
    )
    unused = cast("Any", None)  # no flow can run
    flows = FlowServicer(FlowRuns(resources=resources, planner=unused, loop=unused))
    names = register(server, ResourceServicer(resources, attempts, watch, rotation))
    return (*names, *register_flows(server, flows))
