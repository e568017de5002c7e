"""The interface of a format: functions that each format's module implements for its read step (spec: ReadStep)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from pathlib import Path

import pyarrow as pa

from odf_common.metadata.events import ReadStep
from odf_ingest.errors import UnsupportedStep


@singledispatch
def read_file(step: ReadStep, file: Path, schema: pa.Schema | None) -> pa.Table:
    """Return all records of a file, in order. Errors have the line if the format has lines."""
    raise UnsupportedStep(step=type(step).__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecords:
    """The records of a file, which can be read as messages with `step`."""

    step: ReadStep
    values: Sequence[bytes]
    places: Sequence[str]
    """The location of each record in the file for display, such as its line."""
    header: bytes = b""
    """The header line that precedes the record in each message."""

    def messages(self, start: int, stop: int) -> list[bytes]:
        """Return the messages with indices from `start` up to `stop`."""
        return [self.header + value for value in self.values[start:stop]]


@singledispatch
def split_file(step: ReadStep, content: bytes) -> FileRecords | None:
    """Return the records of a file; None for formats whose records cannot be read as messages.

    Raises `InvalidInput` if the boundaries of records cannot be found.
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
    """Return all records of one message that is a batch of its own."""
    raise UnsupportedStep(step=type(step).__name__)


@singledispatch
def suspects(step: ReadStep, values: Sequence[bytes], schema: pa.Schema | None) -> Mapping[int, str | None]:
    """Return by index the values that are probably bad, if they can be found cheaply.

    If there is a reason, the value is certainly bad: `read_records` of the value alone raises this error.
    """
    return {}


@singledispatch
def infer_records(step: ReadStep, values: Sequence[bytes], base: pa.Schema | None) -> pa.Schema:
    """Infer the columns of messages without a declared schema: those of `base`, then new ones, in stored types.

    If records have different kinds of values in a column, the most frequent kind decides; other records are rejected
    when they are read. A column without values is left out. Messages that cannot be read are ignored.
    """
    raise UnsupportedStep(step=type(step).__name__)


@singledispatch
def infer_batch(step: ReadStep, value: bytes, base: pa.Schema | None) -> pa.Schema | None:
    """Infer the columns of one message or file likewise; None if its format has types and there is no `base`."""
    return base
