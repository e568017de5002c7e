"""Merge strategies: new records and a dataset's content → records to append (spec: Merge Strategies; wire-facts §5.3).

One module per strategy.
"""

from odf_ingest.merge import append, changelog_stream, ledger, snapshot, upsert_stream
from odf_ingest.merge.difference import MAX_PLACES, RepeatedKey
from odf_ingest.merge.strategy import (
    DEFAULT,
    History,
    MergeResult,
    key_columns,
    merge,
    operation_faults,
    takes_whole_batches,
)

__all__ = [
    "DEFAULT",
    "MAX_PLACES",
    "History",
    "MergeResult",
    "RepeatedKey",
    "append",
    "changelog_stream",
    "key_columns",
    "ledger",
    "merge",
    "operation_faults",
    "snapshot",
    "takes_whole_batches",
    "upsert_stream",
]
