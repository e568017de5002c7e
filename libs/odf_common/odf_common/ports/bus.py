"""The bus: messages between services, ordered within each partition of a topic.

The chain is the truth and the bus is the doorbell: a lost, repeated or reordered message must be harmless.
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
    """A message as it is stored in its topic."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that cannot be handled: its position, its content, the reason."""

    topic: str
    partition: int
    offset: int
    reason: str
    key: bytes = b""
    value: bytes = b""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLetter:
    """A dead letter of a source as it is stored in its topic; `ms` is its timestamp in ms since the epoch.

    `topic` is that of the message, empty for rows of files and for what was polled.
    """

    topic: str
    topic_id: str
    partition: int
    offset: int
    source: str
    reason: str
    value: bytes
    size: int
    """Bytes of the whole value; `value` has only the beginning where it was too large for a letter."""
    ms: int
    event_ms: int | None = None
    """Event time of its records that have none, in ms since the epoch; None if it is the letter's of a topic."""
    input_format: str | None = None
    """Format of the pushed file that has the row, empty for the source's own; None if it was polled, or in a topic."""
    push: str = ""
    """Key of the push that has the row."""
    header_bytes: int = 0
    """Number of bytes of the value that are a header line before the row."""

    @property
    def is_pushed_row(self) -> bool:
        """Return whether it is a row of a pushed file."""
        return not self.topic and self.input_format is not None

    @property
    def location(self) -> str:
        """Return its name among those of its source: `partition/offset`, or `row/number`."""
        return f"row/{self.offset}" if self.is_pushed_row else f"{self.partition}/{self.offset}"

    @property
    def is_whole(self) -> bool:
        """Return whether the letter has all of the value."""
        return self.size == len(self.value)


class DeadLetters(Protocol):
    """Reads dead letters of sources, and resends topic messages."""

    def read(self, key: bytes) -> Iterator[StoredLetter]:
        """Yield the letters with a key that are in the topic now, oldest first; raises `Unavailable`."""

    def send_again(self, letters: Iterable[StoredLetter]) -> int:
        """Publish the values to their original topics and partitions; return their number once all are durable."""


class Inbox(Protocol):
    """A consumer of one topic; used by one thread."""

    @property
    def has_assignment(self) -> bool:
        """Return whether partitions have been assigned, even if none."""

    def poll(self, timeout: float) -> ReceivedMessage | None:
        """Return the next message, or None after `timeout` seconds; raises `Unavailable` if the connection is lost."""

    def commit(self, message: ReceivedMessage) -> None:
        """Commit the message's offset: neither it nor any earlier one in its partition needs more handling."""

    def close(self) -> None:
        """Leave the group, so that partitions are reassigned at once."""


class Bus(Protocol):
    """Sends messages, and opens inboxes."""

    def send(self, topic: str, envelope: Envelope) -> None:
        """Queue a message under its dataset's key; `message_id` and `sent_at` are filled in if empty."""

    def send_dead_letter(self, letter: DeadLetter) -> None:
        """Queue a dead letter."""

    def flush(self, timeout: float = 10.0) -> None:
        """Return when all that this thread has sent is durable; raises `Unavailable` if some of it is not."""

    def subscribe(self, topic: str, *, group: str | None, on_assigned: OnAssigned | None = None) -> Inbox:
        """Open an inbox. With a group, its members share the partitions; without, all new messages are received."""

    def close(self) -> None:
        """Send what is queued, and release the connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic's id and, per partition, the offsets of its first message and of the next one."""

    topic_id: str
    low: Mapping[int, int]
    high: Mapping[int, int]


class Topics(Protocol):
    """Creates and describes topics; only `ensure_topics` adds the prefix, other names are complete."""

    @property
    def prefix(self) -> str:
        """Return the prefix of this node's topics."""

    def ensure_topics(self, names: Iterable[str], partitions: int = PARTITIONS) -> None:
        """Create the missing topics; on return they can be written to."""

    def create_push_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic that keeps all records by default; nothing happens if it exists."""

    def list_names(self) -> Collection[str]:
        """Return the names of all topics of the cluster."""

    def offsets_at(self, name: str, ms: int) -> Mapping[int, int]:
        """Return per partition the offset of the first message with this timestamp (ms) or a later one, else the end.

        Raises `NotFound`.
        """

    def add_partitions(self, name: str, total: int) -> None:
        """Raise the number of partitions to `total`; raises `InvalidInput` if a topic has more, `NotFound`."""

    def set_retention(self, name: str, ms: int | None) -> None:
        """Keep messages for `ms` milliseconds, None: without limit; raises `NotFound`."""

    def describe(self, names: Iterable[str]) -> Mapping[str, TopicInfo | OdfError]:
        """Describe many topics at once; those that cannot be described have the error: `NotFound` or `Unavailable`."""

    def topic_id(self, name: str) -> str:
        """Return the id that distinguishes a topic from a later one with the same name; raises `NotFound`."""

    def partitions(self, name: str) -> int:
        """Return a topic's number of partitions; raises `NotFound`."""

    def watermarks(self, name: str, partition: int) -> tuple[int, int]:
        """Return the offsets of the first message and of the next one; raises `NotFound`."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic; nothing happens if it does not exist."""
