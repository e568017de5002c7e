"""The message bus between services; messages are ordered within each partition of a topic.

Only the chain is authoritative. A message merely announces something, so it may be lost, repeated or reordered.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from odf_common.codec.envelopes import Envelope
from odf_common.errors import OdfError

PARTITIONS: Final = 8
INGEST_COMMANDS: Final = "odf.ingest.commands.v1"
COORDINATOR_COMMANDS: Final = "odf.coordinator.commands.v1"
COORDINATOR_REPLIES: Final = "odf.coordinator.replies.v1"
NOTIFICATIONS: Final = "odf.notifications.v1"
DEAD_LETTERS: Final = "odf.dead-letters.v1"
AUDIT: Final = "odf.audit.v1"
NODE_CLAIMS: Final = "odf.node.v1"  # which node owns the topics of a prefix
PUSH_TOPICS: Final = "odf.push."  # begins the names of sources' own topics, after the prefix
FIXED_TOPICS: Final = (
    INGEST_COMMANDS,
    COORDINATOR_COMMANDS,
    COORDINATOR_REPLIES,
    NOTIFICATIONS,
    DEAD_LETTERS,
    AUDIT,
)

OnAssigned = Callable[[frozenset[int]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message with its position in a topic."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that cannot be handled: its position, its content, and the reason."""

    topic: str
    partition: int
    offset: int
    reason: str
    key: bytes = b""
    value: bytes = b""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLetter:
    """A dead letter of a source, as stored in its topic; `ms` is its timestamp in ms since the epoch.

    `topic` is the topic of the original message; it is empty for rows of files and for polled messages.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    source: str
    reason: str
    value: bytes
    size: int
    """Size of the complete value in bytes; `value` is truncated if the original was too large for a dead letter."""
    ms: int
    event_ms: int | None = None
    """Event time for records without one, in ms since the epoch; None for a message of a topic, which has `ms`."""
    input_format: str | None = None
    """Format of the pushed file, empty if it is the source's; None for polled messages and messages of a topic."""
    push: str = ""
    """Idempotency key of the push that contained the row."""
    header_bytes: int = 0
    """Length in bytes of the header line that precedes the row in `value`."""

    @property
    def is_pushed_row(self) -> bool:
        """Return whether the letter is a row of a pushed file."""
        return not self.topic and self.input_format is not None

    @property
    def location(self) -> str:
        """Return a name that is unique in the source: `partition/offset`, or `row/number`."""
        return f"row/{self.offset}" if self.is_pushed_row else f"{self.partition}/{self.offset}"

    @property
    def is_whole(self) -> bool:
        """Return whether `value` is complete."""
        return self.size == len(self.value)


class DeadLetters(Protocol):
    """Reads dead letters of sources, and sends their messages to the original topics again."""

    def read(self, key: bytes) -> Iterator[StoredLetter]:
        """Yield the letters with this key that are in the topic now, oldest first; raises `Unavailable`."""

    def send_again(self, letters: Iterable[StoredLetter]) -> int:
        """Publish the values to their original topics and partitions; return their number once all are durable."""


class Inbox(Protocol):
    """A consumer of one topic; used by one thread."""

    @property
    def has_assignment(self) -> bool:
        """Return whether a partition assignment has been received; it may be empty."""

    def poll(self, timeout: float) -> ReceivedMessage | None:
        """Return the next message, or None after `timeout` seconds; raises `Unavailable` if the connection is lost."""

    def commit(self, message: ReceivedMessage) -> None:
        """Commit the message's offset: this message and all earlier ones of its partition have been handled."""

    def close(self) -> None:
        """Leave the group, so that partitions are reassigned at once."""


class Bus(Protocol):
    """Sends messages and opens inboxes."""

    def send(self, topic: str, envelope: Envelope) -> None:
        """Queue a message with the dataset's id as key; empty `message_id` and `sent_at` are filled in."""

    def send_dead_letter(self, letter: DeadLetter) -> None:
        """Queue a dead letter, which `flush` makes durable."""

    def flush(self, timeout: float = 10.0) -> None:
        """Wait until all messages that this thread has sent are durable; raises `Unavailable` if one is not."""

    def subscribe(self, topic: str, *, group: str | None, on_assigned: OnAssigned | None = None) -> Inbox:
        """Open an inbox. Members of a group share the partitions; without a group it receives all new messages."""

    def close(self) -> None:
        """Send queued messages, and close the connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """The id of a topic and, by partition, the offset of its first message and the offset of its next message."""

    topic_id: str
    low: Mapping[int, int]
    high: Mapping[int, int]


class Topics(Protocol):
    """Creates and describes topics; `ensure_topics` adds the prefix to names, all other methods take complete names."""

    @property
    def prefix(self) -> str:
        """Return the prefix of this node's topics."""

    def ensure_topics(self, names: Iterable[str], partitions: int = PARTITIONS) -> None:
        """Create those of the fixed topics that do not exist; on return all are writable."""

    def create_push_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic with unlimited retention, unless it exists."""

    def list_names(self) -> Collection[str]:
        """Return the names of all topics of the cluster."""

    def offsets_at(self, name: str, ms: int) -> Mapping[int, int]:
        """Return for each partition the offset of the first message with timestamp `ms` or later.

        It is the end of the partition if there is no such message. Raises `NotFound`.
        """

    def add_partitions(self, name: str, total: int) -> None:
        """Increase the number of partitions to `total`; raises `InvalidInput` if the topic has more, `NotFound`."""

    def set_retention(self, name: str, ms: int | None) -> None:
        """Set the retention of a topic in milliseconds, None for unlimited; raises `NotFound`."""

    def describe(self, names: Iterable[str]) -> Mapping[str, TopicInfo | OdfError]:
        """Return the state of topics by name; a topic that cannot be described has `NotFound` or `Unavailable`."""

    def topic_id(self, name: str) -> str:
        """Return the topic's id, which differs from that of a later topic with the same name; raises `NotFound`."""

    def partitions(self, name: str) -> int:
        """Return the number of partitions of a topic; raises `NotFound`."""

    def watermarks(self, name: str, partition: int) -> tuple[int, int]:
        """Return the offset of a partition's first message, and the offset of its next message; raises `NotFound`."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic, if it exists."""
