"""The ports that a service uses, wired once from the settings."""

from collections.abc import Callable
from dataclasses import dataclass, field

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.kafka_bus import KafkaBus
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.redis import RedisLocks, RedisStateCache
from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import Bus, Topics
from odf_common.ports.clock import Clock
from odf_common.ports.engine import Engine
from odf_common.ports.store import Lock, Locks
from odf_common.service.connections import kafka_cluster, redis_connection, stores
from odf_common.service.node_home import claim_topics
from odf_common.service.outages import SilentParts
from odf_common.service.protection import ENGINE_SECRET, peer_credentials
from odf_common.service.settings import ENGINE, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment(NodeDatasets):
    """The ports of one process. The wiring of a service passes on those that each of its objects needs."""

    settings: Settings
    clock: Clock
    bus: Bus
    topics: Topics
    locks: Locks
    engine: Engine
    silent: SilentParts = field(default_factory=SilentParts)
    """The parts of the node that did not answer the last health check of this process."""
    claim: Callable[[], object]
    """Claim the Kafka topics for this node; raises `TopicsTaken` if another node has claimed them."""
    close: Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolatedEnvironment:
    """The environment of a service without Kafka, Redis and store: it only answers calls, and needs no credentials."""

    settings: Settings

    def close(self) -> None:
        """Do nothing."""


class FreeLocks:
    """Grants every lock immediately, for nodes without Redis."""

    def acquire(self, _: DatasetId, ttl_ms: int) -> Lock | None:
        """Return a lock, whether or not another caller has the same one."""
        del ttl_ms
        return _FreeLock()


class _FreeLock:
    def release(self) -> None:
        """Do nothing."""


def connect(settings: Settings) -> Environment:
    """Connect the ports to Kafka, Redis, the store and the engine; connections are opened on first use.

    Raises `Unavailable` if Kafka's address is not configured, `InvalidInput` if a configured file cannot be used.
    """
    cluster = kafka_cluster(settings)
    bus = KafkaBus(
        cluster,
        prefix=settings.kafka_prefix,
        session_timeout_ms=settings.session_timeout_ms,
        instance=settings.instance,
    )
    blobs, refs = stores(settings)
    redis = redis_connection(settings) if settings.redis else None
    engine = settings.engine or ENGINE

    def close() -> None:
        bus.close()
        if redis is not None:
            redis.close()

    return Environment(
        settings=settings,
        blobs=blobs,
        refs=refs,
        catalog=LocalCatalog(settings.home),
        clock=SYSTEM_CLOCK,
        bus=bus,
        topics=KafkaTopics(cluster, prefix=settings.kafka_prefix),
        states=ChainStates(blobs, refs, RedisStateCache(redis) if redis else NoStateCache()),
        locks=RedisLocks(redis) if redis else FreeLocks(),
        engine=EngineClient(engine, credentials=peer_credentials(settings, engine, ENGINE_SECRET)),
        claim=lambda: claim_topics(settings),
        close=close,
    )
