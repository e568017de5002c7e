"""Ledger: records whose key was seen before, in the dataset or earlier in the batch, are dropped."""

import pyarrow as pa

from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.steps import MergeStrategyLedger, Strings
from odf_ingest.history.keys import key_array
from odf_ingest.merge.strategy import DEFAULT, History, MergeResult, by_event_time, key_columns, merge
from odf_ingest.source_settings import SourceSettings


@key_columns.register(MergeStrategyLedger)
def _key(strategy: MergeStrategyLedger) -> Strings:
    return strategy.primary_key


@merge.register(MergeStrategyLedger)
def _(
    strategy: MergeStrategyLedger,
    new: pa.Table,
    history: History,
    vocab: DatasetVocabulary,
    settings: SourceSettings = DEFAULT,
) -> MergeResult:
    keys = key_array(new, strategy.primary_key)
    indices, fresh = history.fresh(strategy.primary_key, keys)
    records = new if len(indices) == len(new) else new.take(pa.array(indices))
    return MergeResult(
        records=by_event_time(records, vocab.event_time_column), keys={strategy.primary_key: fresh}
    )
