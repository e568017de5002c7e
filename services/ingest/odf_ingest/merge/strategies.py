"""Merge strategies: new records and a dataset's content → records to append (spec: Merge Strategies; wire-facts §5.3).

Append: all records are appended, ordered by event time.

Ledger: records whose key was seen before, in the dataset or earlier in the batch, are dropped.

Snapshot: each batch is the complete state of the source; its difference from the current records is appended.

UpsertStream: the last record of a key in a batch wins; operation 1 retracts the key. Operation 2 is ignored: it has
the values before an update, which the dataset knows.

ChangelogStream: records have their own operations. They are ordered by key, and within a key in the order of arrival.

A +C is moved to directly follow its -C (RFC-015): the first +C of a key belongs to its first -C, and so on. A batch
never ends between a -C and its +C, so the order of a key's operations and its final value do not depend on where
batches are cut. `changes.py` checks each operation against the current record of its key.
"""

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from odf_common.data.columns import Operation
from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    DatasetVocabulary,
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
)
from odf_common.metadata.scalars import Strings
from odf_ingest.errors import IncompleteCorrection, SnapshotRetractsTooMuch
from odf_ingest.history.keys import first_of_each, key_array, last_of_each
from odf_ingest.merge.changes import Changes
from odf_ingest.merge.difference import alike, begin_sorting, difference
from odf_ingest.merge.interface import History, MergeResult, by_event_time, by_key, key_order
from odf_ingest.source_settings import EmptySnapshot, SourceSettings

DEFAULT: Final = SourceSettings()
Indices = npt.NDArray[np.int64]


def merge(
    strategy: MergeStrategy,
    new: pa.Table,
    history: History,
    vocab: DatasetVocabulary,
    settings: SourceSettings = DEFAULT,
) -> MergeResult:
    """Return the records to append so that the dataset reflects `new`, which has an event time column.

    `settings` limit what one snapshot may retract. Columns have stored types, as in the history.
    """
    match strategy:
        case MergeStrategyAppend():
            return MergeResult(records=by_event_time(new, vocab.event_time_column))
        case MergeStrategyLedger():
            return _merge_ledger(strategy.primary_key, new, history, vocab)
        case MergeStrategySnapshot():
            return _merge_snapshot(strategy, new, history, vocab, settings)
        case MergeStrategyChangelogStream():
            return _merge_changelog(strategy.primary_key, new, history, vocab, settings)
        case MergeStrategyUpsertStream():
            return _merge_upserts(strategy.primary_key, new, history, vocab)


def key_columns(strategy: MergeStrategy) -> Strings:
    """Return the columns of the strategy's key, which must have a value in every record."""
    return () if isinstance(strategy, MergeStrategyAppend) else strategy.primary_key


def takes_whole_batches(strategy: MergeStrategy) -> bool:
    """Return whether each batch is the complete state of the source, as in a snapshot."""
    return isinstance(strategy, MergeStrategySnapshot)


def operation_faults(strategy: MergeStrategy, new: pa.Table, vocab: DatasetVocabulary) -> Mapping[int, str]:
    """Return the rows that lack a valid operation, with the reason; empty if the strategy needs no operations."""
    if not isinstance(strategy, MergeStrategyChangelogStream | MergeStrategyUpsertStream):
        return {}
    name = vocab.operation_type_column
    if name not in new.column_names or not pa.types.is_integer(new.column(name).type):
        return {}
    codes = pa.array([int(op) for op in Operation]).cast(new.column(name).type)
    wrong = np.flatnonzero(~pc.is_in(new.column(name), value_set=codes).to_numpy())
    return {int(row): _fault(name, new.column(name)[row].as_py()) for row in wrong}


def _fault(name: str, operation: int | None) -> str:
    if operation is None:
        return f"has no operation in {name}"
    return f"column {name}: {operation} is not an operation; 0 is +A, 1 is -R, 2 is -C, 3 is +C"


def _merge_ledger(key: Strings, new: pa.Table, history: History, vocab: DatasetVocabulary) -> MergeResult:
    keys = key_array(new, key)
    indices, fresh = history.fresh(key, keys)
    records = new if len(indices) == len(new) else new.take(pa.array(indices))
    return MergeResult(records=by_event_time(records, vocab.event_time_column), keys={key: fresh})


def _merge_snapshot(
    strategy: MergeStrategySnapshot,
    new: pa.Table,
    history: History,
    vocab: DatasetVocabulary,
    settings: SourceSettings,
) -> MergeResult:
    key = strategy.primary_key
    if len(new) == 0 and settings.empty_snapshot is EmptySnapshot.REFUSE:
        raise InvalidInput(
            text="the snapshot has no records, which this source refuses (emptySnapshot: refuse)"
        )
    sorting = begin_sorting(new, key) if len(new) else None
    current = history.current(key)
    if len(new) == 0 and len(current) == 0:
        return MergeResult(records=new)  # the dataset may not have the key's columns yet
    merged = difference(
        current,
        new,
        key=key,
        sorting=sorting,
        compared=strategy.compare_columns,
        event_time=vocab.event_time_column,
        retracts_missing=True,
    )
    if len(new) or settings.empty_snapshot is not EmptySnapshot.RETRACT:
        _check_share(merged, len(current), len(new), settings)
    return merged


def _check_share(merged: MergeResult, rows: int, new_rows: int, settings: SourceSettings) -> None:
    """Raise `SnapshotRetractsTooMuch` if more than the allowed share of the current rows is retracted.

    A few rows may always be retracted, because all rows of a small list may change. This does not apply if the snapshot
    has too few rows for that share, as a truncated file has.
    """
    retracted = int(pc.sum(pc.equal(merged.ops, int(Operation.RETRACT)), min_count=0).as_py())
    is_shorter = new_rows < (1 - settings.max_retracted_share) * rows
    if retracted <= settings.retraction_guard_rows and not is_shorter:
        return
    is_empty = new_rows == 0
    if retracted > settings.max_retracted_share * rows:
        raise SnapshotRetractsTooMuch(
            reason=SnapshotRetractsTooMuch.__name__,
            text=f"the snapshot{' has no records and' if is_empty else ''} would retract {retracted} of {rows} rows; "
            f"the source allows {settings.max_retracted_share:.0%} (maxRetractedShare)",
            retracted=retracted,
            rows=rows,
            is_empty=is_empty,
        )


def _merge_changelog(
    key: Strings, new: pa.Table, history: History, vocab: DatasetVocabulary, settings: SourceSettings
) -> MergeResult:
    if vocab.operation_type_column not in new.column_names:
        raise InvalidInput(where=f"column {vocab.operation_type_column}", text="is missing")
    ops = operations(new, vocab.operation_type_column)
    records = new.drop_columns([vocab.operation_type_column]).combine_chunks()
    _check_halves(records, ops, key)
    order = key_order(records, key).to_numpy()
    rows = order[_pair(ops.to_numpy(zero_copy_only=False)[order])]
    records, ops = records.take(pa.array(rows)), ops.take(pa.array(rows))
    keys, _ = first_of_each(key_array(records, key))
    changes = Changes.from_tables(
        new=records,
        ops=ops.to_numpy(zero_copy_only=False),
        rows=rows,
        current=alike(history.current(key, keys), records.schema),
        key=key,
        event_time=vocab.event_time_column,
    )
    return MergeResult(records=changes.complete(is_whole=settings.completes_retractions), ops=ops)


def _check_halves(records: pa.Table, ops: pa.Array, key: Strings) -> None:
    """Raise `IncompleteCorrection` unless each -C of a key is followed by its +C, and each +C preceded by its -C."""
    plain = ops.to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(plain >= Operation.CORRECT_FROM)
    if len(rows) == 0:
        return
    distinct, keys = np.unique(key_array(records.take(pa.array(rows)), key), return_inverse=True)
    steps = np.where(plain[rows] == Operation.CORRECT_FROM, 1, -1)
    by_key = np.argsort(keys, kind="stable")
    # The number of open -C: it must be zero at the end of each key, and never negative.
    waiting = np.cumsum(steps[by_key])
    ends = np.cumsum(np.bincount(keys, minlength=len(distinct))) - 1
    if waiting.min() >= 0 and not waiting[ends].any():
        return
    half = _first_half(keys, steps)
    raise IncompleteCorrection(
        where=f"record {rows[half.position] + 1}",
        text="a -C without a +C after it" if steps[half.position] > 0 else "a +C without a -C before it",
        whole=int(rows[half.whole]),
        may_come=half.may_come,
    )


class _Half(NamedTuple):
    """The first incomplete correction; `position` is its index among all -C and +C.

    The first `whole` of these are complete corrections. `may_come` is whether only +C are missing, which may follow.
    """

    position: int
    whole: int
    may_come: bool


def _first_half(keys: Indices, steps: Indices) -> _Half:
    waiting: dict[int, deque[int]] = {}
    whole = 0
    for index, (key, step) in enumerate(zip(keys.tolist(), steps.tolist(), strict=True)):
        if step > 0:
            waiting.setdefault(key, deque()).append(index)
        elif key not in waiting:
            # An earlier -C may lack its +C too.
            lacking = [indices[0] for key, indices in waiting.items() if steps[keys == key].sum() > 0]
            return _Half(min([index, *lacking]), whole, may_come=False)
        else:
            waiting[key].popleft()
            if not waiting[key]:
                del waiting[key]
        if not waiting:
            whole = index + 1
    return _Half(min(indices[0] for indices in waiting.values()), whole, may_come=True)


def _pair(ops: npt.NDArray[np.uint8]) -> Indices:
    """Return the indices that move each +C directly after its -C; the operations are already grouped by key."""
    froms = np.flatnonzero(ops == Operation.CORRECT_FROM)
    tos = np.flatnonzero(ops == Operation.CORRECT_TO)
    rank = 2 * np.arange(len(ops))
    # Each key has equally many of both, so the nth -C and the nth +C overall belong together.
    rank[tos] = 2 * froms + 1
    return np.argsort(rank, kind="stable")


def operations(table: pa.Table, name: str) -> pa.Array:
    """Return a column of operations as uint8; raises `InvalidInput` for a value that is not an operation."""
    try:
        ops = table.column(name).combine_chunks().cast(pa.uint8())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(where=f"column {name}", text=f"is not an operation: {error}") from error
    highest = pc.max(ops).as_py()
    if ops.null_count or (highest is not None and highest > max(Operation)):
        raise InvalidInput(where=f"column {name}", text="has operations other than 0, 1, 2 and 3")
    return ops


def _merge_upserts(key: Strings, new: pa.Table, history: History, vocab: DatasetVocabulary) -> MergeResult:
    name = vocab.operation_type_column
    if name in new.column_names:
        new = new.filter(pc.not_equal(operations(new, name), int(Operation.CORRECT_FROM)))
    keys = key_array(new, key)
    distinct, rows = last_of_each(keys)
    last = new.take(pa.array(np.sort(rows)))
    current = history.current(key, distinct)
    if name not in new.column_names:
        return _upsert(current, last, key, vocab)
    is_gone = pc.equal(operations(last, name), int(Operation.RETRACT))
    last = last.drop_columns([name])
    upserts = _upsert(current, last.filter(pc.invert(is_gone)), key, vocab)
    retracts = _retract(current, last.filter(is_gone), key, upserts)
    records = pa.concat_tables([upserts.records, retracts]).combine_chunks()
    ops = pa.repeat(pa.scalar(int(Operation.RETRACT), pa.uint8()), len(retracts))
    assert upserts.ops is not None
    ordered, ops = by_key(records, pa.concat_arrays([upserts.ops, ops]), key)
    return MergeResult(records=ordered, ops=ops)


def _upsert(current: pa.Table, last: pa.Table, key: Strings, vocab: DatasetVocabulary) -> MergeResult:
    return difference(
        current, last, key=key, compared=None, event_time=vocab.event_time_column, retracts_missing=False
    )


def _retract(current: pa.Table, gone: pa.Table, key: Strings, upserts: MergeResult) -> pa.Table:
    """Return the current records of retracted keys; unknown keys are ignored."""
    if current.num_columns == 0 or len(gone) == 0:
        return upserts.records.slice(0, 0)
    leaving = np.isin(key_array(current, key), key_array(gone, key))
    return alike(current.filter(pa.array(leaving)), upserts.records.schema)
