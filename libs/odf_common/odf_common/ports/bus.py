"""The bus: messages between services, each topic's partitions kept in order (design: contracts between the parts).

The chain is the truth and the bus is the doorbell: losing, repeating or reordering a message must be harmless.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from odf_common.codec.bus import Envelope
from odf_common.errors import OdfError

PARTITIONS: Final = 8
INGEST_COMMANDS: Final = "odf.ingest.commands.v1"
COORDINATOR_COMMANDS: Final = "odf.coordinator.commands.v1"
COORDINATOR_REPLIES: Final = "odf.coordinator.replies.v1"
NOTIFICATIONS: Final = "odf.notifications.v1"
DEAD_LETTERS: Final = "odf.dead-letters.v1"
FIXED_TOPICS: Final = (
    INGEST_COMMANDS,
    COORDINATOR_COMMANDS,
    COORDINATOR_REPLIES,
    NOTIFICATIONS,
    DEAD_LETTERS,
)

OnAssigned = Callable[[frozenset[int]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message as it lay in its topic."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that nobody can handle: where it lay, what it was, why."""

    topic: str
    partition: int
    offset: int
    reason: str
    key: bytes = b""
    value: bytes = b""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLetter:
    """A dead letter of a push source as it is in its topic; `ms` says since when, in ms since the epoch."""

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

    @property
    def is_whole(self) -> bool:
        """Return whether the letter has all of the value."""
        return self.size == len(self.value)


class DeadLetters(Protocol):
    """Dead letters of push sources, read back."""

    def read(self, key: bytes) -> Iterator[StoredLetter]:
        """Iterate over the letters with a key that are in the topic now, oldest first; raises `Unavailable`."""

    def send_again(self, letters: Iterable[StoredLetter]) -> int:
        """Publish the values to the topics and partitions they came from; returns how many when all are durable."""


class Inbox(Protocol):
    """One reader of one topic; used by one thread."""

    @property
    def is_ready(self) -> bool:
        """Tell whether partitions have been given, be they none."""

    def poll(self, timeout: float) -> Received | None:
        """Return the next message, or None after `timeout` seconds; raises `Unavailable` when cut off for good."""

    def done(self, message: Received) -> None:
        """Note that neither the message nor any before it in its partition needs more handling."""

    def close(self) -> None:
        """Leave; partitions go to other readers at once."""


class Bus(Protocol):
    """Sends messages, and opens inboxes."""

    def send(self, topic: str, envelope: Envelope) -> None:
        """Queue a message under its dataset's key; `message_id` and `sent_at` are filled in when empty."""

    def send_dead_letter(self, letter: DeadLetter) -> None:
        """Queue a dead letter."""

    def flush(self, timeout: float = 10.0) -> None:
        """Return when all that this thread has sent is durable; raises `Unavailable` if some of it is not."""

    def subscribe(self, topic: str, *, group: str | None, on_assigned: OnAssigned | None = None) -> Inbox:
        """Open an inbox. With a group, members share the partitions; without, all is seen, from now on."""

    def close(self) -> None:
        """Send what is queued, and let go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic's id, and for each partition the offset of its first message and of the next one to come."""

    topic_id: str
    low: Mapping[int, int]
    high: Mapping[int, int]


class Topics(Protocol):
    """Makes and describes topics; `ensure_topics` adds the prefix, all other names are whole."""

    @property
    def prefix(self) -> str:
        """Return what the names of this node's topics begin with."""

    def ensure_topics(self, names: Iterable[str], partitions: int = PARTITIONS) -> None:
        """Make topics that are not there; when it returns they can be written."""

    def create_push_topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic that keeps every record until told otherwise; nothing happens when it is there."""

    def describe(self, names: Iterable[str]) -> Mapping[str, TopicInfo | OdfError]:
        """Return many topics at once; for each that cannot be described why: `NotFound` or `Unavailable`."""

    def topic_id(self, name: str) -> str:
        """Return the id that tells a topic from a later one of the same name; raises `NotFound`."""

    def partitions(self, name: str) -> int:
        """Return how many partitions a topic has; raises `NotFound`."""

    def watermarks(self, name: str, partition: int) -> tuple[int, int]:
        """Return the offset of the first message and of the next one to come; raises `NotFound`."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic; nothing happens when it is not there."""
