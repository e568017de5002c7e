"""UpsertStream: the last record of a key in a batch wins; operation 1 retracts the key.

Operation 2 has the values that its operation 3 replaces, which the dataset knows: it is left out.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odf_common.data.columns import Operation
from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.steps import MergeStrategyUpsertStream, Strings
from odf_ingest.history.keys import key_array, last_of_each
from odf_ingest.merge.changelog_stream import operations
from odf_ingest.merge.difference import alike, difference
from odf_ingest.merge.strategy import DEFAULT, History, MergeResult, by_key, key_columns, merge
from odf_ingest.source_settings import SourceSettings


@key_columns.register(MergeStrategyUpsertStream)
def _key(strategy: MergeStrategyUpsertStream) -> Strings:
    return strategy.primary_key


@merge.register(MergeStrategyUpsertStream)
def _(
    strategy: MergeStrategyUpsertStream,
    new: pa.Table,
    history: History,
    vocab: DatasetVocabulary,
    settings: SourceSettings = DEFAULT,
) -> MergeResult:
    key, name = strategy.primary_key, vocab.operation_type_column
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
