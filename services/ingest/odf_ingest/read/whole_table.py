"""Formats whose files and messages are each one table: Parquet, and Arrow IPC, whose step is a kind of Parquet's."""

from collections import Counter
from collections.abc import Sequence
from functools import singledispatch
from pathlib import Path

import pyarrow as pa
import pyarrow.types as kind

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepParquet
from odf_ingest.errors import UnsupportedStep
from odf_ingest.read.format import infer_batch, read_batch, read_file
from odf_ingest.read.types.columns import first_misfit
from odf_ingest.read.types.known_columns import continued
from odf_ingest.read.types.numbers import require_room
from odf_ingest.read.types.type_names import shown, type_name
from odf_ingest.read.types.years import with_known_years


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
        columns = [column.name for column in table.schema if not kind.is_null(column.type)]
        return with_known_years(_without_views(table.select(columns)))
    require_distinct([name for name in table.column_names if name in schema.names])
    missing = [column for column in schema if column.name not in table.column_names]
    for column in missing:
        if not column.nullable or len(missing) == len(schema):
            raise InvalidInput(where=f"column {column.name}", text=f"is missing in {what}")
        table = table.append_column(column, pa.nulls(len(table), column.type))
    columns = [_cast(table.column(column.name), column, what) for column in schema]
    return with_known_years(pa.Table.from_arrays(columns, schema=schema))


def _cast(values: pa.ChunkedArray, target: pa.Field, what: str) -> pa.ChunkedArray:
    where = f"column {target.name}"
    if values.null_count and not target.nullable:
        raise InvalidInput(where=where, text=f"is null in {what}, and a value is required")
    try:
        require_room(values, target.type)
        return values.cast(target.type)
    except pa.ArrowNotImplementedError as error:
        text = f"a {values.type} cannot be read as {type_name(target.type)}"
        raise InvalidInput(where=where, text=text) from error
    except (pa.ArrowInvalid, ValueError, InvalidInput) as error:
        row = first_misfit(values, target.type)
        text = f"{shown(values[row].as_py())} is not a value of {type_name(target.type)}"
        raise InvalidInput(where=f"row {row + 1}: {where}", text=text) from error


def require_distinct(names: Sequence[str]) -> None:
    """Raise `InvalidInput` if two columns have the same name."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise InvalidInput(where=f"column {min(repeated)}", text="occurs more than once")


def _without_views(table: pa.Table) -> pa.Table:
    """Return the same values in layouts whose rows Arrow can select."""
    plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    return table.cast(
        pa.schema([column.with_type(plain.get(column.type, column.type)) for column in table.schema])
    )
