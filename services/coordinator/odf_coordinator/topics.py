"""Push topics: a name for each push source, fixed when the source is made (design: push topics)."""

import hashlib
import re
from collections.abc import Collection, Iterable
from typing import Final, Protocol

PREFIX: Final = "odf.push"
MAX_LENGTH: Final = 249  # Kafka's limit for the name of a topic
DIGEST: Final = 8  # hexadecimal digits that tell apart what would be called the same
_OTHER: Final = re.compile(r"[^a-z0-9._-]")


class PushTopics(Protocol):
    """The part of the port `Topics` that sources need."""

    def create_push_topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic that keeps every record until told otherwise; nothing happens when it is there."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic; nothing happens when it is not there."""


def topic_name(alias: str, source: str, taken: Collection[str]) -> str:
    """Return `odf.push.[account.]dataset.source`, told apart by a digest where it is taken or too long."""
    plain = ".".join((PREFIX, *(_OTHER.sub("-", part.lower()) for part in (*alias.split("/"), source))))
    if len(plain) <= MAX_LENGTH and plain not in taken:
        return plain
    digest = hashlib.sha256(f"{alias.lower()}\n{source}".encode()).hexdigest()[:DIGEST]
    return f"{plain[: MAX_LENGTH - DIGEST - 1]}-{digest}"


def topics_for(alias: str, sources: Iterable[str], taken: Collection[str]) -> dict[str, str]:
    """Return a topic for each source."""
    topics: dict[str, str] = {}
    for source in sources:
        topics[source] = topic_name(alias, source, {*taken, *topics.values()})
    return topics
