"""Infers the columns of a sample, with the types that records without a declared schema would get."""

from pathlib import Path

import pyarrow as pa
import pyarrow.types as kind

from odf_common.data.stored_types import stored_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepCsv
from odf_ingest.read import infer_batch, read_file
from odf_ingest.read.input_format import BY_NAME, InputFormat


def sampled(file: Path, input_format: str) -> pa.Table:
    """Return all records of a file in the types in which they would be stored; columns without values are strings.

    Csv has a header line. Raises `InvalidInput` for an unknown format, or the first malformed record.
    """
    name = InputFormat.parse(input_format).name
    if name is None:
        raise InvalidInput(text="a sample needs the name of its format")
    step = ReadStepCsv(header=True, infer_schema=True) if name == "csv" else BY_NAME[name]()
    table = read_file(step, file, infer_batch(step, file.read_bytes(), None))
    if table.num_columns == 0:
        raise InvalidInput(text="the sample has no records")
    return table.cast(stored_schema(pa.schema([_typed(column) for column in table.schema])))


def _typed(column: pa.Field) -> pa.Field:
    return column.with_type(pa.string()) if kind.is_null(column.type) else column
