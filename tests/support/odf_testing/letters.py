"""Dead letters in memory."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from odf_common.ports.bus import DeadLetter, StoredLetter


@dataclass
class StoredLetters:
    """Port `DeadLetters` over what was sent in memory."""

    sent: list[DeadLetter]
    again: list[StoredLetter] = field(default_factory=list)
    lost: int = 0
    sizes: dict[int, int] = field(default_factory=dict)

    def read(self, key: bytes) -> Iterator[StoredLetter]:
        for letter in list(self.sent)[self.lost :]:
            if letter.key == key:
                yield StoredLetter(
                    topic=letter.topic,
                    topic_id=letter.facts.get("topic-id", ""),
                    partition=letter.partition,
                    offset=letter.offset,
                    source=letter.facts["source"],
                    reason=letter.reason,
                    value=letter.value,
                    size=self.sizes.get(letter.offset, len(letter.value)),
                    ms=0,
                    event_ms=None if (at := letter.facts.get("event-time")) is None else int(at),
                    input_format=letter.facts.get("input-format"),
                    push=letter.facts.get("push", ""),
                    header_bytes=int(letter.facts.get("header-bytes", "0")),
                )

    def send_again(self, letters: Iterable[StoredLetter]) -> int:
        before = len(self.again)
        self.again += letters
        return len(self.again) - before
