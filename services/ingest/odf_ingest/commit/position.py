"""The position of a push source, committed with its records for exactly-once ingestion: the value of its source state.

`{"v":1,"topics":{"<topic>":{"id":"<topic uuid>","next":{"0":123}}}}`. Topics with several
partitions also have `greatest`, each partition's greatest event time (ms). The keys of pushed files are in `receipts`;
if a client chose the key, a digest of the file is in `contents`. `rejected` is the number of dead letters, for messages
and for rows. Rows are numbered from 0 as they are rejected: `rows` has the number of rejected rows, and the intervals
of those that were committed later: `{"rejected":5,"retried":[[0,2]]}`. `rejected` and `rows` are absent while they are
zero.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Self

from odf_common.dataset.batch_keys import run_and_place
from odf_common.dataset.open_rejects import (
    KIND,
    NO_NUMBERS,
    Numbers,
    SourceProgress,
    rows_in,
    source_progress,
)
from odf_common.metadata.events import SourceState
from odf_ingest.errors import SourceStateUnreadable

VERSION: Final = 1
MAX_RECEIPTS: Final = 64  # the newest last
MAX_SHOWN_CHARACTERS: Final = 200  # of a value that cannot be read


class Position(Protocol):
    """The position of a source."""

    def source_state(self, source: str) -> SourceState:
        """Return the source state that is stored in the next block."""


@contextmanager
def reading(value: str, version: int) -> Iterator[Any]:
    """Yield the decoded JSON of a source state's value.

    Raises `SourceStateUnreadable` if the value has another version, or if the `with` block does not find a field.
    """
    try:
        plain = json.loads(value)
        if plain["v"] != version:
            raise SourceStateUnreadable(text=f"unknown version {plain['v']!r}")
        yield plain
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SourceStateUnreadable(text=f"cannot be read: {value[:MAX_SHOWN_CHARACTERS]!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPosition:
    """The next offset and the greatest event time (ms since the epoch) of each partition that has been read."""

    topic_id: str
    next: Mapping[int, int] = field(default_factory=dict)
    greatest: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """The position of a push source: its offsets in topics, and the receipts of pushed files."""

    topics: Mapping[str, TopicPosition] = field(default_factory=dict)
    receipts: tuple[str, ...] = ()
    contents: Mapping[str, str] = field(default_factory=dict)
    """Digests of files by receipt, for files whose key was chosen by the client."""
    rejected: int = 0
    """Number of dead letters so far: messages, rows of pushed files, and rows of messages that contain a table."""
    rejected_rows: int = 0
    """Number of dead letters so far that are rows."""
    retried: Numbers = NO_NUMBERS
    """Numbers of the rejected rows that have been retried and committed."""

    @classmethod
    def parse(cls, value: str) -> Self:
        """Read a source state's value; raises `SourceStateUnreadable`."""
        with reading(value, VERSION) as plain:
            rejected_rows, retried = rows_in(plain)
            return cls(
                topics={name: _topic(entry) for name, entry in plain["topics"].items()},
                receipts=tuple(str(key) for key in plain.get("receipts", ())),
                contents={str(key): str(digest) for key, digest in plain.get("contents", {}).items()},
                rejected=int(plain.get("rejected", 0)),
                rejected_rows=rejected_rows,
                retried=retried,
            )

    def text(self) -> str:
        """Return the value of the source state: JSON with sorted keys and without spaces."""
        plain: dict[str, object] = {
            "v": VERSION,
            "topics": {name: _plain(topic) for name, topic in self.topics.items()},
        }
        if self.receipts:
            plain["receipts"] = list(self.receipts)
        if self.contents:
            plain["contents"] = dict(self.contents)
        if self.rejected:
            plain["rejected"] = self.rejected
        if self.rejected_rows:
            rows: dict[str, object] = {"rejected": self.rejected_rows}
            if self.retried.intervals:
                rows["retried"] = self.retried.intervals
            plain["rows"] = rows
        return json.dumps(plain, sort_keys=True, separators=(",", ":"))

    def source_state(self, source: str) -> SourceState:
        """Return the source state that contains this position."""
        return SourceState(source_name=source, kind=KIND, value=self.text())

    def with_topic(self, name: str, topic: TopicPosition) -> Self:
        """Return the position in which one topic's position is replaced."""
        return replace(self, topics={**self.topics, name: topic})

    def without_topic(self, name: str) -> Self:
        """Return the position without this topic."""
        return replace(
            self, topics={other: position for other, position in self.topics.items() if other != name}
        )

    def with_rejected(self, count: int) -> Self:
        """Return the position with `count` more rejected messages."""
        return replace(self, rejected=self.rejected + count)

    def with_rejected_rows(self, count: int) -> Self:
        """Return the position with `count` more rejected rows."""
        return replace(self.with_rejected(count), rejected_rows=self.rejected_rows + count)

    def progress(self, source: str) -> SourceProgress:
        """Return the numbers of rejected and retried messages and rows."""
        return source_progress(self.source_state(source))

    def with_receipt(self, key: str, content: str = "") -> Self:
        """Return the position with one more receipt; beyond `MAX_RECEIPTS` the oldest is dropped.

        A run is a sequence of batches with numbered keys, from one command or stream. Only its last receipt is kept: it
        implies the earlier ones.
        """
        run = _run(key)
        others = self.receipts if run is None else [other for other in self.receipts if _run(other) != run]
        receipts = (*others, key)[-MAX_RECEIPTS:]
        digests = {**self.contents, key: content}
        contents = {receipt: digests[receipt] for receipt in receipts if digests.get(receipt)}
        return replace(self, receipts=receipts, contents=contents)

    @property
    def last_keys(self) -> Collection[str]:
        """Return the key of the last pushed file, and of the last message of each partition.

        The batch that was committed last has one of these keys.
        """
        messages = {
            key_of_message(name, partition, end)
            for name, topic in self.topics.items()
            for partition, end in topic.next.items()
        }
        return {*messages, *self.receipts[-1:]}

    def has_receipt(self, key: str) -> bool:
        """Return whether a receipt shows that the batch is committed: its own, or that of a later batch of its run."""
        placed = run_and_place(key)
        if placed is None:
            return key in self.receipts
        run, place = placed
        places = [other for receipt in self.receipts if (other := run_and_place(receipt)) is not None]
        return any(other == run and last >= place for other, last in places)


def key_of_message(topic: str, partition: int, end: int) -> str:
    """Return the key of the last message before the offset `end`: messages have no key of a push."""
    return f"message {topic}/{partition}/{end}"


def next_in_run(position: SourcePosition, run: str) -> int:
    """Return the index of the first batch of a run that no receipt shows to be committed."""
    places = [placed for receipt in position.receipts if (placed := run_and_place(receipt)) is not None]
    return max((place + 1 for other, place in places if other == run), default=0)


def _run(key: str) -> str | None:
    placed = run_and_place(key)
    return None if placed is None else placed[0]


def _topic(entry: Mapping[str, Mapping[str, int]]) -> TopicPosition:
    return TopicPosition(
        topic_id=str(entry["id"]),
        next={int(number): int(offset) for number, offset in entry["next"].items()},
        greatest={int(number): int(event_time) for number, event_time in entry.get("greatest", {}).items()},
    )


def _plain(topic: TopicPosition) -> dict[str, object]:
    plain: dict[str, object] = {"id": topic.topic_id, "next": _by_text_number(topic.next)}
    if topic.greatest:
        plain["greatest"] = _by_text_number(topic.greatest)
    return plain


def _by_text_number(values: Mapping[int, int]) -> dict[str, int]:
    return {str(number): value for number, value in sorted(values.items())}
