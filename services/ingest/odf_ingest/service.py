"""Wires the ingest service: the only module that connects its parts with adapters."""

import gc
from contextlib import suppress
from functools import partial
from typing import Final

from odf_common.adapters.grpc.server import Register
from odf_common.adapters.kafka.cluster import partition_of
from odf_common.adapters.kafka.dead_letter_messages import KafkaLetters
from odf_common.adapters.kafka.records import KafkaRecords
from odf_common.adapters.local.key_files import has_dataset_key, is_imported, require_owned
from odf_common.adapters.local.process_files import Staging
from odf_common.adapters.local.secret_key_files import load_secret_keys
from odf_common.adapters.threads import SteadyThreadPool
from odf_common.codec.envelopes import envelope
from odf_common.errors import Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import NOTIFICATIONS, Bus
from odf_common.ports.store import Catalog
from odf_common.proto.odf.bus.v1.bus_pb2 import IngestProgress
from odf_common.resources.registry import SOURCE
from odf_common.service.connections import kafka_cluster, trusted_networks
from odf_common.service.consumer.pools import ElasticPool
from odf_common.service.environment import Environment
from odf_common.service.protection import peer_credentials
from odf_common.service.reconcile_loop import ReconcileLoop
from odf_common.service.remote_resources import RemoteResources
from odf_common.service.request_reply import Replies
from odf_common.service.run import Service
from odf_common.service.settings import MULTI_TENANT, Settings, child_environment
from odf_ingest.accepted_pushes import AcceptedPushes, Parts, Receipts
from odf_ingest.api.arrow_streams import ArrowStreams
from odf_ingest.api.bus_handlers import Notices, subscriptions
from odf_ingest.api.grpc_servicer import IngestServicer
from odf_ingest.api.lookup import PushTargets
from odf_ingest.api.push_servicer import PushServicer
from odf_ingest.commit.committer import BatchCommitter, CommitQueues, Pools, Proposals
from odf_ingest.commit.rejects import RejectPolicy
from odf_ingest.commit.slice_writer import Drafter
from odf_ingest.control.drain import Drains
from odf_ingest.control.rejected_messages import RejectedMessages
from odf_ingest.control.source_commands import SourceCommands
from odf_ingest.control.source_control import SourceControl
from odf_ingest.poll.fetch import Limits as FetchLimits
from odf_ingest.poll.poller import Poller
from odf_ingest.poll.schedule import PollSchedule
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.prepare.preprocess import Preprocessor
from odf_ingest.push.batches.batch_worker import BatchWorker
from odf_ingest.push.batches.source import BatchLimits
from odf_ingest.push.lifecycle.assigned_sources import AssignedSources
from odf_ingest.push.reader import PushReader
from odf_ingest.push.source_topics import Key, SourceTopics
from odf_ingest.registry import Registries
from odf_ingest.source_settings import ReservedTopics
from odf_ingest.sources.message_drain import MessageDrain
from odf_ingest.sources.push_buffer import PushBuffer
from odf_ingest.sources.source_controller import SourceController
from odf_ingest.sources.source_ingestion import SourceIngestion, forget_source
from odf_ingest.sources.topic_feeds import TopicFeeds

READ_THREADS: Final = 2  # batches parsed in parallel
COMMIT_THREADS: Final = 8  # datasets committing in parallel, not counting stalled commits
PUSH_THREADS: Final = 4  # datasets whose accepted pushes are committed in parallel, not counting stalled ones
INDEX_THREADS: Final = 4  # indexes checked in parallel, not counting those being built
QUERY_THREADS: Final = 4  # parallel preprocessing queries, as many as the engine runs
POLL_THREADS: Final = 4  # scheduled polls in parallel, not counting slow ones
INSPECTION_THREADS: Final = 2  # datasets inspected in parallel


def build(env: Environment) -> Service:
    """Return the service: it reads push topics, accepts pushed files, and proposes their records."""
    _tune_collector()
    replies = Replies(env.bus)
    preparer = Preparer(Preprocessor(env.engine, env.blobs.scratch))
    queues = _queues(env, replies)
    reader = _reader(env)
    topics = SourceTopics(env.topics, env.blobs)
    owned = _build_owned(env, queues, topics, reader)
    reader.bind(owned, _work(env, queues, preparer, reader))
    poller = _poller(env, queues, preparer)
    schedule = _schedule(env, queues, poller, owned)
    control = SourceControl(
        queues=queues,
        topics=topics,
        owned=owned,
        blobs=env.blobs,
        request=reader.request,
        schedule=schedule,
    )
    commands = SourceCommands(control=control, owned=owned, catalog=env.catalog, replies=replies)
    sources, loop = _source_resources(env, queues, preparer, poller, topics)
    pushes = _pushes(env, queues, preparer, sources)
    return Service(
        name="ingest",
        subscriptions=subscriptions(Notices(reader, owned, queues, schedule.rescan), commands, replies),
        grpc=_registering(
            _servicer(env, commands, queues, preparer, reader, poller, schedule, sources).register,
            pushes.register,
        ),
        grpc_address=env.settings.ingest_grpc,
        uses=("coordinator", "engine-spark"),
        background=(reader.run, schedule.run, pushes.accepted.run, loop.run),
    )


def _registering(*services: Register) -> Register:
    """Return a function that adds several gRPC services to a server."""
    return lambda server: tuple(name for register in services for name in register(server))


def _pushes(
    env: Environment, queues: CommitQueues, preparer: Preparer, sources: SourceIngestion
) -> PushServicer:
    receipts, targets = Receipts(env.settings.home), _targets(env)
    pool = ElasticPool(PUSH_THREADS, name="accepted")
    rejecting = RejectPolicy(env.bus, env.blobs, partial(_name_of, env.catalog))
    parts = Parts(
        receipts=receipts,
        queues=queues,
        preparer=preparer,
        rejecting=rejecting,
        pool=pool,
        silent=env.silent,
    )
    return PushServicer(
        catalog=env.catalog,
        queues=queues,
        accepted=AcceptedPushes(parts),
        staging=Staging(env.settings.home),
        clock=env.clock,
        streams=ArrowStreams(
            targets=targets,
            queues=queues,
            preparer=preparer,
            rejecting=rejecting,
            clock=env.clock,
            scratch=env.blobs.scratch,
        ),
        targets=targets,
        sources=sources,
    )


def _targets(env: Environment) -> PushTargets:
    owned = partial(require_owned, env.settings.home / "keys", env.catalog)
    return PushTargets(catalog=env.catalog, require_owned=owned)


def _name_of(catalog: Catalog, dataset: DatasetId) -> str:
    """Return the name of a dataset in logs and metrics."""
    entry = catalog.by_id(dataset)
    return str(dataset) if entry is None else entry.alias


def _queues(env: Environment, replies: Replies) -> CommitQueues:
    drafter = Drafter(
        env.blobs,
        env.clock,
        block_version=env.settings.block_version,
        is_signed=env.settings.signed_columns,
        clock_tolerance_ms=env.settings.clock_tolerance_ms,
    )
    return CommitQueues(
        env.blobs,
        env.states,
        BatchCommitter(env.states, drafter, Proposals(replies)),
        Pools(
            commits=ElasticPool(COMMIT_THREADS, name="commit"),
            queries=SteadyThreadPool(QUERY_THREADS, "query"),
            indexing=ElasticPool(INDEX_THREADS, name="index"),
        ),
        partial(_name_of, env.catalog),
    )


def _kafka_records(settings: Settings) -> KafkaRecords:
    return KafkaRecords(kafka_cluster(settings), prefix=settings.kafka_prefix)


def _reader(env: Environment) -> PushReader:
    client = partial(_kafka_records, env.settings)
    return PushReader(client(), env.settings.slice_max_bytes, client)


def _build_owned(
    env: Environment, queues: CommitQueues, topics: SourceTopics, reader: PushReader
) -> AssignedSources:
    settings = env.settings
    return AssignedSources(
        reading=reader,
        queues=queues,
        catalog=env.catalog,
        topics=topics,
        limits=BatchLimits(size=settings.slice_max_bytes, delay=settings.slice_max_delay_ms / 1000),
        partition_of=lambda dataset: partition_of(str(dataset).encode()),
        pool=ElasticPool(INSPECTION_THREADS, name="inspect"),
        report_waiting=partial(_send_waiting, env.bus),
    )


def _send_waiting(bus: Bus, key: Key, count: int) -> None:
    """Publish the number of messages that wait for a source that is not read, best effort."""
    progress = IngestProgress(source_name=key[1], lag=count)
    with suppress(Unavailable):
        bus.send(NOTIFICATIONS, envelope(key[0], progress, may_ignore=True))


def _work(env: Environment, queues: CommitQueues, preparer: Preparer, reader: PushReader) -> BatchWorker:
    return BatchWorker(
        queues=queues,
        preparer=preparer,
        topics=env.topics,
        bus=env.bus,
        rejecting=RejectPolicy(env.bus, env.blobs, partial(_name_of, env.catalog)),
        registries=Registries(),
        readers=ElasticPool(READ_THREADS, name="read"),
        failed=reader.on_failure,
    )


def _servicer(  # noqa: PLR0913, PLR0917 - the parts of one value
    env: Environment,
    commands: SourceCommands,
    queues: CommitQueues,
    preparer: Preparer,
    reader: PushReader,
    poller: Poller,
    schedule: PollSchedule,
    sources: SourceIngestion,
) -> IngestServicer:
    owned = commands.owned
    letters = KafkaLetters(kafka_cluster(env.settings), prefix=env.settings.kafka_prefix)
    return IngestServicer(
        catalog=env.catalog,
        targets=_targets(env),
        queues=queues,
        preparer=preparer,
        drains=Drains(SourceTopics(env.topics, env.blobs), queues, owned, reader),
        poller=poller,
        sources=sources,
        schedule=schedule,
        owned=owned,
        rejecting=RejectPolicy(env.bus, env.blobs, partial(_name_of, env.catalog)),
        rejected=RejectedMessages(
            queues=queues,
            blobs=env.blobs,
            letters=letters,
            preparer=preparer,
            bus=env.bus,
            is_own=ReservedTopics(env.topics.prefix).is_own,
        ),
        commands=commands,
        clock=env.clock,
        staging=Staging(env.settings.home),
        scratch=env.blobs.scratch,
    )


def _source_resources(
    env: Environment, queues: CommitQueues, preparer: Preparer, poller: Poller, topics: SourceTopics
) -> tuple[SourceIngestion, ReconcileLoop]:
    settings = env.settings
    coordinator = settings.required("coordinator_grpc")
    resources = RemoteResources("ingest", coordinator, peer_credentials(settings, coordinator))
    buffer = PushBuffer(settings.home)
    controller = SourceController(
        read=resources.read,
        keys=lambda: load_secret_keys(settings.home, settings.resource_keys_file),
        is_multi_tenant=settings.tenancy == MULTI_TENANT,
        count_accepted=buffer.count,
        end=partial(forget_source, buffer),
    )
    ingestion = SourceIngestion(
        controller=controller,
        poller=poller,
        buffer=buffer,
        drain=MessageDrain(
            queues=queues,
            preparer=preparer,
            rejecting=RejectPolicy(env.bus, env.blobs, partial(_name_of, env.catalog)),
            registries=Registries(),
            slice_max_bytes=settings.slice_max_bytes,
        ),
        queues=queues,
        catalog=env.catalog,
        topics=TopicFeeds(topics=topics, blobs=env.blobs, new_client=partial(_kafka_records, settings)),
    )
    return ingestion, ReconcileLoop(resources, {str(SOURCE.uri): controller})


def _poller(env: Environment, queues: CommitQueues, preparer: Preparer) -> Poller:
    settings, keys = env.settings, env.settings.home / "keys"
    limits = FetchLimits(
        size=settings.fetch_max_bytes,
        networks=trusted_networks(settings),
        is_trusted=lambda dataset: settings.fetch_imported or not is_imported(keys, dataset),
        secrets=keys,
    )
    return Poller(
        queues=queues,
        preparer=preparer,
        rejecting=RejectPolicy(env.bus, env.blobs, partial(_name_of, env.catalog)),
        blobs=env.blobs,
        clock=env.clock,
        limits=limits,
        environ=child_environment(),
    )


def _schedule(env: Environment, queues: CommitQueues, poller: Poller, owned: AssignedSources) -> PollSchedule:
    keys = env.settings.home / "keys"
    return PollSchedule(
        poller=poller,
        catalog=env.catalog,
        blobs=env.blobs,
        current=queues.current,
        is_ours=lambda dataset: owned.is_owned(dataset) and has_dataset_key(keys, dataset),
        pool=ElasticPool(POLL_THREADS, name="poll"),
    )


def _tune_collector() -> None:
    """Exclude imported objects from garbage collection, and run it less often: each message is an object."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 50)
