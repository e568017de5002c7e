"""The records of a request: restricted to its offsets and concatenated to one table per input, before Spark reads them.

Spark would order files by size and split them by the number of cores; a table in Arrow has one order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from odf_common.data.columns import check_corrections
from odf_common.data.slices import read_slice, slice_schema
from odf_common.errors import InvalidInput
from odf_common.metadata.engine_messages import TransformRequestInput, Watermark
from odf_common.metadata.events import DatasetVocabulary, OffsetInterval
from odf_common.ports.engine import PlannedInput
from odf_engine_spark.values.spark_types import spark_schema_of
from odf_engine_spark.values.spark_values import in_spark


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """The new records of an input in Spark's types, ascending by offset, and the watermarks of its new blocks."""

    name: str
    schema: pa.Schema
    vocab: DatasetVocabulary
    records: pa.Table
    watermarks: tuple[Watermark, ...]

    @property
    def planned(self) -> PlannedInput:
        """Return the part of an input that a query is prepared with: name, schema and vocabulary."""
        return PlannedInput(name=self.name, schema=self.schema, vocab=self.vocab)

    @property
    def operations(self) -> pa.ChunkedArray:
        """Return the operation of each record."""
        return self.records.column(self.vocab.operation_type_column)


def read_input(request: TransformRequestInput) -> Input:
    """Return an input of a request; raises `InvalidInput` unless its files match the request."""
    schema = slice_schema(Path(request.schema_file))
    _check_system_columns(schema, request)
    target = spark_schema_of(schema)
    tables = [
        in_spark(_slice(Path(file), request), target, request.dataset_alias) for file in request.data_paths
    ]
    records = pa.concat_tables(tables) if tables else target.empty_table()
    return Input(
        name=request.query_alias,
        schema=schema,
        vocab=request.vocab,
        records=_cut(records, request.offset_interval, request),
        watermarks=request.explicit_watermarks,
    )


def _slice(file: Path, request: TransformRequestInput) -> pa.Table:
    """Return the records of a slice; raises `InvalidInput` if a correction's two records are not in the same slice.

    Otherwise a request could contain only one of them.
    """
    table = read_slice(file)
    try:
        check_corrections(table.column(request.vocab.operation_type_column))
    except InvalidInput as error:
        raise InvalidInput(text=str(error), where=f"{request.dataset_alias}, {file.name}") from error
    return table


def _check_system_columns(schema: pa.Schema, request: TransformRequestInput) -> None:
    vocab = request.vocab
    for name in (
        vocab.offset_column,
        vocab.operation_type_column,
        vocab.system_time_column,
        vocab.event_time_column,
    ):
        if schema.get_field_index(name) < 0:
            raise InvalidInput(text=f"{request.dataset_alias} has no system column {name}")


def _cut(records: pa.Table, interval: OffsetInterval | None, request: TransformRequestInput) -> pa.Table:
    if interval is None:
        return records.slice(0, 0)
    offsets = records.column(request.vocab.offset_column)
    inside = pc.and_(pc.greater_equal(offsets, interval.start), pc.less_equal(offsets, interval.end))
    if not pc.all(inside, min_count=0).as_py():
        records = records.filter(inside)
    if len(records) != interval.records:
        text = f"{len(records)} records for offsets {interval.start}–{interval.end}"
        raise InvalidInput(text=text, where=request.dataset_alias)
    return records.combine_chunks()


def min_watermark(watermarks: Sequence[int | None]) -> int | None:
    """Return the earliest watermark in nanoseconds; None if any input has none."""
    times = [watermark for watermark in watermarks if watermark is not None]
    return min(times) if times and len(times) == len(watermarks) else None
