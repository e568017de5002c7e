"""What a service gets of the world: ports, wired once from the settings."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.bus import KafkaBus
from odf_common.adapters.local import LocalBlobStore, LocalCatalog, LocalRefStore
from odf_common.adapters.redis import RedisConnection, RedisLocks, RedisStateCache
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.identity.did import DatasetId
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.bus import Bus, Topics
from odf_common.ports.clock import Clock
from odf_common.ports.engine import Engine
from odf_common.ports.store import BlobStore, Catalog, RefStore
from odf_common.service.settings import ENGINE, Settings
from odf_common.service.topic_claim import claim_topics


class Lock(Protocol):
    """A lock that is held; it saves wasted work, and guards nothing."""

    def renew(self) -> bool:
        """Tell whether it was still ours; then its time starts again."""

    def release(self) -> None:
        """Give it back unless it has become somebody else's."""


class Locks(Protocol):
    """One lock for each dataset."""

    def acquire(self, dataset: DatasetId, ttl_ms: int) -> Lock | None:
        """Return the dataset's lock, None while somebody else holds it."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> Timestamp:
        """Return now, in whole milliseconds."""
        return Timestamp.from_ms(time.time_ns() // 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The ports of one process."""

    settings: Settings
    blobs: BlobStore
    refs: RefStore
    catalog: Catalog
    clock: Clock
    bus: Bus
    topics: Topics
    states: ChainStates
    locks: Locks
    engine: Engine
    claim: Callable[[], object]
    """Make the topics this node's; raises `TopicsTaken`."""
    close: Callable[[], None]


class FreeLocks:
    """Gives every lock at once: for nodes without Redis."""

    def acquire(self, _: DatasetId, ttl_ms: int) -> Lock | None:
        """Return a lock that is always ours."""
        del ttl_ms
        return _FreeLock()


class _FreeLock:
    def renew(self) -> bool:
        """Return True."""
        return True

    def release(self) -> None:
        """Do nothing."""


def connect(settings: Settings) -> Environment:
    """Wire the real adapters; connections are made when they are first used.

    Raises `Unavailable` when Kafka's address was not told.
    """
    kafka = settings.required("kafka")
    bus = KafkaBus(
        kafka,
        prefix=settings.kafka_prefix,
        session_timeout_ms=settings.session_timeout_ms,
        instance=settings.instance,
    )
    blobs, refs = LocalBlobStore(settings.home), LocalRefStore(settings.home)
    clock = SystemClock()
    redis = RedisConnection(settings.redis) if settings.redis else None

    def close() -> None:
        bus.close()
        if redis is not None:
            redis.close()

    return Environment(
        settings=settings,
        blobs=blobs,
        refs=refs,
        catalog=LocalCatalog(settings.home),
        clock=clock,
        bus=bus,
        topics=KafkaTopics(kafka, prefix=settings.kafka_prefix),
        states=ChainStates(blobs, refs, RedisStateCache(redis) if redis else NoStateCache()),
        locks=RedisLocks(redis) if redis else FreeLocks(),
        engine=EngineClient(settings.engine or ENGINE),
        claim=lambda: claim_topics(settings, clock.now()),
        close=close,
    )
