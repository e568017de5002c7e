"""Append: every record is new; ordered by event time."""

import pyarrow as pa

from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.steps import MergeStrategyAppend
from odf_ingest.merge.strategy import DEFAULT, History, MergeResult, by_event_time, merge
from odf_ingest.source_settings import SourceSettings


@merge.register(MergeStrategyAppend)
def _(
    strategy: MergeStrategyAppend,
    new: pa.Table,
    history: History,
    vocab: DatasetVocabulary,
    settings: SourceSettings = DEFAULT,
) -> MergeResult:
    return MergeResult(records=by_event_time(new, vocab.event_time_column))
