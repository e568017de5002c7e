"""Parquet: a file is one table; in Kafka each message is a complete Parquet file."""

from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from odf_common.data.slices import parquet_text_bytes
from odf_common.errors import InvalidInput, is_transient
from odf_common.metadata.events import ReadStepParquet
from odf_ingest.read.whole_table import (
    DECODING,
    MAX_DECODED_BYTES,
    decode_schema,
    decode_table,
    require_bounded,
)

_WIDTHS: Final = {"BOOLEAN": 0.125, "INT32": 4, "FLOAT": 4}  # bytes of a value; of the others 8 or more


@decode_table.register(ReadStepParquet)
def _decode(step: ReadStepParquet, source: pa.NativeFile) -> pa.Table:
    try:
        with pq.ParquetFile(source) as file:
            claimed = _claimed_bytes(file.metadata)
            require_bounded(claimed)
            size = max(claimed, parquet_text_bytes(source, MAX_DECODED_BYTES))
            require_bounded(size)
            with DECODING.admit(int(size)):
                table = file.read().replace_schema_metadata(None)
        table.validate(full=True)
        return table
    except (pa.ArrowException, OSError, ValueError) as error:
        if is_transient(error):
            raise
        raise InvalidInput(text=f"is not a Parquet file: {error}") from error


@decode_schema.register(ReadStepParquet)
def _columns(step: ReadStepParquet, source: pa.NativeFile) -> pa.Schema:
    try:
        return pq.read_schema(source)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(text=f"is not a Parquet file: {error}") from error


def _claimed_bytes(footer: pq.FileMetaData) -> float:
    """Return the size in bytes of the values that a footer claims; raises `InvalidInput` if it is impossible."""
    size = 0.0
    for group in range(footer.num_row_groups):
        row_group = footer.row_group(group)
        for column in map(row_group.column, range(row_group.num_columns)):
            if column.num_values < 0 or row_group.num_rows < 0:
                raise InvalidInput(
                    text="is not a Parquet file: its footer claims a negative number of values"
                )
            size += max(column.num_values, row_group.num_rows) * _WIDTHS.get(column.physical_type, 8)
    return size
