"""Wires the coordinator: the only module where handlers meet adapters."""

from functools import partial
from typing import Final

import structlog

from odf_common.adapters.local.key_files import node_key
from odf_common.adapters.local.staging import Staging
from odf_common.adapters.reserve import Reserve
from odf_common.codec.signature import encode_signature
from odf_common.identity.keys import PrivateKey
from odf_common.identity.signatures import SignerId, sign_block
from odf_common.ports.bus import COORDINATOR_COMMANDS, NOTIFICATIONS
from odf_common.service.environment import Environment
from odf_common.service.protection import peer_credentials
from odf_common.service.run import Service, Subscription
from odf_common.service.settings import Settings
from odf_coordinator.api.bus_handlers import Commands, Notifications
from odf_coordinator.api.grpc_servicer import Parts, register
from odf_coordinator.catalog.ownership import KeyStore, OwnershipCheck
from odf_coordinator.catalog.partitions import PartitionOwnership
from odf_coordinator.catalog.registry import Datasets
from odf_coordinator.catalog.stalls import Stalls
from odf_coordinator.commit.committer import Committer, Sign
from odf_coordinator.commit.head_publisher import Publisher
from odf_coordinator.definitions.create import DatasetCreator
from odf_coordinator.definitions.first_schemas import FirstSchemas
from odf_coordinator.lifecycle.claims import Claims
from odf_coordinator.lifecycle.collector import Collector
from odf_coordinator.operations.drop_data import DataDropper
from odf_coordinator.operations.engine_upgrade import EngineUpgrader
from odf_coordinator.operations.import_chain import Importer
from odf_coordinator.operations.ingest_client import IngestClient
from odf_coordinator.operations.modify import DatasetEditor
from odf_coordinator.operations.pull import Puller
from odf_coordinator.operations.read import RecordReader
from odf_coordinator.operations.rebuild_data import DataRebuilder
from odf_coordinator.operations.references import References
from odf_coordinator.operations.rollback import DerivativeRollback
from odf_coordinator.operations.waiting import Waiting
from odf_coordinator.storage.slice_index import Slices
from odf_coordinator.transforms.progress import RunningTransforms
from odf_coordinator.transforms.runner import Transformer
from odf_coordinator.transforms.scheduler import Scheduler

log = structlog.stdlib.get_logger(__name__)

COMMIT_THREADS: Final = 64  # threads for commits; a locked dataset blocks its thread for seconds
NOTIFICATION_THREADS: Final = 8  # threads for notifications of commits by other instances


def build(env: Environment) -> Service:
    """Wire the coordinator."""
    keys = KeyStore(env.settings.home / "keys")
    datasets = Datasets(
        catalog=env.catalog, states=env.states, blobs=env.blobs, refs=env.refs, has_key=keys.has
    )
    committer = _committer(env, OwnershipCheck(keys=keys, catalog=env.catalog), datasets.stalls)
    publisher = Publisher(bus=env.bus, catalog=env.catalog)
    ownership = PartitionOwnership(datasets=datasets, keys=keys, announce=committer.announce)
    schemas = _first_schemas(env, datasets, committer)
    transformer = _transformer(env, schemas, publisher)
    scheduler = Scheduler(datasets=datasets, transformer=transformer, is_assigned=ownership.is_assigned)
    committer.listen(publisher.announce)
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
    creator = DatasetCreator(
        datasets=datasets, committer=committer, claims=claims, engine=env.engine, clock=env.clock, keys=keys
    )
    collector = Collector(catalog=env.catalog, claims=claims, staging=Staging(env.settings.home))
    importer = Importer(datasets=datasets, keys=keys, refs=env.refs, committer=committer, claims=claims)
    parts = _parts(creator, importer, scheduler, _ingest(env.settings), schemas)
    return Service(
        name="coordinator",
        subscriptions=_subscriptions(importer, ownership, parts),
        grpc=partial(register, parts=parts),
        grpc_address=env.settings.coordinator_grpc,
        uses=("engine-spark", "ingest"),
        background=(ownership.run, publisher.run, collector.run, committer.run, scheduler.run),
    )


def _first_schemas(env: Environment, datasets: Datasets, committer: Committer) -> FirstSchemas:
    is_signed = env.settings.signed_columns
    return FirstSchemas(datasets=datasets, committer=committer, engine=env.engine, is_signed=is_signed)


def _transformer(env: Environment, schemas: FirstSchemas, publisher: Publisher) -> Transformer:
    return Transformer(
        datasets=schemas.datasets,
        committer=schemas.committer,
        engine=env.engine,
        blobs=env.blobs,
        commit_first_schemas=schemas.commit,
        running=RunningTransforms(publisher.working),
    )


def _ingest(settings: Settings) -> IngestClient:
    address = settings.ingest_grpc
    return IngestClient(address, credentials=None if address is None else peer_credentials(settings, address))


def _committer(env: Environment, owners: OwnershipCheck, stalls: Stalls) -> Committer:
    key = node_key(env.settings.home / "keys")
    log.info("node key", signer=str(SignerId.of_key(key)), signs_blocks=env.settings.sign_blocks)
    return Committer(
        blobs=env.blobs,
        refs=env.refs,
        states=env.states,
        locks=env.locks,
        require_owned=owners.require,
        clock=env.clock,
        clock_tolerance_ms=env.settings.clock_tolerance_ms,
        block_version=env.settings.block_version,
        lock_ttl_ms=env.settings.lock_ttl_ms,
        sign=_signing(key) if env.settings.sign_blocks else None,
        stalls=stalls,
    )


def _signing(key: PrivateKey) -> Sign:
    return lambda block: encode_signature(sign_block(key, block))


def _subscriptions(
    importer: Importer, ownership: PartitionOwnership, parts: Parts
) -> tuple[Subscription, ...]:
    commands = Commands(committer=importer.committer, importer=importer).handle
    notifications = Notifications(
        scheduler=parts.scheduler, datasets=parts.datasets, slices=parts.record_reader.slices
    ).handle
    return (
        Subscription(
            topic=COORDINATOR_COMMANDS,
            handler=commands,
            on_assigned=ownership.on_assigned,
            threads=COMMIT_THREADS,
        ),
        Subscription(topic=NOTIFICATIONS, handler=notifications, group=False, threads=NOTIFICATION_THREADS),
    )


def _parts(
    creator: DatasetCreator,
    importer: Importer,
    scheduler: Scheduler,
    ingest: IngestClient,
    schemas: FirstSchemas,
) -> Parts:
    datasets, keys = creator.datasets, creator.keys
    editor = DatasetEditor(datasets=datasets, committer=creator.committer, creator=creator)
    rollback = DerivativeRollback(datasets=datasets, creator=creator, keys=keys)
    return Parts(
        datasets=datasets,
        creator=creator,
        editor=editor,
        references=References(
            datasets=datasets, refs=importer.refs, importer=importer, creator=creator, keys=keys
        ),
        record_reader=RecordReader(datasets=datasets, slices=Slices(datasets), engine=creator.engine),
        puller=Puller(
            datasets=datasets,
            scheduler=scheduler,
            editor=editor,
            drain=ingest.drain,
            poll=ingest.poll,
            keys=keys,
            rollback=rollback,
            rebuilder=DataRebuilder(datasets=datasets, committer=creator.committer, engine=creator.engine),
            waiting=Waiting(datasets=datasets, schemas=schemas, latest_time=creator.committer.latest_time),
        ),
        scheduler=scheduler,
        dropper=DataDropper(datasets=datasets, committer=creator.committer, engine=creator.engine),
        upgrader=EngineUpgrader(datasets=datasets, creator=creator, rollback=rollback),
    )
