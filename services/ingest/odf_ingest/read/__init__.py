"""Reading: bytes in a source's format → a table of its columns (spec: ReadStep). One file a format.

`schema` has the columns and types that are wanted, None: they are found in the data. Faults are `InvalidInput`.
"""

import importlib
import pkgutil
from collections.abc import Sequence
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
def read_batch(step: ReadStep, value: bytes, schema: pa.Schema | None) -> pa.Table:
    """Return all records of one message that is a whole batch."""
    raise UnsupportedStep(step=type(step).__name__)


@singledispatch
def obvious_faults(step: ReadStep, values: Sequence[bytes]) -> dict[int, str]:
    """Return which values cannot be records and why, as far as that is told cheaply one by one."""
    return {}


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
