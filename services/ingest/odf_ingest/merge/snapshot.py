"""Snapshot: each batch is the whole state of the source; the difference from the last one is recorded."""

import pyarrow as pa
import pyarrow.compute as pc

from odf_common.data.columns import Operation
from odf_common.errors import InvalidInput
from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.steps import MergeStrategySnapshot, Strings
from odf_ingest.errors import SnapshotRetractsTooMuch
from odf_ingest.merge.difference import begin_sorting, difference
from odf_ingest.merge.strategy import DEFAULT, History, MergeResult, key_columns, merge, takes_whole_batches
from odf_ingest.source_settings import EmptySnapshot, SourceSettings


@key_columns.register(MergeStrategySnapshot)
def _key(strategy: MergeStrategySnapshot) -> Strings:
    return strategy.primary_key


@takes_whole_batches.register(MergeStrategySnapshot)
def _takes_whole(strategy: MergeStrategySnapshot) -> bool:
    return True


@merge.register(MergeStrategySnapshot)
def _(
    strategy: MergeStrategySnapshot,
    new: pa.Table,
    history: History,
    vocab: DatasetVocabulary,
    settings: SourceSettings = DEFAULT,
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

    A few rows always may be, as a small list may change as a whole; but not if the snapshot has lost more than that
    share of its rows, as a truncated file has.
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
