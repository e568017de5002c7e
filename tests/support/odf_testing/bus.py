"""A bus in memory: topics are lists; messages that were read but not committed are redelivered, as in Kafka."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from odf_common.adapters.kafka.cluster import partition_of
from odf_common.codec.envelopes import Envelope, encode, stamp
from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable
from odf_common.ports.bus import (
    DEAD_LETTERS,
    PARTITIONS,
    DeadLetter,
    Inbox,
    OnAssigned,
    ReceivedMessage,
    TopicInfo,
)


class MemoryBus:
    """Port `Bus` for one process; the next `losses` calls of `flush` fail."""

    def __init__(self) -> None:
        """Start with no messages."""
        self.topics: defaultdict[str, list[tuple[bytes, bytes]]] = defaultdict(list)
        self.letters: list[DeadLetter] = []
        self.positions: dict[tuple[str, str], int] = {}
        self.losses = 0

    def send(self, topic: str, envelope: Envelope) -> None:
        """Append the message."""
        number = sum(map(len, self.topics.values()))
        self.topics[topic].append(encode(stamp(envelope, message_id=f"{number:032x}", sent_at=number)))

    def send_raw(self, topic: str, key: bytes, value: bytes) -> None:
        """Append raw bytes, which need not be a message."""
        self.topics[topic].append((key, value))

    def send_dead_letter(self, letter: DeadLetter) -> None:
        """Store the letter."""
        self.letters.append(letter)
        self.topics[DEAD_LETTERS].append((letter.key, letter.value))

    def flush(self, timeout: float = 10.0) -> None:
        """Return, or fail while `losses` remain."""
        if self.losses > 0:
            self.losses -= 1
            raise Unavailable(what="Kafka", why="lost on purpose")

    def subscribe(self, topic: str, *, group: str | None, on_assigned: OnAssigned | None = None) -> Inbox:
        """Open an inbox that owns all partitions."""
        if on_assigned is not None:
            on_assigned(frozenset(range(PARTITIONS)))
        return MemoryInbox(self, topic, group)

    def close(self) -> None:
        """Do nothing."""


class MemoryInbox:
    """Port `Inbox` over a list."""

    def __init__(self, bus: MemoryBus, topic: str, group: str | None) -> None:
        """Start at the group's position, without a group at the end."""
        self._bus = bus
        self._topic = topic
        self._group = group
        end = len(bus.topics[topic])
        self._next = end if group is None else bus.positions.get((group, topic), 0)
        self.has_assignment = True

    def poll(self, timeout: float) -> ReceivedMessage | None:
        """Return the next message."""
        waiting = self._bus.topics[self._topic][self._next :]
        if not waiting:
            time.sleep(min(timeout, 0.005))
            return None
        key, value = waiting[0]
        offset = self._next
        self._next += 1
        return ReceivedMessage(
            topic=self._topic,
            partition=partition_of(key),
            offset=offset,
            key=key,
            value=value,
        )

    def commit(self, message: ReceivedMessage) -> None:
        """Move the group's position."""
        if self._group is not None:
            self._bus.positions[self._group, self._topic] = message.offset + 1

    def close(self) -> None:
        """Do nothing."""


class MemoryTopics:
    """Port `Topics`: names with their partitions."""

    prefix = ""

    def __init__(self) -> None:
        """Start with no topics."""
        self.names: dict[str, int] = {}
        self._deleted = 0
        self._ids: dict[str, str] = {}

    def ensure_topics(self, names: Iterable[str], partitions: int = PARTITIONS) -> None:
        """Store the names."""
        for name in names:
            self.names.setdefault(name, partitions)

    def create_push_topic(self, name: str, partitions: int = 1) -> None:
        """Store the name."""
        self.names.setdefault(name, partitions)

    def add_partitions(self, name: str, total: int) -> None:
        """Store the number of partitions."""
        if total < self.partitions(name):
            raise InvalidInput(where="partitions", text=f"topic {name} has {self.partitions(name)}")
        self.topic_id(name)
        self.names[name] = total

    def set_retention(self, name: str, ms: int | None) -> None:
        """Do nothing: this fake stores no records."""
        del ms
        self.partitions(name)

    def describe(self, names: Iterable[str]) -> Mapping[str, TopicInfo | OdfError]:
        """Return the topics, all empty."""
        return {name: self._described(name) for name in names}

    def list_names(self) -> Collection[str]:
        """Return the names."""
        return self.names.keys()

    def offsets_at(self, name: str, ms: int) -> Mapping[int, int]:
        """Return 0 for each partition."""
        return dict.fromkeys(range(self.partitions(name)), 0)

    def topic_id(self, name: str) -> str:
        """Return an id derived from the name and the number of topics deleted before."""
        number = self.partitions(name)
        return self._ids.setdefault(name, f"id-of-{name}-{number}-{self._deleted}")

    def partitions(self, name: str) -> int:
        """Return the number of partitions."""
        if name not in self.names:
            raise NotFound(what=f"topic {name}")
        return self.names[name]

    def watermarks(self, name: str, partition: int) -> tuple[int, int]:
        """Return 0 and 0: this fake stores no records."""
        if partition >= self.partitions(name):
            raise NotFound(what=f"partition {partition} of topic {name}")
        return 0, 0

    def _described(self, name: str) -> TopicInfo | OdfError:
        if name not in self.names:
            return NotFound(what=f"topic {name}")
        none = dict.fromkeys(range(self.names[name]), 0)
        return TopicInfo(topic_id=self.topic_id(name), low=none, high=none)

    def delete_topic(self, name: str) -> None:
        """Forget the name."""
        if self.names.pop(name, None) is not None:
            self._deleted += 1
            self._ids.pop(name, None)
