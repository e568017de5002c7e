"""The common part of merge strategies: their interface and the orders of their records (spec: Merge Strategies).

The interface are functions of the step, with one variant per module. Records are numbered by event time, or by key
(wire-facts §5.3).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.steps import MergeStrategy, Strings
from odf_ingest.errors import UnsupportedStep
from odf_ingest.history.equality import comparable
from odf_ingest.history.keys import Keys
from odf_ingest.source_settings import SourceSettings

DEFAULT: Final = SourceSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """Records in offset order; `ops` has one operation per record, None: all are appends.

    `keys`: the sorted, distinct keys of all records, by key columns, as far as the strategy computed them.
    """

    records: pa.Table
    ops: pa.Array | None = None
    keys: Mapping[Strings, Keys] = field(default_factory=dict)


class History(Protocol):
    """The dataset's content before the merge. Records with a null key column are left out."""

    def fresh(self, key: Strings, keys: Keys) -> tuple[npt.NDArray[np.int64], Keys]:
        """Return the index of the first of `keys` that was never appended, ascending; and those keys, sorted."""

    def current(self, key: Strings, keys: Keys | None = None) -> pa.Table:
        """Return the last record of each key, or of those among `keys` (sorted, distinct), unless it was retracted.

        The columns are event time and data; without records the table has no columns.
        """


@singledispatch
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
    raise UnsupportedStep(step=type(strategy).__name__)


@singledispatch
def key_columns(strategy: MergeStrategy) -> Strings:
    """Return the columns that must have a value in every record."""
    return ()


@singledispatch
def takes_whole_batches(strategy: MergeStrategy) -> bool:
    """Return whether each batch is the whole state of the source."""
    return False


@singledispatch
def operation_faults(strategy: MergeStrategy, new: pa.Table, vocab: DatasetVocabulary) -> Mapping[int, str]:
    """Return the rows that lack a valid operation, if the strategy needs one, with the reason."""
    return {}


def by_event_time(records: pa.Table, column: str) -> pa.Table:
    """Return the records ordered by event time, nulls first, stably; unchanged if already ordered."""
    timestamps = records.column(column).combine_chunks()
    if timestamps.null_count == 0:
        width = pa.int32() if timestamps.type == pa.date32() else pa.int64()
        values = timestamps.view(width).to_numpy(zero_copy_only=True)
        if len(values) < 2 or bool(np.all(values[1:] >= values[:-1])):
            return records
        return records.take(pa.array(np.argsort(values, kind="stable")))
    order = pc.sort_indices(timestamps, sort_keys=[("", "ascending", "at_start")])
    return records.take(order)


def by_key(records: pa.Table, ops: pa.Array, key: Sequence[str]) -> tuple[pa.Table, pa.Array]:
    """Return records and operations ordered by key, then operation, stably."""
    order = key_order(records, key, ops)
    return records.take(order), ops.take(order)


def key_order(records: pa.Table, key: Sequence[str], *last: pa.Array) -> pa.Array:
    """Return the indices of records ordered by key, then by the columns `last`, stably."""
    columns = [*(comparable(records.column(name).combine_chunks()) for name in key), *last]
    names = [str(number) for number in range(len(columns))]
    table = pa.Table.from_arrays(columns, names=names)
    return pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
