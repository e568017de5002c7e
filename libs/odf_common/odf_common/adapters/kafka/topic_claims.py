"""Ownership of all topics with a prefix on a cluster: the owner is the node with the first claim in a dedicated topic.

Two nodes with the same topics would fence each other's consumers and ingest each other's messages. Each node writes its
claim and then reads the topic. So there is no race: all nodes see the same first claim, whatever the order of writes.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Self

from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.cluster import KafkaCluster
from odf_common.adapters.kafka.topic_messages import messages_until_end, publish
from odf_common.errors import Conflict, Unavailable
from odf_common.ports.bus import NODE_CLAIMS


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicClaim:
    """A claim of a node to own the topics."""

    node_id: str
    home: str
    host: str
    at: str
    """Time of the claim, RFC 3339."""
    replaces: str | None = None
    """Id of the former owner that this node takes over from; None if the claim is not a takeover."""

    def encode(self) -> bytes:
        """Return the claim as JSON."""
        fields = {**asdict(self), "nodeId": self.node_id}
        del fields["node_id"]
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, value: bytes) -> Self | None:
        """Parse a claim; None if the bytes are not a claim."""
        try:
            fields = json.loads(value)
            return cls(
                node_id=str(fields["nodeId"]),
                home=str(fields["home"]),
                host=str(fields["host"]),
                at=str(fields["at"]),
                replaces=fields.get("replaces"),
            )
        except (ValueError, TypeError, KeyError):
            return None


class TopicsTaken(Conflict):
    """Another node owns the topics with this prefix on this cluster."""

    ADVICE = (
        "set ODF_KAFKA_PREFIX to a prefix of this node's own; or, if that node is gone for good, take "
        "its topics over with `odf up --take-over`"
    )

    kafka: str
    prefix: str
    owner: TopicClaim

    def __str__(self) -> str:
        """Return a message with the owner, and since when it has owned the topics."""
        which = f"with prefix {self.prefix!r}" if self.prefix else "without a prefix"
        return (
            f"the topics {which} at Kafka {self.kafka} belong to the node with home {self.owner.home} on host "
            f"{self.owner.host}, since {self.owner.at}"
        )


def owner_of(claims: Iterable[TopicClaim]) -> TopicClaim | None:
    """Return the claim of the owner, taking takeovers into account; None if there are no claims."""
    owner: TopicClaim | None = None
    for claim in claims:
        if owner is None or claim.replaces == owner.node_id:
            owner = claim
    return owner


def claim_prefix(
    cluster: KafkaCluster, prefix: str, mine: TopicClaim, *, is_taking_over: bool = False
) -> TopicClaim:
    """Claim the topics with this prefix unless the node already owns them; return the node's claim.

    Raises `TopicsTaken` if another node owns them and `is_taking_over` is not set, `Unavailable` without Kafka.
    """
    topic = prefix + NODE_CLAIMS
    KafkaTopics(cluster).create_push_topic(topic)  # a claim has to be kept as long as records
    owner = owner_of(_claims(cluster, topic))
    if owner is None or (is_taking_over and owner.node_id != mine.node_id):
        claim = replace(mine, replaces=None if owner is None else owner.node_id)
        publish(cluster, topic, [claim.encode()])
        owner = owner_of(_claims(cluster, topic))
    if owner is None:
        raise Unavailable(what="Kafka", why=f"the claim in {topic} cannot be read back")
    if owner.node_id != mine.node_id:
        raise TopicsTaken(kafka=cluster.bootstrap, prefix=prefix, owner=owner)
    return owner


def _claims(cluster: KafkaCluster, topic: str) -> list[TopicClaim]:
    """Return all claims in the topic, oldest first."""
    claims = (
        TopicClaim.decode(message.value() or b"") for message in messages_until_end(cluster, topic, {0: 0})
    )
    return [claim for claim in claims if claim is not None]
