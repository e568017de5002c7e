"""What is brought in at once: messages of a topic, or a file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from odf_common.metadata.scalars import Timestamp
from odf_ingest.values import Places, Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Messages of one partition in order; `timestamps` has their Kafka times in ms since the epoch, if asked for."""

    partition: int
    values: Values
    offsets: Sequence[int]
    timestamps: Places | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageBatch:
    """Messages of one topic from position `start` up to `end`, both by partition.

    `beginning` has the offsets at which partitions begin that the chain does not know yet.
    `unread` are the partitions that were not seen to have been read to their ends.
    `begun` is when the first of them came (seconds, monotonic), `size` their bytes, `partitions` how many the
    topic has.
    """

    topic: str
    topic_id: str
    partitions: int
    parts: tuple[Part, ...]
    start: Mapping[int, int]
    end: Mapping[int, int]
    beginning: Mapping[int, int]
    begun: float
    size: int
    unread: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        """Return how many messages there are."""
        return sum(len(part.values) for part in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBatch:
    """One file; `event_time` is for records that have none, `key` tells a repeat."""

    file: Path
    event_time: Timestamp
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A message that is no record of the source, and why."""

    partition: int
    offset: int
    value: bytes | None
    reason: str
