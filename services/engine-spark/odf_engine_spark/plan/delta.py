"""The new records of a stream, which is an input or the output of an earlier stage. Times are in microseconds."""

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
    """The new records of a stream in one request; the arrays have one number per record."""

    records: pa.Table
    operations: Numbers
    complete: Numbers
    """The watermark at which each record is complete."""
    late: Numbers | None = None
    """The watermark of the input before each record's block. Records that are older than it are late."""
    blocks: Numbers | None = None
    """The system time of each record's block."""
    name: str = ""
    """The name of an input, empty for the output of a stage."""
    vocab: DatasetVocabulary | None = None
    """The vocabulary of an input, None for the output of a stage."""
    numbers: Numbers | None = None
    """For rows computed from single records: the number of each row's record, counted across all streams."""

    def offset(self, record: int) -> int:
        """Return the offset of an input's record, given by its position."""
        assert self.vocab is not None
        return int(self.records.column(self.vocab.offset_column)[record].as_py())

    def describe(self, record: int) -> str:
        """Return the name of an input, and the offset and operation of its record at a position."""
        assert self.vocab is not None
        sign = _SIGNS[int(self.operations[record])]
        return f"{self.name}, {self.vocab.offset_column} {self.offset(record)} ({sign})"


def nothing(schema: pa.Schema) -> Delta:
    """Return a delta without records."""
    none = np.zeros(0, dtype=np.int64)
    return Delta(records=schema.empty_table(), operations=none, complete=none)
