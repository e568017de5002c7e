"""Wires the resources of a node: store, use cases, attempts, and the controllers of the coordinator."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from odf_common.adapters.local.secret_key_files import (
    drop_former_keys,
    load_secret_keys,
    rotate_secret_keys,
)
from odf_common.errors import OdfError
from odf_common.identity.keys import PrivateKey
from odf_common.ports.clock import Clock
from odf_common.resources.registry import FLOW, PROJECTION
from odf_common.service.reconcile_loop import ReconcileLoop
from odf_coordinator.catalog.datasets import KeyStore
from odf_coordinator.catalog.declarations import Declarations
from odf_coordinator.commit.committer import Committer
from odf_coordinator.definitions.create import DatasetCreator
from odf_coordinator.operations.read import RecordReader
from odf_coordinator.operations.rename_and_delete import DatasetNames
from odf_coordinator.resources.attempts import Attempts
from odf_coordinator.resources.controllers import ELSEWHERE, LocalStore, own_controllers
from odf_coordinator.resources.dataset_controller import DatasetController
from odf_coordinator.resources.dataset_lookups import CatalogDatasets, DeclaredDatasets
from odf_coordinator.resources.dataset_status import DatasetStatus
from odf_coordinator.resources.documents import type_id
from odf_coordinator.resources.flows.flow_controller import FlowLoop
from odf_coordinator.resources.flows.flow_servicer import FlowServicer
from odf_coordinator.resources.flows.flow_use_cases import FlowRuns
from odf_coordinator.resources.flows.flow_wiring import FlowPorts, build_flows
from odf_coordinator.resources.flows.source_counts import SourceCounter
from odf_coordinator.resources.flows.task_records import finished_tasks
from odf_coordinator.resources.pre_apply import PreApply
from odf_coordinator.resources.projection_controller import ProjectionController
from odf_coordinator.resources.requests import forget_old_keys
from odf_coordinator.resources.resource_servicer import ResourceServicer
from odf_coordinator.resources.secret_rotation import SecretRotation
from odf_coordinator.resources.sql_store import SqlResourceStore
from odf_coordinator.resources.store import ResourceStore
from odf_coordinator.resources.use_cases import Resources
from odf_coordinator.resources.watch import Watch, WatchedStore

log = structlog.stdlib.get_logger(__name__)

PURGE_SECONDS: Final = 3600.0
KEPT_MS: Final = 30 * 24 * 3_600_000  # of tombstones, and of events of attempts


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """The resources of a node, as the coordinator serves and reconciles them."""

    resources: Resources
    servicer: ResourceServicer
    loop: ReconcileLoop
    status: DatasetStatus
    rotation: SecretRotation
    store: ResourceStore
    clock: Clock
    flows: FlowLoop
    projecting: ProjectionController
    counter: SourceCounter
    flow_servicer: FlowServicer

    @property
    def background(self) -> tuple[Callable[[threading.Event], None], ...]:
        """Return the functions that run until the coordinator stops."""
        return (
            self.loop.run,
            self.flows.run,
            self.counter.run,
            self.run_purge,
            self.status.run,
            self.projecting.run,
            self.rotation.resume,
        )

    def run_purge(self, stop: threading.Event) -> None:
        """Forget, each hour until stopped, what was removed long ago, and old events of attempts."""
        while not stop.wait(PURGE_SECONDS):
            try:
                with self.store.transaction() as transaction:
                    now_ms = self.clock.now().ms
                    transaction.purge(now_ms - KEPT_MS)
                    forget_old_keys(transaction, now_ms)
            except OdfError as error:
                log.warning("old resources stay", code=error.code, why=str(error))


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetPorts:
    """The parts of the coordinator by which resources read and change datasets."""

    creator: DatasetCreator
    names: DatasetNames
    reader: RecordReader


def build_resources(
    home: Path,
    datasets: DatasetPorts,
    flow_ports: FlowPorts,
    *,
    url: str | None = None,
    keys_file: Path | None = None,
) -> NodeResources:
    """Wire resources over the store of a home, or of the database at a URL, and over the datasets of the node."""
    creator, names, clock = datasets.creator, datasets.names, datasets.creator.clock
    store = SqlResourceStore.open(home, url)
    watch = Watch(store)
    attempts = Attempts(store=store, clock=clock, changed=watch.notify)
    status = DatasetStatus(creator.datasets, store, attempts)
    flows = build_flows(WatchedStore(store, watch), clock, watch, flow_ports)
    controllers = own_controllers(DatasetController(creator=creator, names=names, status=status), store)
    projecting = _projection_controller(datasets.reader, attempts, watch)
    controllers |= {str(FLOW.uri): flows.controller, str(PROJECTION.uri): projecting}
    catalog = CatalogDatasets(datasets=creator.datasets)
    resources = Resources(
        store=store,
        clock=clock,
        pre_apply=lambda: PreApply(load_keys=partial(load_secret_keys, home, keys_file)),
        keep_keys=_keep(creator.keys),
        controlled=frozenset((*controllers, *ELSEWHERE)),
        datasets=catalog,
        needed_by=catalog.needed_by,
        owned_by=finished_tasks,
        changed=[watch.notify],
        is_multi_tenant=flow_ports.is_multi_tenant,
    )
    loop = ReconcileLoop(LocalStore(store, attempts, watch, resources.types), controllers)
    attempts.requested = loop.request
    _connect(names.claims.declarations, resources)
    _follow_commits(creator.committer, status, flows.loop, projecting)
    rotation = _secret_rotation(store, home, keys_file)
    return NodeResources(
        resources=resources,
        servicer=ResourceServicer(resources, attempts, watch, rotation),
        loop=loop,
        status=status,
        rotation=rotation,
        store=store,
        clock=clock,
        flows=flows.loop,
        projecting=projecting,
        counter=flows.counter,
        flow_servicer=FlowServicer(FlowRuns(resources=resources, planner=flows.planner, loop=flows.loop)),
    )


def _projection_controller(reader: RecordReader, attempts: Attempts, watch: Watch) -> ProjectionController:
    stored = partial(watch.ids_of, type_id(PROJECTION.uri))
    return ProjectionController(reader, attempts.request, stored)


def _secret_rotation(store: ResourceStore, home: Path, keys_file: Path | None) -> SecretRotation:
    return SecretRotation(
        store=store,
        load=partial(load_secret_keys, home, keys_file),
        add=partial(rotate_secret_keys, home, keys_file),
        drop=partial(drop_former_keys, home, keys_file),
    )


def _follow_commits(
    committer: Committer, status: DatasetStatus, flows: FlowLoop, projections: ProjectionController
) -> None:
    for follower in (status, flows, projections):
        committer.listen(follower.on_committed)


def _connect(declarations: Declarations, resources: Resources) -> None:
    """Make operations on datasets change the resources that declare them."""
    declared = DeclaredDatasets(resources=resources)
    declarations.is_declared = declared.is_declared
    declarations.declared_alias = declared.declared_alias
    declarations.rename = declared.rename
    declarations.request_removal = declared.request_removal


def _keep(keys: KeyStore) -> Callable[[Mapping[str, PrivateKey]], None]:
    def keep(new: Mapping[str, PrivateKey]) -> None:
        for key in new.values():
            keys.save(key)

    return keep
