"""What a format is: functions of its read step, one variant per module (spec: ReadStep)."""

from collections.abc import Mapping, Sequence
from functools import singledispatch
from pathlib import Path

import pyarrow as pa

from odf_common.metadata.steps import ReadStep
from odf_ingest.errors import UnsupportedStep


@singledispatch
def read_file(step: ReadStep, file: Path, schema: pa.Schema | None) -> pa.Table:
    """Return all records of a file, in its order; errors name the line where there are lines."""
    raise UnsupportedStep(step=type(step).__name__)


@singledispatch
def read_records(step: ReadStep, values: Sequence[bytes], schema: pa.Schema | None) -> pa.Table:
    """Return one record for each value; raises `InvalidInput` if any of them is not exactly one."""
    raise UnsupportedStep(step=type(step).__name__)


@singledispatch
def read_inferred(step: ReadStep, values: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    """Return one record for each value in columns from `infer_records`, of which a record may lack some."""
    return read_records(step, values, schema)


@singledispatch
def read_batch(step: ReadStep, value: bytes, schema: pa.Schema | None) -> pa.Table:
    """Return all records of one message that is a whole batch."""
    raise UnsupportedStep(step=type(step).__name__)


@singledispatch
def suspects(step: ReadStep, values: Sequence[bytes], schema: pa.Schema | None) -> Mapping[int, str | None]:
    """Return which values are probably no records, as far as that is cheap to find.

    With a reason it is certain, and is the reason for which `read_records` refuses the value alone.
    """
    return {}


@singledispatch
def infer_records(step: ReadStep, values: Sequence[bytes], known: pa.Schema | None) -> pa.Schema:
    """Return the columns of messages without a declared schema: those `known`, then new ones, in their stored types.

    Where records disagree, the kind of value that most of them have decides; those of other kinds are rejected when
    they are read. A column without any value is left out. Never raises for messages that cannot be read.
    """
    raise UnsupportedStep(step=type(step).__name__)


@singledispatch
def infer_batch(step: ReadStep, value: bytes, known: pa.Schema | None) -> pa.Schema | None:
    """Return the columns of a whole batch likewise, None if the batch carries its own types."""
    return known
