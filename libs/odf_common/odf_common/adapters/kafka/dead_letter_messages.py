"""Dead letters as Kafka messages: the original message, with the reason in headers; they can be read and sent again.

A value that is too large for the dead-letter topic is truncated. Its headers `size` and `sha3-256` then contain the
size and hash of the complete value. Topic, partition and offset in the headers always identify the original message.
"""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha3_256
from typing import Final

from confluent_kafka import Message

from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.cluster import KafkaCluster, partition_of
from odf_common.adapters.kafka.topic_messages import NewMessage, messages_until_end, publish_all
from odf_common.errors import NotFound
from odf_common.ports.bus import DEAD_LETTERS, DeadLetter, StoredLetter

KIB: Final = 1024
# Maximum bytes of a value, tried in order until the topic accepts it. The first leaves room for headers within the
# producer's limit; the topic's may be lower.
CUTS: Final = (15 * KIB * KIB, 512 * KIB, 64 * KIB, 8 * KIB, KIB, 0)
FACT_CHARACTERS: Final = 32 * KIB  # of each header
SHORT_FACT_CHARACTERS: Final = 200  # characters of each header, if even that must be short

Headers = Sequence[tuple[str, bytes]]


def message_of(letter: DeadLetter, most: int = CUTS[0]) -> tuple[bytes, Headers]:
    """Return the value and headers of a dead letter; the value is truncated to `most` bytes."""
    value = letter.value[:most]
    facts = {
        "topic": letter.topic,
        "partition": str(letter.partition),
        "offset": str(letter.offset),
        "reason": letter.reason,
        **letter.facts,
    }
    if len(value) < len(letter.value):
        facts |= {"size": str(len(letter.value)), "sha3-256": sha3_256(letter.value).hexdigest()}
    limit = FACT_CHARACTERS if most else SHORT_FACT_CHARACTERS
    return value, [(name, text[:limit].encode()) for name, text in facts.items()]


def smaller_cuts(letter: DeadLetter) -> Iterator[int]:
    """Yield the sizes to try after the topic refused a letter: the same size alone, then ever smaller ones."""
    # The batch may have been too large, and not the letter.
    yield CUTS[0]
    yield from (most for most in CUTS[1:] if most < len(letter.value) or most == 0)


class KafkaLetters:
    """Reads dead letters and sends their messages again (port `DeadLetters`)."""

    def __init__(self, cluster: KafkaCluster, *, prefix: str = "") -> None:
        """Use the topics with this prefix; each call opens its own connection."""
        self._cluster = cluster
        self._prefix = prefix

    def read(self, key: bytes) -> Iterator[StoredLetter]:
        """Yield the dead letters with this key that the topic contains now, oldest first; raises `Unavailable`."""
        topic = self._prefix + DEAD_LETTERS
        topics = KafkaTopics(self._cluster, prefix=self._prefix)
        try:
            partition = partition_of(key, topics.partitions(topic))
            low, high = topics.watermarks(topic, partition)
        except NotFound:
            return
        if low == high:
            return
        for message in messages_until_end(self._cluster, topic, {partition: low}):
            if (message.offset() or 0) >= high:  # a letter of what was sent again meanwhile
                return
            if message.key() == key:
                yield _read_letter(message)

    def send_again(self, letters: Iterable[StoredLetter]) -> int:
        """Send the messages to their original topics and partitions again; return their number once all are durable."""
        return publish_all(
            self._cluster,
            (NewMessage(topic=one.topic, value=one.value, partition=one.partition) for one in letters),
        )


def _read_letter(message: Message) -> StoredLetter:
    raw = message.headers() or []
    pairs = raw.items() if isinstance(raw, dict) else raw
    facts = {
        name: (text if isinstance(text, str) else (text or b"").decode(errors="replace"))
        for name, text in pairs
    }
    value = message.value() or b""
    _, ms = message.timestamp()
    return StoredLetter(
        topic=facts.get("topic", ""),
        topic_id=facts.get("topic-id", ""),
        partition=_number(facts.get("partition")),
        offset=_number(facts.get("offset")),
        source=facts.get("source", ""),
        reason=facts.get("reason", ""),
        value=value,
        size=_number(facts.get("size", str(len(value)))),
        ms=ms,
        event_ms=_event_ms(facts.get("event-time")),
        input_format=facts.get("input-format"),
        push=facts.get("push", ""),
        header_bytes=_number(facts.get("header-bytes")),
    )


def _event_ms(text: str | None) -> int | None:
    return int(text) if text is not None and text.removeprefix("-").isdecimal() else None


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
