"""Formats whose files and messages are each one table: Parquet, and Arrow IPC, whose step is a kind of Parquet's."""

from collections import Counter
from collections.abc import Sequence
from functools import partial, singledispatch
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.stored_types import stored_type
from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepParquet
from odf_ingest.errors import UnsupportedStep
from odf_ingest.read.format import infer_batch, read_batch, read_file
from odf_ingest.read.types.conversions import convert_column, first_refused
from odf_ingest.read.types.kinds import TimeFormats, ValueKind
from odf_ingest.read.types.known_columns import continued

_FORMATS: Final = TimeFormats(strings=ValueKind.TEXT)


@singledispatch
def decode_table(step: ReadStepParquet, source: pa.NativeFile, schema: pa.Schema | None) -> pa.Table:
    """Return the table in `source` as `with_columns` does; raises `InvalidInput` unless it is a table."""
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
    return continued(base, schema)


@read_file.register(ReadStepParquet)
def _file(step: ReadStepParquet, file: Path, schema: pa.Schema | None) -> pa.Table:
    with pa.memory_map(str(file)) as source:
        return decode_table(step, source, schema)


@read_batch.register(ReadStepParquet)
def _batch(step: ReadStepParquet, value: bytes, schema: pa.Schema | None) -> pa.Table:
    return decode_table(step, pa.BufferReader(value), schema)


def with_columns(table: pa.Table, schema: pa.Schema | None, what: str) -> pa.Table:
    """Return the columns of a schema, with its types, or all that have a type; `what` names the data in errors."""
    if schema is None:
        # A column with only nulls has no type: it is left out until it has a value.
        require_distinct(table.column_names)
        schema = pa.schema(
            [
                column.with_type(_own_type(column.type))
                for column in table.schema
                if not kind.is_null(column.type)
            ]
        )
    require_distinct([name for name in table.column_names if name in schema.names])
    missing = [column for column in schema if column.name not in table.column_names]
    for column in missing:
        if not column.nullable or len(missing) == len(schema):
            raise InvalidInput(where=f"column {column.name}", text=f"is missing in {what}")
        table = table.append_column(column, pa.nulls(len(table), column.type))
    columns = [_converted(table.column(column.name), column, what) for column in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _converted(values: pa.ChunkedArray, target: pa.Field, what: str) -> pa.ChunkedArray:
    """Return a column in its declared type; raises `InvalidInput` with the first row that has another value."""
    if values.null_count and not target.nullable:
        where = f"row {pc.index(values.is_null(), value=True).as_py() + 1}: column {target.name}"
        raise InvalidInput(where=where, text=f"is null in {what}, and a value is required")
    convert = partial(convert_column, field=target, formats=_FORMATS)
    try:
        return convert(values)
    except InvalidInput:
        row = first_refused(values, convert)
    try:
        return convert(values.slice(row, 1))
    except InvalidInput as error:
        raise InvalidInput(where=f"row {row + 1}", text=str(error)) from error


def require_distinct(names: Sequence[str]) -> None:
    """Raise `InvalidInput` if two columns have the same name."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InvalidInput(where=f"column {min(repeated)}", text="occurs more than once")


def _own_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which a column without a declared one is read: its own, in a layout that Arrow can select."""
    if kind.is_date64(type_) or kind.is_nested(type_):
        return stored_type(type_)
    return {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}.get(type_, type_)
