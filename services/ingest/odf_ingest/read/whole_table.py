"""Formats in which each file or message is one table: Parquet and Arrow IPC, whose step is derived from Parquet's."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.adapters.memory import DecodeBudget, max_decoded_bytes
from odf_common.data.columns import stored_type
from odf_common.data.slices import row_width
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStepParquet
from odf_ingest.errors import UnsupportedStep
from odf_ingest.read.format import infer_batch, read_batch, read_file
from odf_ingest.read.types.columns import extend_columns, unconvertible, unconvertible_values
from odf_ingest.read.types.conversions import convert_column
from odf_ingest.read.types.kinds import TimeFormats, ValueKind
from odf_ingest.read.types.numbers import has_wide_decimals
from odf_ingest.read.types.type_names import type_name

PLAIN_LAYOUTS: Final[Mapping[pa.DataType, pa.DataType]] = {
    pa.string_view(): pa.large_string(),
    pa.binary_view(): pa.large_binary(),
}
MAX_DECODED_BYTES: Final = max_decoded_bytes(4 << 30)  # of one file or message
# Pushes of many datasets are read at the same time: all tables of this process, with those not yet committed.
DECODING: Final = DecodeBudget(4 * MAX_DECODED_BYTES)
_DECIMAL: Final = re.compile(r"DECIMAL\((?:39|[4-9]\d), (\d+)\)")
_FORMATS: Final = TimeFormats(strings=ValueKind.TEXT)


def require_bounded(size: float) -> None:
    """Raise `InvalidInput` if the values of a table, `size` bytes, are larger than one table may be."""
    if size > MAX_DECODED_BYTES:
        text = (
            f"it decodes to {size / 1024**2:,.0f} MiB; up to {MAX_DECODED_BYTES / 1024**2:,.0f} are read here"
        )
        raise InvalidInput(text=f"{text}: split it")


@singledispatch
def decode_table(step: ReadStepParquet, source: pa.NativeFile) -> pa.Table:
    """Return the table in `source`, unconverted but validated; raises `InvalidInput` unless it is a table."""
    raise UnsupportedStep(step=type(step).__name__)


@singledispatch
def decode_schema(step: ReadStepParquet, source: pa.NativeFile) -> pa.Schema:
    """Return the columns of the table in `source`; raises `InvalidInput` unless it is a table."""
    raise UnsupportedStep(step=type(step).__name__)


@infer_batch.register(ReadStepParquet)
def _infer(step: ReadStepParquet, value: bytes, base: pa.Schema | None) -> pa.Schema | None:
    if base is None:
        return None
    schema = decode_schema(step, pa.BufferReader(value))
    require_distinct(schema.names)
    _require_narrow(column for column in schema if column.name not in base.names)
    return extend_columns(base, schema)


@read_file.register(ReadStepParquet)
def _file(step: ReadStepParquet, file: Path, schema: pa.Schema | None) -> pa.Table:
    with pa.memory_map(str(file)) as source:
        return with_columns(decode_table(step, source), schema)


@read_batch.register(ReadStepParquet)
def _batch(step: ReadStepParquet, value: bytes, schema: pa.Schema | None) -> pa.Table:
    return with_columns(decode_table(step, pa.BufferReader(value)), schema)


def with_columns(table: pa.Table, schema: pa.Schema | None) -> pa.Table:
    """Return the table with the columns and types of a schema. Without a schema, return all columns that have a type.

    Raises `InvalidInput` with the first row of the first column that cannot be converted.
    """
    table, schema = _choose(table, schema)
    columns = [_convert(values, column) for values, column in zip(table.columns, schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def refused_rows(table: pa.Table, schema: pa.Schema | None, most: int) -> dict[int, str]:
    """Return the rows that `with_columns` refuses, with the reasons.

    At most `most` rows per column lack a required value, and at most `most` cannot be converted. Raises `InvalidInput`
    for a missing column.
    """
    table, schema = _choose(table, schema)
    faults = unconvertible(table, schema, _FORMATS, most)
    for values, column in zip(table.columns, schema, strict=True):
        faults = _nulls(values, column, most) | faults
    return faults


def _convert(values: pa.ChunkedArray, target: pa.Field) -> pa.ChunkedArray:
    faults = _nulls(values, target, 1)
    if not faults:
        try:
            return convert_column(values, target, _FORMATS)
        except InvalidInput:
            faults = dict(islice(unconvertible_values(values, target, _FORMATS), 1))
            if not faults:
                raise
    ((row, why),) = faults.items()
    raise InvalidInput(where=row_label(row), text=why)


def row_label(row: int) -> str:
    """Return the location of a row of a table for display; rows are numbered from 1."""
    return f"row {row + 1}"


def _nulls(values: pa.ChunkedArray, target: pa.Field, most: int) -> dict[int, str]:
    """Return up to `most` rows that lack a required value, with the reason."""
    if target.nullable or not values.null_count:
        return {}
    rows = np.flatnonzero(pc.is_null(values).to_numpy())[:most]
    why = f"column {target.name}: null is not allowed; a value of {type_name(target.type)} is required"
    return dict.fromkeys(map(int, rows), why)


def _choose(table: pa.Table, schema: pa.Schema | None) -> tuple[pa.Table, pa.Schema]:
    """Return the columns of a schema from a table, unconverted, and the schema.

    Missing optional columns are null. Without a schema, return all columns that have a type, and their schema.
    """
    if schema is None:
        # A column with only nulls has no type: it is left out until it has a value.
        require_distinct(table.column_names)
        _require_narrow(table.schema)
        schema = pa.schema(
            [
                column.with_type(_own_type(column.type))
                for column in table.schema
                if not kind.is_null(column.type)
            ]
        )
    # Columns without a type, or that are missing, take no memory before they are filled with nulls.
    require_bounded(len(table) * sum(row_width(column.type) for column in schema))
    require_distinct([name for name in table.column_names if name in schema.names])
    missing = [column for column in schema if column.name not in table.column_names]
    for column in missing:
        lower = column.name.lower()
        other = next((name for name in table.column_names if name.lower() == lower), None)
        if other is not None or not column.nullable or len(missing) == len(schema):
            which = "" if other is None else f"; it has {other}: case matters"
            raise InvalidInput(where=f"column {column.name}", text=f"is missing{which}")
        table = table.append_column(column, pa.nulls(len(table), column.type))
    return table.select(schema.names), schema


def _require_narrow(columns: Iterable[pa.Field]) -> None:
    """Raise `InvalidInput` if a column has decimals of more than 38 digits, which queries cannot read."""
    for column in columns:
        if has_wide_decimals([column]):
            name = type_name(column.type)
            narrow = _DECIMAL.sub(lambda type_: f"DECIMAL(38, {min(int(type_[1]), 38)})", name)
            raise InvalidInput(
                where=f"column {column.name}",
                text=f"no query can read more than 38 digits, and it is {name}; declare a schema with "
                f"{column.name} {narrow}",
            )


def require_distinct(names: Sequence[str]) -> None:
    """Raise `InvalidInput` if two columns have the same name."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InvalidInput(where=f"column {min(repeated)}", text="occurs more than once")


def _own_type(type_: pa.DataType) -> pa.DataType:
    """Return the type for reading a column without a declared type: its own, in a layout that Arrow can filter."""
    if kind.is_date64(type_) or kind.is_nested(type_):
        return stored_type(type_)
    return PLAIN_LAYOUTS.get(type_, type_)
