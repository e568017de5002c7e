"""Infers the columns of a sample, and how far out of order its times are.

Types are those that records without a declared schema would get. Times with fractions of a second are times here also
in JSON, since people check the manifest that is written.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.stored_types import stored_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepCsv
from odf_ingest.commit.watermark import NONE_LATE, Lateness
from odf_ingest.prepare.event_time import event_times
from odf_ingest.read import infer_batch, read_file
from odf_ingest.read.input_format import BY_NAME, InputFormat
from odf_ingest.read.types.times import to_timestamps

_TIME: Final = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:?\d\d)?$"
_UNITS: Final = (("ms", r"\.\d{4}"), ("us", r"\.\d{7}"))  # each with the fractions that it does not hold


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
    table = table.cast(stored_schema(pa.schema([_typed(column) for column in table.schema])))
    return _with_times(table) if name.endswith("json") else table


def out_of_order(table: pa.Table, runs: Sequence[int] = ()) -> Mapping[str, Lateness]:
    """Return by column of times how many records have an earlier one than a record before them in their run.

    `runs`: numbers of records, one run after the other; none: all records are one.
    """
    lengths = runs or [len(table)]
    if sum(lengths) != len(table):
        raise InvalidInput(text=f"the runs have {sum(lengths)} records, the sample {len(table)}")
    lateness = {}
    for column in table.schema:
        if kind.is_timestamp(column.type) or kind.is_date(column.type):
            times = event_times(table, column.name)
            late, start = NONE_LATE, 0
            for length in lengths:
                late = late.plus(_behind(times.slice(start, length)))
                start += length
            if late.count:
                lateness[column.name] = late
    return lateness


def _behind(times: pa.ChunkedArray) -> Lateness:
    """Return how many times (ms) are earlier than one before them, and by how much at most."""
    values = times.drop_null().to_numpy()
    if len(values) == 0:
        return NONE_LATE
    behind = np.maximum.accumulate(values) - values
    return Lateness(count=int(np.count_nonzero(behind)), most=int(behind.max()))


def _with_times(table: pa.Table) -> pa.Table:
    """Return the table with timestamps instead of strings that are all times."""
    for index, column in enumerate(table.schema):
        if kind.is_string(column.type):
            texts = table.column(index).combine_chunks()
            if len(texts) > texts.null_count and pc.all(pc.match_substring_regex(texts, _TIME)).as_py():
                table = _set_times(table, index, texts)
    return table


def _set_times(table: pa.Table, index: int, texts: pa.Array) -> pa.Table:
    finer = (unit for unit, more in _UNITS if not pc.any(pc.match_substring_regex(texts, more)).as_py())
    time_type = pa.timestamp(next(finer, "ns"), "UTC")
    try:
        times = to_timestamps(texts, None, time_type).cast(time_type)
    except InvalidInput:  # such as a 30th of February
        return table
    return table.set_column(index, table.schema.field(index).with_type(time_type), times)


def _typed(column: pa.Field) -> pa.Field:
    return column.with_type(pa.string()) if kind.is_null(column.type) else column
