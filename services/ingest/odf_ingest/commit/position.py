"""The position of a push source, committed with its records for exactly-once ingestion: the value of its source state.

`{"v":1,"topics":{"<topic>":{"id":"<topic uuid>","next":{"0":123}}}}`; topics with several
partitions also have `greatest`, each partition's greatest event time (ms). Pushed files leave their keys in
`receipts`, and, if a client chose the key, a digest of their bytes in `contents`. `rejected` counts the messages that
became dead letters, rows of pushed files among them; those have numbers of their own, so `rows` has their count, and
the numbers of those that were committed since, as intervals: `{"rejected":5,"retried":[[0,2]]}`. Both are absent while
there are none.
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
        """Return the state that the chain stores with the next block."""


@contextmanager
def reading(value: str, version: int) -> Iterator[Any]:
    """Yield the JSON of a source state's value.

    Raises `SourceStateUnreadable` if it has another version, or lacks a field.
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
    """Next offset and greatest event time (ms since the epoch) of each partition that has been read."""

    topic_id: str
    next: Mapping[int, int] = field(default_factory=dict)
    greatest: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """Positions in all topics of a source, and keys of pushed files."""

    topics: Mapping[str, TopicPosition] = field(default_factory=dict)
    receipts: tuple[str, ...] = ()
    contents: Mapping[str, str] = field(default_factory=dict)
    """Digests of files by receipt, if known."""
    rejected: int = 0
    """Messages up to here that became dead letters, and rows of pushed files and of messages that are tables."""
    rejected_rows: int = 0
    """Those of them that were rows."""
    retried: Numbers = NO_NUMBERS
    """Numbers of rows that were committed since."""

    @classmethod
    def parse(cls, value: str) -> Self:
        """Read a source state's value; raises `SourceStateUnreadable` if this version cannot."""
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
        """Return the value: JSON, keys sorted, no spaces."""
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
        """Return the state with this position."""
        return SourceState(source_name=source, kind=KIND, value=self.text())

    def with_topic(self, name: str, topic: TopicPosition) -> Self:
        """Return the position with one topic's replaced."""
        return replace(self, topics={**self.topics, name: topic})

    def without_topic(self, name: str) -> Self:
        """Return the position without one topic's."""
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
        """Return the rejected and retried messages."""
        return source_progress(self.source_state(source))

    def with_receipt(self, key: str, content: str = "") -> Self:
        """Return the position with one more key and digest; the oldest are dropped.

        Of the files of one run only the last key is kept: it implies the others.
        """
        run = _run(key)
        others = self.receipts if run is None else [other for other in self.receipts if _run(other) != run]
        receipts = (*others, key)[-MAX_RECEIPTS:]
        digests = {**self.contents, key: content}
        contents = {receipt: digests[receipt] for receipt in receipts if digests.get(receipt)}
        return replace(self, receipts=receipts, contents=contents)

    @property
    def last_keys(self) -> Collection[str]:
        """Return the keys of the push or message that was committed last, among others."""
        messages = {
            key_of_message(name, partition, end)
            for name, topic in self.topics.items()
            for partition, end in topic.next.items()
        }
        return {*messages, *self.receipts[-1:]}

    def has_receipt(self, key: str) -> bool:
        """Return whether a file is known to be committed: by its key, or by a later one of its run."""
        placed = run_and_place(key)
        if placed is None:
            return key in self.receipts
        run, place = placed
        places = [other for receipt in self.receipts if (other := run_and_place(receipt)) is not None]
        return any(other == run and last >= place for other, last in places)


def key_of_message(topic: str, partition: int, end: int) -> str:
    """Return the name of a message, the last one before `end`, in place of a push's key."""
    return f"message {topic}/{partition}/{end}"


def next_in_run(position: SourcePosition, run: str) -> int:
    """Return the index of a run's first batch that is not known to be committed."""
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
