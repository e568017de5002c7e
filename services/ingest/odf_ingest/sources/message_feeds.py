"""Messages of a Source resource: those in the buffer of pushes, or in topics that other applications own."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from odf_common.adapters.kafka.records import Chunk, PollResult
from odf_common.errors import OdfError, Unavailable
from odf_common.ports.bus import TopicInfo
from odf_ingest.commit.position import TopicPosition
from odf_ingest.message_columns import NO_COLUMNS, MessageColumns
from odf_ingest.push.lifecycle.start_position import StartPosition, start_position
from odf_ingest.push.reader import NewClient
from odf_ingest.push.source_topics import SourceTopic
from odf_ingest.sources.push_buffer import PushBuffer

MESSAGES_PER_READ: Final = 500
BYTES_PER_READ: Final = 16 * 1024 * 1024
TOPIC_SILENCE_SECONDS: Final = 30.0  # without a message before the end of a topic
TOPIC_POLL_SECONDS: Final = 0.5
Offsets = Mapping[int, int]


class MessageFeed(Protocol):
    """Messages with offsets, as a topic has them."""

    @property
    def topic(self) -> str:
        """Return the name in positions of the chain."""

    @property
    def topic_id(self) -> str:
        """Return the id that distinguishes it from a later one of the same name."""

    @property
    def columns(self) -> MessageColumns:
        """Return the columns that are read from keys, headers and timestamps."""

    @property
    def ends(self) -> Offsets:
        """Return per partition the offset after the last message, as of the beginning."""

    def start(self, committed: TopicPosition | None) -> StartPosition:
        """Return the offsets at which to read after a position of the chain; raises an error if messages were lost."""

    def count(self, start: Offsets) -> int:
        """Return the number of records from a position up to the ends."""

    def chunks(self, start: Offsets) -> Iterator[Chunk]:
        """Yield the messages from a position up to the ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferFeed:
    """The records that were pushed to a source, as a topic with one partition; offsets are numbers of records."""

    buffer: PushBuffer
    source: str
    """Id of the resource."""
    first: int
    end: int
    columns: MessageColumns = NO_COLUMNS

    @classmethod
    def now(cls, buffer: PushBuffer, source: str) -> "BufferFeed":
        """Return the present content of a buffer."""
        first, end = buffer.bounds(source)
        return cls(buffer=buffer, source=source, first=first, end=end)

    @property
    def topic(self) -> str:
        """Return the name in positions, which no topic of Kafka can have."""
        return f"source/{self.source}"

    @property
    def topic_id(self) -> str:
        """Return the id of the resource."""
        return self.source

    @property
    def ends(self) -> Offsets:
        """Return the number of the record that follows."""
        return {0: self.end}

    def start(self, committed: TopicPosition | None) -> StartPosition:
        """Return the position of the chain, or the oldest record for a dataset that has none yet."""
        beginning = {0: self.first}
        positions = beginning if committed is None else committed.next
        return StartPosition(topic_id=self.source, positions=positions, beginning=beginning)

    def count(self, start: Offsets) -> int:
        """Return the number of records in the buffer from a position on."""
        return self.buffer.count(self.source, start[0])

    def chunks(self, start: Offsets) -> Iterator[Chunk]:
        """Yield the messages in pages."""
        place = start[0]
        while place < self.end:
            rows = self.buffer.read(
                self.source, place, max_messages=MESSAGES_PER_READ, max_bytes=BYTES_PER_READ
            )
            if not rows:
                return
            yield Chunk(
                partition=(self.topic, 0),
                values=[row.value for row in rows],
                # A message with many records ends with the last of them.
                offsets=[row.first + max(row.records, 1) - 1 for row in rows],
                timestamps=partial(list, [row.ms for row in rows]),
            )
            place = rows[-1].first + max(rows[-1].records, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFeed:
    """A topic of Kafka that another application owns."""

    described: SourceTopic
    new_client: NewClient

    @property
    def topic(self) -> str:
        """Return the name of the topic."""
        return self.described.name

    @property
    def topic_id(self) -> str:
        """Return the id that Kafka has given the topic."""
        return self._info.topic_id

    @property
    def columns(self) -> MessageColumns:
        """Return the columns that are read from keys, headers and timestamps."""
        return self.described.columns

    @property
    def ends(self) -> Offsets:
        """Return the ends of its partitions."""
        return self._info.high

    @property
    def _info(self) -> TopicInfo:
        if isinstance(self.described.described, OdfError):
            raise self.described.described
        return self.described.described

    def start(self, committed: TopicPosition | None) -> StartPosition:
        """Return the position of the chain, or that of the chosen start."""
        return start_position(self.described, committed)

    def count(self, start: Offsets) -> int:
        """Return the number of messages, and of markers of transactions, which Kafka does not tell apart."""
        return sum(max(end - start[number], 0) for number, end in self.ends.items())

    def chunks(self, start: Offsets) -> Iterator[Chunk]:
        """Yield the messages as Kafka's client returns them; raises `Unavailable` if it returns none for long."""
        left = {number for number, end in self.ends.items() if start[number] < end}
        if not left:
            return
        client = self.new_client()
        try:
            client.assign({(self.topic, number): start[number] for number in left})
            heard = time.monotonic()
            while left:
                result = client.take(MESSAGES_PER_READ, TOPIC_POLL_SECONDS)
                for reason in result.faults.values():
                    raise Unavailable(what=f"topic {self.topic}", why=reason)
                if result.chunks:
                    heard = time.monotonic()
                elif time.monotonic() - heard > TOPIC_SILENCE_SECONDS:
                    raise Unavailable(what=f"topic {self.topic}", why="Kafka returns no messages")
                yield from (chunk for chunk in result.chunks if chunk.partition[1] in left)
                left -= {number for number in left if _reached_offset(number, result) >= self.ends[number]}
        finally:
            client.close()


def _reached_offset(number: int, result: PollResult) -> int:
    """Return the offset up to which a partition was read; markers of transactions may follow the last message."""
    read = [chunk.offsets[-1] + 1 for chunk in result.chunks if chunk.partition[1] == number]
    ends = [end for (_, partition), end in result.ends.items() if partition == number]
    return max([0, *read, *ends])
