"""Snapshot: each batch is the whole state of the source; what differs from the last one is recorded."""

import pyarrow as pa

from odf_common.metadata.steps import MergeStrategySnapshot, Strings
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_ingest.merge import History, Merged, key_columns, merge, takes_whole_batches
from odf_ingest.merge.difference import difference


@key_columns.register(MergeStrategySnapshot)
def _key(strategy: MergeStrategySnapshot) -> Strings:
    return strategy.primary_key


@takes_whole_batches.register(MergeStrategySnapshot)
def _whole(strategy: MergeStrategySnapshot) -> bool:
    return True


@merge.register(MergeStrategySnapshot)
def _(strategy: MergeStrategySnapshot, new: pa.Table, history: History, vocab: DatasetVocabulary) -> Merged:
    key = strategy.primary_key
    return difference(
        history.current(key),
        new,
        key=key,
        compared=strategy.compare_columns,
        event_time=vocab.event_time_column,
        retracts_missing=True,
    )
