"""The bus: messages between services, each topic's partitions kept in order (design: contracts between the parts).

The chain is the truth and the bus is the doorbell: losing, repeating or reordering a message must be harmless.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from odf_common.codec.bus import Envelope

PARTITIONS: Final = 8
INGEST_COMMANDS: Final = "odf.ingest.commands.v1"
COORDINATOR_COMMANDS: Final = "odf.coordinator.commands.v1"
VERIFIER_COMMANDS: Final = "odf.verifier.commands.v1"
SYNC_COMMANDS: Final = "odf.sync.commands.v1"
INGEST_REPLIES: Final = "odf.ingest.replies.v1"
COORDINATOR_REPLIES: Final = "odf.coordinator.replies.v1"
VERIFIER_REPLIES: Final = "odf.verifier.replies.v1"
SYNC_REPLIES: Final = "odf.sync.replies.v1"
NOTIFICATIONS: Final = "odf.notifications.v1"
DEAD_LETTERS: Final = "odf.dead-letters.v1"
FIXED_TOPICS: Final = (
    INGEST_COMMANDS,
    COORDINATOR_COMMANDS,
    VERIFIER_COMMANDS,
    SYNC_COMMANDS,
    INGEST_REPLIES,
    COORDINATOR_REPLIES,
    VERIFIER_REPLIES,
    SYNC_REPLIES,
    NOTIFICATIONS,
    DEAD_LETTERS,
)

OnOwned = Callable[[frozenset[int]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message as it lay in its topic; `attempts` counts how often handling it has ended this process."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes
    attempts: int = 0


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


class Inbox(Protocol):
    """One reader of one topic; used by one thread."""

    @property
    def is_ready(self) -> bool:
        """Tell whether partitions have been given, be they none."""

    def poll(self, timeout: float) -> Received | None:
        """Return the next message, or None after `timeout` seconds; raises `Unavailable` when cut off for good."""

    def done(self, message: Received) -> None:
        """Note that the message needs no more handling."""

    def note_attempt(self, message: Received) -> None:
        """Note, durably, that handling the message is about to end this process."""

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

    def subscribe(self, topic: str, *, group: str | None, on_owned: OnOwned | None = None) -> Inbox:
        """Open an inbox. With a group, members share the partitions; without, all is seen, from now on."""

    def close(self) -> None:
        """Send what is queued, and let go."""


class Topics(Protocol):
    """Makes and describes topics."""

    def ensure_topics(self, names: Iterable[str], partitions: int = PARTITIONS) -> None:
        """Make topics that are not there; when it returns they can be written."""

    def create_push_topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic that keeps every record until told otherwise; nothing happens when it is there."""

    def topic_id(self, name: str) -> str:
        """Return the id that tells a topic from a later one of the same name; raises `NotFound`."""

    def partitions(self, name: str) -> int:
        """Return how many partitions a topic has; raises `NotFound`."""

    def watermarks(self, name: str, partition: int) -> tuple[int, int]:
        """Return the offset of the first message and of the next one to come; raises `NotFound`."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic; nothing happens when it is not there."""
