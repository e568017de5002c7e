"""Parquet: a whole file; in Kafka each message is a file."""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as kind

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepParquet
from odf_ingest.read.format import read_batch, read_file
from odf_ingest.read.types.years import with_known_years

MAX_DECODED_BYTES: Final = 4 * 1024**3  # of one file or message, by what its footer claims
_WIDTHS: Final = {"BOOLEAN": 0.125, "INT32": 4, "FLOAT": 4}  # bytes of a value; of the others 8 or more


@read_file.register(ReadStepParquet)
def _file(step: ReadStepParquet, file: Path, schema: pa.Schema | None) -> pa.Table:
    with pa.memory_map(str(file)) as source:
        return _read(source, schema)


@read_batch.register(ReadStepParquet)
def _batch(step: ReadStepParquet, value: bytes, schema: pa.Schema | None) -> pa.Table:
    return _read(pa.BufferReader(value), schema)


def _read(source: pa.NativeFile, schema: pa.Schema | None) -> pa.Table:
    try:
        with pq.ParquetFile(source) as file:
            _require_bounded(file.metadata)
            table = file.read().replace_schema_metadata(None)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(text=f"is not a Parquet file: {error}") from error
    return with_columns(table, schema, "the Parquet file")


def _require_bounded(footer: pq.FileMetaData) -> None:
    """Raise `InvalidInput` if the values that the footer claims need too much memory."""
    size = 0.0
    for group in range(footer.num_row_groups):
        row_group = footer.row_group(group)
        for column in map(row_group.column, range(row_group.num_columns)):
            if column.num_values < 0 or row_group.num_rows < 0:
                raise InvalidInput(
                    text="is not a Parquet file: its footer claims a negative number of values"
                )
            size += max(column.num_values, row_group.num_rows) * _WIDTHS.get(column.physical_type, 8)
    if size > MAX_DECODED_BYTES:
        text = (
            f"the Parquet file decodes to {size / 1024**3:.1f} GiB; up to {MAX_DECODED_BYTES >> 30} are read"
        )
        raise InvalidInput(text=f"{text}: split it")


def with_columns(table: pa.Table, schema: pa.Schema | None, what: str) -> pa.Table:
    """Return the columns of a schema, with its types, or all that have a type; `what` names the data in errors."""
    if schema is None:
        # A column with only nulls has no type: it is left out until it has a value.
        columns = [column.name for column in table.schema if not kind.is_null(column.type)]
        return with_known_years(_without_views(table.select(columns)))
    missing = [column for column in schema if column.name not in table.column_names]
    for column in missing:
        if not column.nullable or len(missing) == len(schema):
            raise InvalidInput(where=f"column {column.name}", text=f"is missing in {what}")
        table = table.append_column(column, pa.nulls(len(table), column.type))
    try:
        return with_known_years(table.select(schema.names).cast(schema))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise InvalidInput(text=f"{what} has other types: {error}") from error


def _without_views(table: pa.Table) -> pa.Table:
    """Return the same values in layouts whose rows Arrow can select."""
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return table.cast(
        pa.schema([column.with_type(plain.get(column.type, column.type)) for column in table.schema])
    )
