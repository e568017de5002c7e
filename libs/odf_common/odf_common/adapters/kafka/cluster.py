"""A Kafka cluster: its address, authentication, the topics of a node, and the mapping of keys to partitions.

All clients are configured from `KafkaCluster`: those of librdkafka in `client_config.py`, Faust's in the views service.
"""

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from odf_common.adapters.tls import ClientTls
from odf_common.errors import Unavailable
from odf_common.ports.bus import AUDIT, DEAD_LETTERS, FIXED_TOPICS, NODE_CLAIMS, PARTITIONS

OAUTHBEARER: Final = "OAUTHBEARER"
BROKER_DEFAULT: Final = -1  # replication factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sasl:
    """Credentials of a client: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."""

    mechanism: str
    username: str
    """The client id with OAUTHBEARER."""
    password: str = field(repr=False)
    """The client secret with OAUTHBEARER."""
    token_url: str | None = None
    """The token endpoint of OAUTHBEARER, which is asked with the client credentials grant (RFC 6749, 4.4)."""
    token_scope: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """The policy for a node's topics: who creates them, and with how many replicas."""

    is_ours: bool = True
    """Whether the node creates and deletes its topics; otherwise an administrator does, as `odf topics` lists them."""
    replication_factor: int = BROKER_DEFAULT
    min_insync_replicas: int | None = None
    """If None, the broker's default applies."""


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """The address and security settings of a cluster, and the policy for topics."""

    bootstrap: str
    """`host:port[,…]`."""
    _: KW_ONLY
    tls: ClientTls | None = None
    sasl: Sasl | None = None
    topics: TopicPolicy = TopicPolicy()

    @property
    def security_protocol(self) -> str:
        """Return the value of Kafka's `security.protocol`: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        transport = "SSL" if self.tls else "PLAINTEXT"
        return f"SASL_{transport}" if self.sasl else transport


DAY_MS: Final = 24 * 3600 * 1000
UNLIMITED: Final = -1
RETENTION_MS: Final = {DEAD_LETTERS: 30 * DAY_MS, AUDIT: 90 * DAY_MS, NODE_CLAIMS: UNLIMITED}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSpec:
    """The name and configuration of a topic to create; replication factor -1 is the broker's default."""

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]

    def __str__(self) -> str:
        """Return the name, followed in brackets by the properties that differ from the broker's defaults."""
        replicas = () if self.replication_factor < 0 else (f"replication-factor={self.replication_factor}",)
        return f"{self.name} ({', '.join((f'partitions={self.partitions}', *replicas, self.properties()))})"

    def properties(self) -> str:
        """Return the configuration as `name=value, …`."""
        return ", ".join(f"{name}={value}" for name, value in self.config.items())


class TopicsMissing(Unavailable):
    """Topics are missing, and the node is not allowed to create them."""

    ADVICE = "let an administrator of the cluster create them; `odf topics` prints those of the node itself"

    what: str = "topics"
    missing: tuple[str, ...]

    def __str__(self) -> str:
        """Return the names of the missing topics, with their configuration."""
        return f"these topics do not exist, and ODF_KAFKA_MANAGE_TOPICS is off: {'; '.join(self.missing)}"


def node_topic(policy: TopicPolicy, prefix: str, name: str, partitions: int = PARTITIONS) -> TopicSpec:
    """Return the specification of a fixed topic, which every node has, by its name without the prefix."""
    return _spec(policy, prefix + name, partitions, RETENTION_MS.get(name, DAY_MS))


def node_topics(policy: TopicPolicy, prefix: str) -> tuple[TopicSpec, ...]:
    """Return the specifications of all topics that a node needs before it has any dataset."""
    fixed = (node_topic(policy, prefix, name) for name in FIXED_TOPICS)
    return (*fixed, node_topic(policy, prefix, NODE_CLAIMS, 1))


def push_topic(policy: TopicPolicy, name: str, partitions: int = 1) -> TopicSpec:
    """Return the specification of a push source's topic; its retention is unlimited until the owner limits it."""
    return _spec(policy, name, partitions, UNLIMITED)


def missing_topics(specs: Iterable[TopicSpec]) -> TopicsMissing:
    """Return an error that lists the topics which an administrator has to create."""
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


_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """Return the 32-bit murmur2 hash that Kafka's partitioner uses, as an unsigned integer."""
    value = _SEED ^ len(key)
    whole = len(key) & ~3
    for start in range(0, whole, 4):
        word = int.from_bytes(key[start : start + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        value = value * _MULTIPLIER & _MASK ^ word
    if whole < len(key):
        value = (value ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, partitions: int = PARTITIONS) -> int:
    """Return the partition to which Kafka's default partitioner assigns a record with this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
