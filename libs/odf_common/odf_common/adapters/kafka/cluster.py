"""A Kafka cluster: its address, how clients authenticate, and the configuration of topics that we create.

Every client of the cluster is configured from this value: librdkafka's in `client_config.py`, Faust's in the views.
"""

from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from odf_common.adapters.tls import ClientTls

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
    """The creator of a node's topics, and their replicas."""

    is_ours: bool = True
    """Whether the node creates and deletes its topics; else an administrator does, as `odf topics` lists them."""
    replication_factor: int = BROKER_DEFAULT
    min_insync_replicas: int | None = None
    """None: the broker's default."""


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """A cluster as its clients see it."""

    bootstrap: str
    """`host:port[,…]`."""
    _: KW_ONLY
    tls: ClientTls | None = None
    sasl: Sasl | None = None
    topics: TopicPolicy = TopicPolicy()

    @property
    def security_protocol(self) -> str:
        """Return Kafka's name for the combination: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        transport = "SSL" if self.tls else "PLAINTEXT"
        return f"SASL_{transport}" if self.sasl else transport
