"""Rejects malformed messages and rows.

Decides whether they become dead letters, or whether their batch is refused or their source stopped. Records that do not
fit the current records of their keys (`merge/changes.py`) are rejected too, with their messages or rows.

Without a preprocess query and an envelope, each message is one record. Otherwise a record is traced to its message by
reading the first N messages alone, for several N: queries work record by record, so one more message only adds records.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

import pyarrow as pa
import structlog

from odf_common.chain.state import ChainState
from odf_common.codec.envelopes import envelope
from odf_common.dataset.open_rejects import (
    SourceProgress,
    current_rejects,
    load_handled,
    load_reasons,
    note_reason,
    reading_id,
    rejecting_sources,
    rows_part,
    save_handled,
)
from odf_common.errors import InvalidInput, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import MergeStrategy
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.bus import NOTIFICATIONS, Bus, DeadLetter
from odf_common.ports.store import BlobStore
from odf_common.proto.odf.bus.v1.bus_pb2 import IngestProgress
from odf_ingest import metrics
from odf_ingest.commit.position import SourcePosition
from odf_ingest.errors import RecordRejected, TooManyRejected
from odf_ingest.merge.strategies import takes_whole_batches
from odf_ingest.message_columns import Envelope
from odf_ingest.prepare.bad_rows import RefusedRows, RejectedRows
from odf_ingest.prepare.batch import BadRecord, MessageBatch, Part
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.source_settings import BadRecords, SourceSettings, load_settings

log = structlog.stdlib.get_logger(__name__)

LETTERS_PER_FLUSH: Final = 1000  # dead letters per flush


def rejects_messages(choice: BadRecords) -> bool:
    """Return whether bad messages become dead letters; otherwise the first one stops the source."""
    return choice is not BadRecords.STOP


def rejects_rows(choice: BadRecords, merge: MergeStrategy, *, is_polled: bool) -> bool:
    """Return whether bad rows of a file become dead letters; otherwise a file with a bad row is refused.

    By default a polled file is refused, because it can be fetched again after it was corrected. A snapshot is always
    refused, because the current records of the missing rows would be retracted.
    """
    if takes_whole_batches(merge):
        return False
    return choice is BadRecords.DEAD_LETTER or (choice is BadRecords.AUTO and not is_polled)


def require_share(settings: SourceSettings, messages: str, bad: Sequence[BadRecord], count: int) -> None:
    """Raise `TooManyRejected` if the share of bad messages among the `count` messages is above the source's limit.

    `messages` describes them in the error.
    """
    if bad and len(bad) / count > settings.max_rejected_share:
        raise TooManyRejected(
            messages=messages,
            rejected=len(bad),
            count=count,
            limit=settings.max_rejected_share,
            why=bad[0].reason,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedOfFile:
    """The batch that rejected rows belong to: a file, the messages of a poll, or a message that contains a table.

    The reasons of its dead letters begin with `label`.
    """

    dataset: DatasetId
    source: str
    label: str
    event_time: Timestamp
    """The event time of rows that have none."""
    input_format: str | None = None
    """The format of the rows; empty: the source's format; None: the rows were polled."""
    push: str = ""
    """The key of the push, or of the message (`key_of_message`)."""


@dataclass(eq=False)
class RejectPolicy:
    """Applies the settings of a source to its bad messages and rows, and writes their dead letters to `bus`.

    Settings, and the first reason of each source, are stored as notes in `blobs`. `name_of` returns the name of a
    dataset for logs and metrics.
    """

    bus: Bus
    blobs: BlobStore
    name_of: Callable[[DatasetId], str] = str

    def settings(self, dataset: DatasetId, source: str) -> SourceSettings:
        """Return the settings of a source."""
        return load_settings(self.blobs, dataset, source)

    def committable(
        self, dataset: DatasetId, source: str, batch: MessageBatch, bad: Sequence[BadRecord]
    ) -> MessageBatch:
        """Return the batch, or its messages before the first bad one if the source stops at bad messages.

        Raises `TooManyRejected` if the share of bad messages is above the source's limit, and `RecordRejected` if the
        source stops and there is no message before the first bad one.
        """
        if not bad or batch.is_skipped:
            return batch
        settings = load_settings(self.blobs, dataset, source)
        require_share(settings, f"messages of topic {batch.topic}", bad, batch.count)
        if rejects_messages(settings.bad_records):
            return batch
        shorter = batch.before_bad({(row.partition, row.offset) for row in bad})
        if shorter is None:
            first = bad[0]
            raise RecordRejected(
                topic=batch.topic, partition=first.partition, offset=first.offset, why=first.reason
            )
        return shorter

    def add_to(self, progress: IngestProgress, state: ChainState) -> None:
        """Set the number of rejected messages and rows that await a decision, and the first reason.

        The number is 0 if it cannot be determined.
        """
        waiting = current_rejects(self.blobs, state, rejecting_sources(state))
        progress.rejected = waiting.count
        progress.rejected_reason = waiting.reason

    def write_dead_letters(
        self,
        dataset: DatasetId,
        source: str,
        batch: MessageBatch,
        bad: Sequence[BadRecord],
        position: SourcePosition,
    ) -> None:
        """Write durable dead letters for messages of a topic. Raises `Unavailable`.

        `position` is the source's position before the batch.
        """
        # Before the first batch the position has no offsets: use the batch's start.
        reading = reading_id(source, batch.topic, batch.topic_id)
        ends = {(reading, number): offset for number, offset in batch.start.items()}
        for name, topic in position.topics.items():
            reading = reading_id(source, name, topic.topic_id)
            ends |= {(reading, number): offset for number, offset in topic.next.items()}
        letters = [
            DeadLetter(
                topic=batch.topic,
                partition=record.partition,
                offset=record.offset,
                reason=record.reason,
                key=str(dataset).encode(),
                value=record.value or b"",
                facts={"dataset": str(dataset), "source": source, "topic-id": batch.topic_id},
            )
            for record in bad
        ]
        self._bury(dataset, source, letters, SourceProgress(rejected=position.rejected, ends=ends))

    def bury_rows(self, rows: RejectedOfFile, bad: Sequence[BadRecord], before: SourceProgress) -> None:
        """Write durable dead letters for rows. Their offsets number all rejected rows of the source, from 0.

        `before` is the source's progress before this batch. Raises `Unavailable`.
        """
        facts = {
            "dataset": str(rows.dataset),
            "source": rows.source,
            "event-time": str(rows.event_time.ms),
        }
        if rows.input_format is not None:
            facts |= {"input-format": rows.input_format, "push": rows.push}
        letters = [
            DeadLetter(
                topic="",
                partition=0,
                offset=number,
                reason=f"{rows.label}, {row.reason}",
                key=str(rows.dataset).encode(),
                value=row.value or b"",
                facts=facts | ({"header-bytes": str(row.header_bytes)} if row.header_bytes else {}),
            )
            for number, row in enumerate(bad, start=before.ends.get(rows_part(rows.source), 0))
        ]
        self._bury(rows.dataset, rows.source, letters, before)

    def _bury(
        self, dataset: DatasetId, source: str, letters: Sequence[DeadLetter], before: SourceProgress
    ) -> None:
        """Write durable dead letters and store the source's first reason. Raises `Unavailable`.

        `before` is the source's progress before this batch. Decisions on later messages are deleted: they were made
        before the chain was reset.
        """
        if not letters:
            return
        self._forget_what_was_reset(dataset, source, before)
        for number, letter in enumerate(letters, start=1):
            self.bus.send_dead_letter(letter)
            # A letter may be as large as a message, and the producer buffers letters in memory.
            if number % LETTERS_PER_FLUSH == 0:
                self.bus.flush()
        self.bus.flush()
        # Only the first reason of a source is shown, so later batches need no note.
        if source not in load_reasons(self.blobs, dataset):
            note_reason(self.blobs, dataset, source, letters[0].reason, now=Timestamp(time.time_ns()))

    def announce(self, state: ChainState, source: str, bad: Sequence[BadRecord]) -> None:
        """Log and count the rejected messages. Publish the number of undecided ones; if that fails, only log it."""
        if not bad:
            return
        dataset = state.dataset_id
        name = self.name_of(dataset)
        metrics.BAD.labels(name, source).inc(len(bad))
        log.warning(
            "messages rejected",
            dataset=name,
            dataset_id=str(dataset),
            source=source,
            messages=len(bad),
            first=bad[0].reason,
            see=f"odf rejected list {name}",
        )
        progress = IngestProgress()
        self.add_to(progress, state)
        try:
            self.bus.send(NOTIFICATIONS, envelope(dataset, progress, may_ignore=True))
            self.bus.flush()
        except Unavailable as error:
            log.warning("cannot send progress", why=str(error))

    def _forget_what_was_reset(self, dataset: DatasetId, source: str, before: SourceProgress) -> None:
        """Delete decisions on messages after this progress. After a reset such a message needs a new decision."""
        with self.blobs.lock_notes(dataset):
            handled = load_handled(self.blobs, dataset)
            if source not in handled.counts:
                return
            now = handled.as_of(source, before)
            if now != handled:
                save_handled(self.blobs, dataset, now)


class RowLetters:
    """Dead letters of a batch's bad rows: written once, however often the batch is drafted."""

    def __init__(self, policy: RejectPolicy) -> None:
        """Write dead letters with `policy`."""
        self._policy = policy
        self._first = 0
        self.rows: Sequence[BadRecord] = ()
        """The rows that have been written."""

    def write(self, file: RejectedOfFile, rows: Sequence[BadRecord], before: SourceProgress) -> None:
        """Write durable dead letters for the rows, unless the last call wrote the same ones. Raises `Unavailable`.

        `before` is the source's progress before this batch.
        """
        first = before.ends.get(rows_part(file.source), 0)
        if (self._first, self.rows) != (first, rows):
            self._policy.bury_rows(file, rows, before)
            self._first, self.rows = first, rows


Read = Callable[[MessageBatch], PreparedRecords]


def without_messages(
    prepared: PreparedRecords, batch: MessageBatch, faults: Mapping[int, str], event_time: str, read: Read
) -> PreparedRecords:
    """Return the records of the batch without the messages that have faulty records; these are added to the bad ones.

    `faults` has the reason by the row of each faulty record in `prepared`, which `read` returned for the batch. The
    column `event_time` is ignored in comparisons of records, because its values may depend on the batch.
    """
    bad = list(_bad(prepared, batch, faults, event_time, read))
    left = _without(batch, {(row.partition, row.offset) for row in bad})
    rest = read(left) if left.parts else replace(prepared, records=None, bad=(), greatest={}, rows={})
    order = {part.partition: number for number, part in enumerate(batch.parts)}
    both = sorted([*rest.bad, *bad], key=lambda row: (order[row.partition], row.offset))
    return replace(rest, bad=tuple(both))


def without_rows(
    prepared: PreparedRecords, faults: Mapping[int, str], rows: RejectedRows | RefusedRows
) -> PreparedRecords:
    """Return the records of a file without those in `faults`; raises `InvalidInput` if the file is refused.

    A file with a preprocess query is refused, because a row of the query's output is not a row of the file.
    """
    assert prepared.records is not None
    if prepared.source.preprocess is not None:
        first = min(faults)
        raise InvalidInput(where=f"record {first + 1} of the query's output", text=faults[first])
    return replace(prepared, records=rows.without(prepared.records, faults), bad=rows.bad)


def _bad(
    prepared: PreparedRecords, batch: MessageBatch, faults: Mapping[int, str], event_time: str, read: Read
) -> Iterator[BadRecord]:
    """Yield the messages that have a record in `faults`, each once."""
    is_bad = {(row.partition, row.offset) for row in prepared.bad}
    start = 0
    for part in batch.parts:
        end = start + prepared.rows.get(part.partition, 0)
        own = {row - start: why for row, why in faults.items() if start <= row < end}
        if own and prepared.source.preprocess is None and batch.columns.envelope is Envelope.NONE:
            good = [row for row, offset in enumerate(part.offsets) if (part.partition, offset) not in is_bad]
            reasons = {good[row]: why for row, why in own.items()}
        elif own:
            assert prepared.records is not None
            records = _comparable(prepared.records.slice(start, end - start), event_time)
            places = _messages(replace(batch, parts=(part,)), records, own, event_time, read)
            reasons = {place: own[row] for row, place in reversed([*zip(own, places, strict=True)])}
        else:
            reasons = {}
        for row, why in sorted(reasons.items()):
            yield BadRecord(
                partition=part.partition, offset=part.offsets[row], value=part.values[row], reason=why
            )
        start = end


def _messages(
    batch: MessageBatch, records: Sequence[str], rows: Collection[int], event_time: str, read: Read
) -> list[int]:
    """Return for each row the index of its message in the batch, which has one part."""
    (part,) = batch.parts

    @cache
    def first(count: int) -> Counter[str]:
        if count == 0:
            return Counter()
        found = read(replace(batch, parts=(part.between(0, count),))).records
        return Counter() if found is None else Counter(_comparable(found, event_time))

    def message(row: int) -> int:
        number = records[: row + 1].count(records[row])
        return bisect_left(range(len(part.values)), number, key=lambda index: first(index + 1)[records[row]])

    return [message(row) for row in rows]


def _comparable(records: pa.Table, event_time: str) -> list[str]:
    """Return each record as text without its event time, which may be that of the newest message of the batch."""
    columns = sorted(name for name in records.column_names if name != event_time)
    return [repr(row) for row in records.select(columns).to_pylist()]


def _without(batch: MessageBatch, bad: Collection[tuple[int, int]]) -> MessageBatch:
    parts = (_part_without(part, bad) for part in batch.parts)
    return replace(batch, parts=tuple(part for part in parts if len(part.values)))


def _part_without(part: Part, bad: Collection[tuple[int, int]]) -> Part:
    rows = [row for row, offset in enumerate(part.offsets) if (part.partition, offset) not in bad]
    return part if len(rows) == len(part.values) else part.only(rows)
