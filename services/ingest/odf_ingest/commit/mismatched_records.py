"""Rejects records that do not fit the current records of their keys (`merge/changes.py`): messages, or rows of a file.

Without a query and an envelope, each message is a record. Otherwise records are traced to their messages by reading the
first messages alone: since each is computed alone, the records grow with each message.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

import pyarrow as pa

from odf_common.errors import InvalidInput
from odf_ingest.message_columns import Envelope
from odf_ingest.prepare.bad_rows import RefusedRows, RejectedRows
from odf_ingest.prepare.batch import BadRecord, MessageBatch, Part
from odf_ingest.prepare.preparer import PreparedRecords

Read = Callable[[MessageBatch], PreparedRecords]


def without_messages(
    prepared: PreparedRecords, batch: MessageBatch, faults: Mapping[int, str], event_time: str, read: Read
) -> PreparedRecords:
    """Return the records of the batch without the messages of `faults`, which are bad for these reasons.

    `faults` are rows of the records that `read` returned for the batch; `event_time` is a column that may depend on the
    batch.
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
    """Return the records of a file without those of `faults`; raises `InvalidInput` if they refuse it.

    The rows of a query's output have no lines that could be rejected.
    """
    assert prepared.records is not None
    if prepared.source.preprocess is not None:
        first = min(faults)
        raise InvalidInput(where=f"record {first + 1} of the query's output", text=faults[first])
    return replace(prepared, records=rows.without(prepared.records, faults), bad=rows.bad)


def _bad(
    prepared: PreparedRecords, batch: MessageBatch, faults: Mapping[int, str], event_time: str, read: Read
) -> Iterator[BadRecord]:
    """Yield the messages of these records, each once."""
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
    """Return each record as text, without its event time, for which the query may take that of the newest message."""
    columns = sorted(name for name in records.column_names if name != event_time)
    return [repr(row) for row in records.select(columns).to_pylist()]


def _without(batch: MessageBatch, bad: Collection[tuple[int, int]]) -> MessageBatch:
    parts = (_part_without(part, bad) for part in batch.parts)
    return replace(batch, parts=tuple(part for part in parts if len(part.values)))


def _part_without(part: Part, bad: Collection[tuple[int, int]]) -> Part:
    rows = [row for row, offset in enumerate(part.offsets) if (part.partition, offset) not in bad]
    return part if len(rows) == len(part.values) else part.only(rows)
