"""New records of a stream, which is an input or the output of an earlier stage. Times are microseconds."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from odf_common.metadata.events import DatasetVocabulary
from odf_engine_spark.values.operations import Numbers

# Before and after all times. Numbers and not None, because times are compared as numpy arrays.
NEVER: Final = np.iinfo(np.int64).min
ALWAYS: Final = np.iinfo(np.int64).max
_SIGNS: Final = ("+A", "-R", "-C", "+C")  # of operations (RFC-015)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """The new part of a stream; one number per record."""

    records: pa.Table
    operations: Numbers
    complete: Numbers
    """When each record is complete."""
    late: Numbers | None = None
    """The input's watermark before the record's block; records older than it are late."""
    blocks: Numbers | None = None
    """The system time of each record's block."""
    name: str = ""
    """An input's name, empty for the output of a stage."""
    vocab: DatasetVocabulary | None = None
    """An input's vocabulary, None for the output of a stage."""
    numbers: Numbers | None = None
    """Of rows that were computed record by record: the number of each one's record across all streams."""

    def offset(self, record: int) -> int:
        """Return the offset of one of an input's records."""
        assert self.vocab is not None
        return int(self.records.column(self.vocab.offset_column)[record].as_py())

    def describe(self, record: int) -> str:
        """Return an input's name, and the offset and operation of one of its records."""
        assert self.vocab is not None
        sign = _SIGNS[int(self.operations[record])]
        return f"{self.name}, {self.vocab.offset_column} {self.offset(record)} ({sign})"


def nothing(schema: pa.Schema) -> Delta:
    """Return an empty delta."""
    none = np.zeros(0, dtype=np.int64)
    return Delta(records=schema.empty_table(), operations=none, complete=none)
