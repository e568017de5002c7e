"""What a merge strategy is: functions of its step, one variant per module (spec: Merge Strategies; wire-facts §5.3)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Final, Protocol

import pyarrow as pa

from odf_common.metadata.steps import MergeStrategy, Strings
from odf_common.metadata.vocabulary import DatasetVocabulary
from odf_ingest.errors import UnsupportedStep
from odf_ingest.history.key_index import KeyIndex, Keys
from odf_ingest.source_settings import SourceSettings

DEFAULT: Final = SourceSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Records in the order of their offsets; `ops` has one operation each, None: all are appended.

    `keys` has the keys of all records, sorted, each once, by the key columns that the strategy has looked at.
    """

    records: pa.Table
    ops: pa.Array | None = None
    keys: Mapping[Strings, Keys] = field(default_factory=dict)


class History(Protocol):
    """What the dataset holds before the merge. Records without a value in some key column are left out."""

    def seen(self, key: Strings) -> KeyIndex:
        """Return all keys that were ever appended."""

    def current(self, key: Strings, keys: Keys | None = None) -> pa.Table:
        """Return the last record of each key, or of those among `keys` (sorted, distinct), unless it was retracted.

        The columns are event time and data; a table without any columns has no records.
        """


@singledispatch
def merge(
    strategy: MergeStrategy,
    new: pa.Table,
    history: History,
    vocab: DatasetVocabulary,
    settings: SourceSettings = DEFAULT,
) -> Merged:
    """Return what has to be appended so that the dataset reflects `new`, which has an event time column.

    `settings` limit what one snapshot may retract. Columns have the types that are stored, as in the history.
    """
    raise UnsupportedStep(step=type(strategy).__name__)


@singledispatch
def key_columns(strategy: MergeStrategy) -> Strings:
    """Return the columns that must have a value in every record."""
    return ()


@singledispatch
def takes_whole_batches(strategy: MergeStrategy) -> bool:
    """Tell whether each batch is the whole state of the source."""
    return False


@singledispatch
def operation_faults(strategy: MergeStrategy, new: pa.Table, vocab: DatasetVocabulary) -> Mapping[int, str]:
    """Return which rows carry no operation where the strategy takes it from them, and why."""
    return {}
