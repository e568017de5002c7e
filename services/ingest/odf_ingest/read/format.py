"""The interface of a format: functions of its read step, one variant per module (spec: ReadStep)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path

import pyarrow as pa

from odf_common.metadata.events import ReadStep
from odf_ingest.errors import UnsupportedStep


@singledispatch
def read_file(step: ReadStep, file: Path, schema: pa.Schema | None) -> pa.Table:
    """Return all records of a file, in order; errors have the line, if the format has lines."""
    raise UnsupportedStep(step=type(step).__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecords:
    """The records of a file, which `step` reads as messages."""

    step: ReadStep
    values: Sequence[bytes]
    places: Sequence[str]
    """The label of each record in the file, for people."""
    header: bytes = b""
    """Precedes each record in its message."""

    def messages(self, start: int, stop: int) -> list[bytes]:
        """Return the messages with indices from `start` up to `stop`."""
        return [self.header + value for value in self.values[start:stop]]


@singledispatch
def split_file(step: ReadStep, content: bytes) -> FileRecords | None:
    """Return the records of a file; None for formats whose records are not messages of their own.

    Raises `InvalidInput` if it cannot be found where records begin and end.
    """
    return None


@singledispatch
def read_records(step: ReadStep, values: Sequence[bytes], schema: pa.Schema | None) -> pa.Table:
    """Return one record per value; raises `InvalidInput` if a value is not exactly one record."""
    raise UnsupportedStep(step=type(step).__name__)


@singledispatch
def read_inferred(step: ReadStep, values: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """Return one record per value with columns from `infer_records`, some of which may be missing."""
    return read_records(step, values, schema)


@singledispatch
def read_batch(step: ReadStep, value: bytes, schema: pa.Schema | None) -> pa.Table:
    """Return all records of one message that is a whole batch."""
    raise UnsupportedStep(step=type(step).__name__)


@singledispatch
def suspects(step: ReadStep, values: Sequence[bytes], schema: pa.Schema | None) -> Mapping[int, str | None]:
    """Return the values that are probably not records, if that is cheap to find.

    With a reason it is certain: `read_records` refuses the value alone for this reason.
    """
    return {}


@singledispatch
def infer_records(step: ReadStep, values: Sequence[bytes], base: pa.Schema | None) -> pa.Schema:
    """Return the columns of messages without a declared schema: those of `base`, then new ones, in stored types.

    If records disagree, the most frequent kind of value decides; records with other kinds are rejected when they are
    read. A column without values is left out. Never raises for messages that cannot be read.
    """
    raise UnsupportedStep(step=type(step).__name__)


@singledispatch
def infer_batch(step: ReadStep, value: bytes, base: pa.Schema | None) -> pa.Schema | None:
    """Return the columns of a whole batch likewise; None if the batch has its own types."""
    return base
