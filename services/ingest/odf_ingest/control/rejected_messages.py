"""Lists, retries and drops the rejected messages of a dataset.

A rejected message is open until it was retried or dropped; then it is marked as handled. The number of open messages
follows from the chain and the marks alone. The dead letters have the content of the messages. A letter is written
before its batch is committed, so a kill in between can duplicate it, and it expires with the retention of its topic.
"""

import time
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Final

import structlog

from odf_common.chain.state import ChainState
from odf_common.chain.walk import iterate
from odf_common.codec.envelopes import envelope
from odf_common.dataset.open_rejects import (
    KIND,
    HandledRejects,
    MessagePosition,
    load_handled,
    note_reason,
    open_rejects,
    reading_id,
    rejected_by_source,
    rejecting_sources,
    rows_part,
    save_handled,
    source_progress,
)
from odf_common.errors import NotFound, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddData
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.bus import NOTIFICATIONS, Bus, DeadLetters, StoredLetter
from odf_common.ports.store import BlobStore, block_reader
from odf_common.proto.odf.bus.v1.bus_pb2 import IngestProgress
from odf_ingest.commit.committer import CommitQueues, position_of
from odf_ingest.commit.position import SourcePosition
from odf_ingest.control.retried_rows import RetriedRows, batch_key
from odf_ingest.errors import CannotRetry
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.source_settings import load_settings

log = structlog.stdlib.get_logger(__name__)

LETTERS_PER_CHUNK: Final = 1000  # letters published again before they are marked


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLocation:
    """The location of a rejected message, as its letter has it.

    `source` is the name of a source or of a topic; an empty one matches all.
    """

    source: str
    location: str

    def is_at(self, letter: StoredLetter) -> bool:
        """Return whether a letter has this location."""
        return self.source in {"", letter.source, letter.topic} and self.location == letter.location

    def __str__(self) -> str:
        """Return the location in the notation of `odf rejected list`."""
        return self.location + (f" of source {self.source}" if self.source else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The result of a retry or drop: the number of settled messages, and of those that are still open."""

    count: int
    open: int
    cut: int = 0
    """Number of messages that cannot be retried, because their letters have only the beginning of the value."""
    unfit: int = 0
    """Number of rows and polled messages that still cannot be read as records of the source."""
    why: str = ""
    """The reason for the first of the `unfit` messages."""


@dataclass(eq=False, kw_only=True)
class RejectedMessages:
    """Lists, retries and drops the rejected messages of datasets.

    `letters` reads and resends dead letters; `preparer` reads the rows in them. Changes are announced over `bus`.
    `is_own` returns whether a topic belongs to this node.
    """

    queues: CommitQueues
    blobs: BlobStore
    letters: DeadLetters
    preparer: Preparer
    bus: Bus
    is_own: Callable[[str], bool] = lambda _: True

    def count(self, dataset: DatasetId) -> int:
        """Return the number of messages that await a decision."""
        state = self.queues.state(dataset)
        return open_rejects(self.blobs, state, rejecting_sources(state)).count

    def open(self, dataset: DatasetId, locations: Sequence[MessageLocation] = ()) -> Iterator[StoredLetter]:
        """Yield the letters of open messages, oldest first, one per message. `locations` selects some; empty: all.

        Raises `NotFound` at the end if there was no open message at one of the locations.
        """
        state = self.queues.state(dataset)
        handled = self._load_handled(state)
        seen: set[MessagePosition] = set()
        missing = set(locations)
        for letter in self._passed_letters(state):
            position = message_position(letter)
            if position in seen or handled.holds(position):
                continue
            matches = [location for location in locations if location.is_at(letter)]
            if matches or not locations:
                seen.add(position)
                missing -= set(matches)
                yield letter
        if missing:
            first = min(missing, key=lambda location: (location.source, location.location))
            raise NotFound(what=f"open rejected message {first}")

    def _passed_letters(self, state: ChainState) -> Iterator[StoredLetter]:
        """Yield the dead letters of messages that the source has passed, and of rows that have not been retried.

        Each row has one letter; a topic message may have several. A row may have letters of other batches with the same
        number, which were never committed: these are left out.
        """
        key = str(state.dataset_id).encode()
        positions = {name: position_of(state, name) for name in state.push_sources}
        progress = {name: source_progress(state.source_states.get(name)) for name in rejecting_sources(state)}
        rows = {name: rejects.ends.get(rows_part(name), 0) for name, rejects in progress.items()}
        is_polled = state.polling_source is not None

        def is_row(letter: StoredLetter) -> bool:
            return (
                not letter.topic
                and letter.is_pushed_row != is_polled
                and letter.offset < rows.get(letter.source, 0)
                and letter.offset not in progress[letter.source].retried
            )

        newest: dict[str, dict[int, dict[str, int]]] = {name: {} for name in rows}
        for number, letter in enumerate(self.letters.read(key) if any(rows.values()) else ()):
            if is_row(letter):
                newest[letter.source].setdefault(letter.offset, {})[letter.push] = number
        counting = {
            location
            for name, rejects in newest.items()
            for location in self._counted_places(state, name, rejects)
        }
        for number, stored in enumerate(self.letters.read(key)):
            if is_row(stored):
                if number in counting:
                    yield stored
            elif stored.topic and stored.source in positions:
                letter = _with_topic_id(stored, positions[stored.source])
                if _is_passed(positions[letter.source], letter):
                    yield letter

    def _counted_places(
        self, state: ChainState, source: str, rows: Mapping[int, Mapping[str, int]]
    ) -> Iterator[int]:
        """Yield the index of the valid letter of each row of a source.

        `rows` has by row number and push the index of the letter. If a push was killed, or another instance committed
        first, several pushes wrote letters with the same number; the valid one is that of the push in the chain.
        """
        disputed = [number for number, places in rows.items() if len(places) > 1]
        counts, pushes = self._pushes_since(state, source, min(disputed)) if disputed else ([], [])
        for number, places in rows.items():
            if len(places) == 1:
                yield from places.values()
            else:
                yield from {places[key] for key in pushes[bisect_right(counts, number)] if key in places}

    def _pushes_since(
        self, state: ChainState, source: str, first: int
    ) -> tuple[list[int], list[Collection[str]]]:
        """Return for each of the source's blocks the number of rows rejected so far, and the keys of its last pushes.

        One of these pushes wrote the block's letters. The blocks are in ascending order, from the one that has the
        rejected row `first` to the newest.
        """
        counts: list[int] = []
        pushes: list[Collection[str]] = []
        for _, decoded, _ in iterate(block_reader(self.blobs, state.dataset_id), state.head):
            event = decoded.block.event
            source_state = event.new_source_state if isinstance(event, AddData) else None
            if source_state is None or source_state.source_name != source or source_state.kind != KIND:
                continue
            position = SourcePosition.parse(source_state.value)
            if position.rejected_rows <= first:
                break
            counts.append(position.rejected_rows)
            pushes.append(position.last_keys)
        return counts[::-1], pushes[::-1]

    def drop(self, dataset: DatasetId, locations: Sequence[MessageLocation]) -> Settled:
        """Mark the open messages at these locations as handled; all open messages if `locations` is empty."""
        if locations:
            letters = [replace(letter, value=b"") for letter in self.open(dataset, locations)]
            self._mark(dataset, letters)
            return self._announce(dataset, len(letters))
        before = self.count(dataset)
        self._mark_all(dataset, self.queues.state(dataset))
        return self._announce(dataset, before)

    def retry(self, dataset: DatasetId, locations: Sequence[MessageLocation]) -> Settled:
        """Retry the open messages at these locations; all open messages if `locations` is empty.

        Messages of topics are published to their topics again, and marked as handled. If the process is killed in
        between, the next retry repeats up to `LETTERS_PER_CHUNK` of them. Rows and polled messages that now fit the
        source are committed exactly once; the others stay open. Raises `CannotRetry` if there are only rows and none
        fits, for a message of an external topic, and if columns are read from keys or headers, which letters lack.
        """
        state = self.queues.state(dataset)
        before = self.count(dataset)
        published = committed = cut = 0
        refusals: list[CannotRetry] = []
        # A message that is published and rejected again is a new message, after all these letters.
        letters = self.open(dataset, locations)
        while chunk := list(islice(letters, LETTERS_PER_CHUNK)):
            self._require_retriable(dataset, [letter for letter in chunk if letter.topic])
            whole = [letter for letter in chunk if letter.is_whole]
            cut += len(chunk) - len(whole)
            messages = [letter for letter in whole if letter.topic]
            self.letters.send_again(messages)
            self._mark(dataset, messages)
            published += len(messages)
            for batch in self._retried_rows(dataset, [letter for letter in whole if not letter.topic]):
                committed += batch.count
                refusals += batch.refusals
        if refusals and not published + committed:
            raise refusals[0]
        if not locations and published == before:
            self._mark_all(dataset, state)  # one mark in place of many
        settled = self._announce(dataset, published + committed)
        return replace(settled, cut=cut, unfit=len(refusals), why=refusals[0].why if refusals else "")

    def _retried_rows(self, dataset: DatasetId, rows: Sequence[StoredLetter]) -> Iterator[RetriedRows]:
        """Commit the rows that now fit the source, in batches, and yield each batch."""
        polled = self.queues.state(dataset).polling_source
        for _, same in groupby(rows, key=lambda letter: batch_key(letter, polled)):
            letters = list(same)
            settings = load_settings(self.blobs, dataset, letters[0].source)
            batch = RetriedRows(letters, self.preparer, settings)
            self.queues.commit(dataset, batch)
            yield batch

    def _require_retriable(self, dataset: DatasetId, letters: Sequence[StoredLetter]) -> None:
        """Raise `CannotRetry` unless all topics belong to this node, and only values of messages are read."""
        sources = {letter.source for letter in letters}
        columns = {name: load_settings(self.blobs, dataset, name).message_columns for name in sources}
        for letter in letters:
            location, of_source = letter.location, columns[letter.source]
            if not self.is_own(letter.topic):
                raise CannotRetry(
                    place=location, why=f"topic {letter.topic} belongs to others, and is only read here"
                )
            if of_source.keys or of_source.headers:
                raise CannotRetry(
                    place=location,
                    why="columns are read from its key or headers, and only its value was kept",
                )

    def _mark(self, dataset: DatasetId, letters: Sequence[StoredLetter]) -> None:
        """Record durably that these messages were handled."""
        with self.queues.queue(dataset).lock, self.blobs.lock_notes(dataset):
            handled = self._load_handled(self.queues.state(dataset))
            for source in {letter.source for letter in letters}:
                positions = [message_position(letter) for letter in letters if letter.source == source]
                handled = handled.with_positions(source, positions)
            save_handled(self.blobs, dataset, handled)

    def _mark_all(self, dataset: DatasetId, state: ChainState) -> None:
        """Record durably that all messages rejected up to a state of the chain were handled."""
        with self.queues.queue(dataset).lock, self.blobs.lock_notes(dataset):
            handled = self._load_handled(state)
            for source, progress in rejected_by_source(state, rejecting_sources(state)).items():
                handled = handled.with_all(source, progress)
            save_handled(self.blobs, dataset, handled)

    def _load_handled(self, state: ChainState) -> HandledRejects:
        """Return the marks of handled messages, without those on messages after this state of the chain."""
        handled = load_handled(self.blobs, state.dataset_id)
        for source, progress in rejected_by_source(state, rejecting_sources(state)).items():
            handled = handled.as_of(source, progress)
        return handled

    def _announce(self, dataset: DatasetId, count: int) -> Settled:
        """Publish the number of open messages, and return the result of settling `count` messages."""
        self._renew_reasons(dataset)
        state = self.queues.state(dataset)
        left = open_rejects(self.blobs, state, rejecting_sources(state))
        progress = IngestProgress(rejected=left.count, rejected_reason=left.reason)
        try:
            self.bus.send(NOTIFICATIONS, envelope(dataset, progress, may_ignore=True))
            self.bus.flush()
        except Unavailable as error:
            log.warning("cannot send progress", why=str(error))
        return Settled(count=count, open=left.count)

    def _renew_reasons(self, dataset: DatasetId) -> None:
        """Store for each source the reason of its first open message, if its letter still exists."""
        state = self.queues.state(dataset)
        sources = rejecting_sources(state)
        left = {source for source in sources if open_rejects(self.blobs, state, (source,)).count}
        first: dict[str, str] = {}
        for letter in self.open(dataset) if left else ():
            first.setdefault(letter.source, letter.reason)
            if left <= first.keys():
                break
        with self.queues.queue(dataset).lock:
            for source in sources:
                if source not in left or source in first:
                    reason = first.get(source) if source in left else None
                    note_reason(self.blobs, dataset, source, reason, now=Timestamp(time.time_ns()))


def message_position(letter: StoredLetter) -> MessagePosition:
    """Return the position of a letter's message."""
    topic_id = reading_id(letter.source, letter.topic, letter.topic_id)
    return MessagePosition(topic_id=topic_id, partition=letter.partition, offset=letter.offset)


def _with_topic_id(letter: StoredLetter, position: SourcePosition) -> StoredLetter:
    """Return a letter with its topic's id, which letters of earlier versions lack."""
    topic = position.topics.get(letter.topic)
    if letter.topic_id or topic is None:
        return letter
    return replace(letter, topic_id=topic.topic_id)


def _is_passed(position: SourcePosition, letter: StoredLetter) -> bool:
    """Return whether the source's position is after the message; a message after it may still be accepted."""
    topic = position.topics.get(letter.topic)
    if topic is None or letter.topic_id != topic.topic_id:
        return True  # of an earlier topic with this name
    return letter.offset < topic.next.get(letter.partition, 0)
