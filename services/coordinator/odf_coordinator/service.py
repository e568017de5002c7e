"""Wires the coordinator: the only module that connects handlers with adapters."""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

import grpc
import structlog
from prometheus_client import REGISTRY

from odf_common.adapters.local.key_files import node_key
from odf_common.adapters.local.process_files import Staging
from odf_common.adapters.reserve import Reserve
from odf_common.codec.signature import encode_signature
from odf_common.identity.dataset_refs import DatasetId
from odf_common.identity.keys import SignerId, sign_block
from odf_common.ports.bus import COORDINATOR_COMMANDS, NOTIFICATIONS
from odf_common.service.environment import Environment
from odf_common.service.protection import peer_credentials
from odf_common.service.run import Service, Subscription
from odf_common.service.settings import MULTI_TENANT, Settings
from odf_coordinator.api.bus_handlers import Commands, Notifications
from odf_coordinator.api.grpc_servicer import Dependencies, register
from odf_coordinator.catalog.datasets import Datasets, KeyStore, OwnershipCheck, Stalls
from odf_coordinator.catalog.partitions import PartitionOwnership
from odf_coordinator.commit.committer import Committer, Sign
from odf_coordinator.commit.head_publisher import Publisher
from odf_coordinator.definitions.create import DatasetCreator
from odf_coordinator.definitions.first_schemas import FirstSchemas
from odf_coordinator.lifecycle import Claims, Collector
from odf_coordinator.operations.drop_and_rebuild import DataDropper, DataRebuilder
from odf_coordinator.operations.ingest_client import Ingest, IngestClient
from odf_coordinator.operations.projection_files import FOLDER, ProjectionFiles
from odf_coordinator.operations.pull import Puller
from odf_coordinator.operations.query_problems import EngineUpgrader
from odf_coordinator.operations.read import RecordReader
from odf_coordinator.operations.references import Importer, References
from odf_coordinator.operations.rename_and_delete import DatasetNames
from odf_coordinator.operations.reset_and_commit import DatasetEditor
from odf_coordinator.operations.rollback import DerivativeRollback
from odf_coordinator.operations.waiting import Waiting
from odf_coordinator.resources.counts import ResourceCounts
from odf_coordinator.resources.flows.flow_servicer import register as register_flows
from odf_coordinator.resources.flows.flow_wiring import FlowPorts
from odf_coordinator.resources.flows.node_tasks import NodeTasks, Peer
from odf_coordinator.resources.resource_servicer import register as register_resources
from odf_coordinator.resources.wiring import DatasetPorts, NodeResources, build_resources
from odf_coordinator.storage import Slices
from odf_coordinator.transforms.runner import RunningTransforms, Transformer
from odf_coordinator.transforms.scheduler import Scheduler

log = structlog.stdlib.get_logger(__name__)

COMMIT_THREADS: Final = 64  # threads for commits; a locked dataset blocks its thread for seconds
NOTIFICATION_THREADS: Final = 8  # threads for notifications of commits by other instances


def build(env: Environment) -> Service:
    """Wire the coordinator."""
    settings = env.settings
    key = node_key(settings.home / "keys")
    log.info("node key", signer=str(SignerId.of_key(key)), signs_blocks=settings.sign_blocks)
    peer = _peer(settings, "ingest", settings.ingest_grpc)
    ingest = IngestClient(peer.address, credentials=peer.credentials)
    parts = assemble(env, ingest)
    committer, publisher = parts.creator.committer, parts.collector.claims.publisher
    resources = _resources(env, parts, ingest)
    committer.listen(publisher.announce)
    return Service(
        name="coordinator",
        subscriptions=(
            Subscription(
                topic=COORDINATOR_COMMANDS,
                handler=Commands(committer=committer, importer=parts.importer).handle,
                on_assigned=parts.ownership.on_assigned,
                threads=COMMIT_THREADS,
            ),
            Subscription(
                topic=NOTIFICATIONS,
                handler=Notifications(
                    scheduler=parts.scheduler, datasets=parts.datasets, slices=parts.record_reader.slices
                ).handle,
                group=False,
                threads=NOTIFICATION_THREADS,
            ),
        ),
        grpc=partial(_register, parts, resources),
        grpc_address=settings.coordinator_grpc,
        uses=("engine-spark", "ingest"),
        background=(
            parts.ownership.run,
            publisher.run,
            parts.collector.run,
            committer.run,
            parts.scheduler.run,
            *resources.background,
        ),
    )


def _resources(env: Environment, parts: Dependencies, ingest: IngestClient) -> NodeResources:
    settings = env.settings
    is_multi_tenant = settings.tenancy == MULTI_TENANT
    tasks = NodeTasks(
        puller=parts.puller,
        poll=ingest.poll,
        verifier=_peer(settings, "verifier", settings.verifier_grpc),
        sync=_peer(settings, "sync", settings.sync_grpc),
        is_multi_tenant=is_multi_tenant,
    )
    resources = build_resources(
        settings.home,
        DatasetPorts(creator=parts.creator, names=parts.names, reader=parts.record_reader),
        FlowPorts(
            tasks=tasks,
            datasets=parts.datasets,
            is_multi_tenant=is_multi_tenant,
            count_records=ingest.count_records,
        ),
        url=settings.resources,
        keys_file=settings.resource_keys_file,
    )
    REGISTRY.register(ResourceCounts(resources.store))
    return resources


def _peer(settings: Settings, name: str, address: str | None) -> Peer:
    credentials = None if address is None else peer_credentials(settings, address)
    return Peer(name=name, address=address, credentials=credentials)


def _register(parts: Dependencies, resources: NodeResources, server: grpc.Server) -> tuple[str, ...]:
    return (
        *register(server, parts),
        *register_resources(server, resources.servicer),
        *register_flows(server, resources.flow_servicer),
    )


def assemble(
    env: Environment,
    ingest: Ingest,
    *,
    is_assigned: Callable[[DatasetId], bool] | None = None,
    clock: Callable[[], float] | None = None,
) -> Dependencies:
    """Build the components of a coordinator. Tests replace its ports and `clock`, which returns seconds.

    Its scheduler transforms derivatives for which `is_assigned` returns True, by default those in its partitions.
    """
    keys = KeyStore(env.settings.home / "keys")
    datasets = Datasets(
        catalog=env.catalog, states=env.states, blobs=env.blobs, refs=env.refs, has_key=keys.has
    )
    committer = build_committer(env, keys, datasets.stalls)
    publisher = Publisher(bus=env.bus, catalog=env.catalog)
    ownership = PartitionOwnership(datasets=datasets, keys=keys, announce=committer.announce)
    schemas = FirstSchemas(
        datasets=datasets, committer=committer, engine=env.engine, is_signed=env.settings.signed_columns
    )
    transformer = Transformer(
        datasets=datasets,
        committer=committer,
        engine=env.engine,
        blobs=env.blobs,
        commit_first_schemas=schemas.commit,
        running=RunningTransforms(publisher.report_progress, clock or time.monotonic),
    )
    scheduler = Scheduler(
        datasets=datasets,
        transformer=transformer,
        is_assigned=is_assigned or ownership.is_assigned,
        now=clock or time.monotonic,
    )
    committer.listen(scheduler.on_committed)
    claims = Claims(
        datasets=datasets,
        refs=env.refs,
        committer=committer,
        topics=env.topics,
        publisher=publisher,
        keys=keys,
        reserve=Reserve(env.settings.home),
    )
    collector = Collector(
        catalog=env.catalog, claims=claims, staging=Staging(env.settings.home), now=clock or time.time
    )
    return _with_operations(env, ingest, schemas, scheduler, ownership, collector)


def _with_operations(  # noqa: PLR0917 - the components that operations share
    env: Environment,
    ingest: Ingest,
    schemas: FirstSchemas,
    scheduler: Scheduler,
    ownership: PartitionOwnership,
    collector: Collector,
) -> Dependencies:
    claims, engine = collector.claims, env.engine
    datasets, committer, keys = claims.datasets, claims.committer, claims.keys
    creator = DatasetCreator(
        datasets=datasets, committer=committer, claims=claims, engine=engine, clock=env.clock, keys=keys
    )
    editor = DatasetEditor(datasets=datasets, committer=committer, creator=creator)
    rollback = DerivativeRollback(datasets=datasets, creator=creator, keys=keys)
    importer = Importer(datasets=datasets, keys=keys, refs=env.refs, committer=committer, claims=claims)
    projections = ProjectionFiles(env.settings.home / FOLDER)
    return Dependencies(
        datasets=datasets,
        ownership=ownership,
        first_schemas=schemas,
        collector=collector,
        importer=importer,
        creator=creator,
        editor=editor,
        names=DatasetNames(datasets=datasets, claims=claims),
        references=References(
            datasets=datasets, refs=env.refs, importer=importer, creator=creator, keys=keys
        ),
        record_reader=RecordReader(
            datasets=datasets, slices=Slices(datasets), engine=engine, projections=projections
        ),
        puller=Puller(
            datasets=datasets,
            scheduler=scheduler,
            editor=editor,
            drain=ingest.drain,
            poll=ingest.poll,
            keys=keys,
            rollback=rollback,
            rebuilder=DataRebuilder(datasets=datasets, committer=committer, engine=engine),
            waiting=Waiting(datasets=datasets, schemas=schemas, latest_time=committer.latest_time),
        ),
        scheduler=scheduler,
        dropper=DataDropper(datasets=datasets, committer=committer, engine=engine),
        upgrader=EngineUpgrader(datasets=datasets, creator=creator, rollback=rollback),
    )


def build_committer(env: Environment, keys: KeyStore, stalls: Stalls) -> Committer:
    """Return a committer over the stores of `env`, which signs blocks if the settings say so."""
    settings = env.settings
    sign: Sign | None = None
    if settings.sign_blocks:
        key = node_key(settings.home / "keys")
        sign = lambda block: encode_signature(sign_block(key, block))  # noqa: E731
    return Committer(
        blobs=env.blobs,
        refs=env.refs,
        states=env.states,
        locks=env.locks,
        require_owned=OwnershipCheck(keys=keys, catalog=env.catalog).require,
        clock=env.clock,
        clock_tolerance_ms=settings.clock_tolerance_ms,
        block_version=settings.block_version,
        lock_ttl_ms=settings.lock_ttl_ms,
        sign=sign,
        stalls=stalls,
    )
