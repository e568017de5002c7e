"""ChangelogStream: records carry their own operation; ordered by key, then operation."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odf_common.data.columns import Operation, check_corrections
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import MergeStrategyChangelogStream, MergeStrategyUpsertStream, Strings
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_ingest.merge import History, Merged, key_columns, merge, operation_faults
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
    check_corrections(ops)
    return Merged(records=ordered, ops=ops)


@operation_faults.register(MergeStrategyChangelogStream)
@operation_faults.register(MergeStrategyUpsertStream)
def _faults(
    strategy: MergeStrategyChangelogStream | MergeStrategyUpsertStream,
    new: pa.Table,
    vocab: DatasetVocabulary,
) -> Mapping[int, str]:
    name = vocab.operation_type_column
    if name not in new.column_names or not pa.types.is_integer(new.column(name).type):
        return {}
    known = pa.array([int(op) for op in Operation]).cast(new.column(name).type)
    wrong = np.flatnonzero(~pc.is_in(new.column(name), value_set=known).to_numpy())
    return {int(row): f"has no operation in {name}" for row in wrong}


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
