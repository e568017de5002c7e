"""ChangelogStream: records carry their own operation; ordered by key, then operation."""

import pyarrow as pa
import pyarrow.compute as pc

from odf_common.data.columns import Operation
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import MergeStrategyChangelogStream, Strings
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_ingest.merge import History, Merged, key_columns, merge
from odf_ingest.merge.ordering import by_key


@key_columns.register(MergeStrategyChangelogStream)
def _key(strategy: MergeStrategyChangelogStream) -> Strings:
    return strategy.primary_key


@merge.register(MergeStrategyChangelogStream)
def _(
    strategy: MergeStrategyChangelogStream, new: pa.Table, history: History, vocab: DatasetVocabulary
) -> Merged:
    if vocab.operation_type_column not in new.column_names:
        raise InvalidInput(where=f"column {vocab.operation_type_column}", text="is missing")
    ops = operations(new, vocab.operation_type_column)
    records = new.drop_columns([vocab.operation_type_column]).combine_chunks()
    ordered, ops = by_key(records, ops, strategy.primary_key)
    return Merged(records=ordered, ops=ops)


def operations(table: pa.Table, name: str) -> pa.Array:
    """Return a column of operations as uint8; raises `InvalidInput` for any that is not one."""
    try:
        ops = table.column(name).combine_chunks().cast(pa.uint8())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(where=f"column {name}", text=f"is no operation: {error}") from error
    highest = pc.max(ops).as_py()
    if ops.null_count or (highest is not None and highest > max(Operation)):
        raise InvalidInput(where=f"column {name}", text="has operations other than 0, 1, 2 and 3")
    return ops
