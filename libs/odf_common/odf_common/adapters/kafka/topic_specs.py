"""Specifications of a node's topics: partitions, replicas, configuration. The node or an administrator creates them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from odf_common.adapters.kafka.cluster import TopicPolicy
from odf_common.errors import Unavailable
from odf_common.ports.bus import AUDIT, DEAD_LETTERS, FIXED_TOPICS, NODE_CLAIMS, PARTITIONS

DAY_MS: Final = 24 * 3600 * 1000
UNLIMITED: Final = -1
RETENTION_MS: Final = {DEAD_LETTERS: 30 * DAY_MS, AUDIT: 90 * DAY_MS, NODE_CLAIMS: UNLIMITED}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """A topic to create; a replication factor of -1 is the broker's default."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]

    def __str__(self) -> str:
        """Return the name, and in brackets what differs from the broker's defaults."""
        replicas = () if self.replication_factor < 0 else (f"replication-factor={self.replication_factor}",)
        return f"{self.name} ({', '.join((f'partitions={self.partitions}', *replicas, self.properties()))})"

    def properties(self) -> str:
        """Return the configuration as `name=value, …`."""
        return ", ".join(f"{name}={value}" for name, value in self.config.items())


class TopicsMissing(Unavailable):
    """Topics are missing, and the node may not create them."""

    ADVICE = "let an administrator of the cluster create them; `odf topics` prints those of the node itself"

    what: str = "topics"
    missing: tuple[str, ...]

    def __str__(self) -> str:
        """Return the topics with their configuration."""
        return f"these topics do not exist, and ODF_KAFKA_MANAGE_TOPICS is off: {'; '.join(self.missing)}"


def node_topic(policy: TopicPolicy, prefix: str, name: str, partitions: int = PARTITIONS) -> TopicSpec:
    """Return the topic of this name, which every node has."""
    return _spec(policy, prefix + name, partitions, RETENTION_MS.get(name, DAY_MS))


def node_topics(policy: TopicPolicy, prefix: str) -> tuple[TopicSpec, ...]:
    """Return all topics that a node needs before it has a dataset."""
    fixed = (node_topic(policy, prefix, name) for name in FIXED_TOPICS)
    return (*fixed, node_topic(policy, prefix, NODE_CLAIMS, 1))


def push_topic(policy: TopicPolicy, name: str, partitions: int = 1) -> TopicSpec:
    """Return the topic of a push source, which keeps all records until its owner decides otherwise."""
    return _spec(policy, name, partitions, UNLIMITED)


def missing_topics(specs: Iterable[TopicSpec]) -> TopicsMissing:
    """Return the error for topics that an administrator has to create."""
    return TopicsMissing(missing=tuple(map(str, specs)))


def _spec(policy: TopicPolicy, name: str, partitions: int, retention_ms: int) -> TopicSpec:
    least = policy.min_insync_replicas
    config = {"retention.ms": str(retention_ms)}
    return TopicSpec(
        name=name,
        partitions=partitions,
        replication_factor=policy.replication_factor,
        config=config if least is None else {**config, "min.insync.replicas": str(least)},
    )
