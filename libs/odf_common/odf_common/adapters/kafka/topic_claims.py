"""Ownership of the topics of a prefix on a cluster: the node is one with the first record in a dedicated topic.

Two nodes with the same topics would fence each other's consumers and ingest each other's messages. Each node reads
the topic after writing, so there is no race: in whatever order two nodes write, both see the same first record.
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
    """A node's claim to own the topics."""

    node_id: str
    home: str
    host: str
    at: str
    """When it was made, RFC 3339."""
    replaces: str | None = None
    """The id of a former owner that no longer exists."""

    def encode(self) -> bytes:
        """Return the record: JSON."""
        fields = {**asdict(self), "nodeId": self.node_id}
        del fields["node_id"]
        return json.dumps(fields).encode()

    @classmethod
    def decode(cls, value: bytes) -> Self | None:
        """Return the claim in a record; None if the record is not a claim."""
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
    """Another node owns the topics of this prefix on this cluster."""

    ADVICE = (
        "set ODF_KAFKA_PREFIX to a prefix of this node's own; or, if that node is gone for good, take "
        "its topics over with `odf up --take-over`"
    )

    kafka: str
    prefix: str
    owner: TopicClaim

    def __str__(self) -> str:
        """Return the owner, and since when."""
        which = f"with prefix {self.prefix!r}" if self.prefix else "without a prefix"
        return (
            f"the topics {which} at Kafka {self.kafka} belong to the node with home {self.owner.home} on host "
            f"{self.owner.host}, since {self.owner.at}"
        )


def owner_of(claims: Iterable[TopicClaim]) -> TopicClaim | None:
    """Return the owner: the first node, or the one that replaced it, and so on; None without claims."""
    owner: TopicClaim | None = None
    for claim in claims:
        if owner is None or claim.replaces == owner.node_id:
            owner = claim
    return owner


def claim_prefix(
    cluster: KafkaCluster, prefix: str, mine: TopicClaim, *, is_taking_over: bool = False
) -> TopicClaim:
    """Claim the topics of the prefix for this node, if it does not own them yet, and return its claim.

    Raises `TopicsTaken` if they belong to another node and are not taken over, `Unavailable` without Kafka.
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
    """Return all claims, in order."""
    claims = (
        TopicClaim.decode(message.value() or b"") for message in messages_until_end(cluster, topic, {0: 0})
    )
    return [claim for claim in claims if claim is not None]
