"""Infers the columns of a sample, the options to read it, and how far out of order its times are.

Types are those that records without a declared schema would get, with two exceptions, because a user checks the
resulting manifest: JSON strings of times with fractions of a second, and numbers since 1970, are timestamps too. The
latter are recognized by their magnitude and the names of their columns.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.codec.plain_values import camel
from odf_common.data.columns import stored_schema
from odf_common.data.schema_evolution import OUTGROWN
from odf_common.data.time_format import EPOCHS, epoch_digits, likely_epoch, named_format
from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStep, ReadStepCsv, ReadStepJson, ReadStepNdJson
from odf_ingest.commit.watermark import NONE_LATE, Lateness
from odf_ingest.prepare.debezium import rows_of_changes
from odf_ingest.prepare.event_time import event_times
from odf_ingest.read import infer_batch, read_file
from odf_ingest.read.csv_format.csv_parse import ANY_NUMBER, why_text
from odf_ingest.read.csv_format.csv_records import with_dialect
from odf_ingest.read.input_format import BY_NAME, InputFormat
from odf_ingest.read.types.times import to_timestamps
from odf_ingest.read.types.type_names import type_name

_NAME: Final = re.compile(r"(?i:time|date|stamp|epoch|created|^at$|^ts$)|_at$|_ts$|[a-z]At$|[a-z]Ts$")
_EPOCH_UNITS: Final = {0: "ms", 3: "ms", 6: "us", 9: "ns"}  # of a TIMESTAMP, by decimals of a second
_FRACTION_UNIT: Final = "us"  # of seconds with fractions, such as those of Python's time()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochTimes:
    """A sample in which numbers since 1970 have been converted to timestamps."""

    table: pa.Table
    timestamp_format: str | None
    remarks: tuple[str, ...]


def with_epoch_times(table: pa.Table, timestamp_format: str | None) -> EpochTimes:
    """Return the sample with timestamps in place of numbers that are times by magnitude and name.

    All columns share one format of timestamps: `timestamp_format`, or that of the first such column if the sample has
    no other times. There are remarks on other columns that may be times.
    """
    likely = {column.name: _format_of(table.column(column.name)) for column in table.schema}
    named = [name for name, format_ in likely.items() if format_ is not None and _NAME.search(name)]
    if timestamp_format is None and named and not any(kind.is_timestamp(one) for one in table.schema.types):
        timestamp_format = likely[named[0]]
    remarks = []
    digits = epoch_digits(timestamp_format)
    for index, (name, format_) in enumerate(likely.items()):
        if format_ is None:
            continue
        if digits is not None and epoch_digits(format_) == digits and name in named:
            table = table.set_column(index, *_as_times(name, table.column(name), digits))
            remarks.append(
                f"column {name} has numbers since 1970, which timestampFormat {format_} reads as times"
            )
        elif name in named:
            function = f"timestamp_{format_.removeprefix('epoch').lower()}"
            remarks.append(
                f"column {name} seems to be an epoch time ({format_}), but one timestampFormat holds for all columns: "
                f"`preprocess` can convert it by {function}({name})"
            )
        elif format_ != "epochSeconds":  # as many numbers of ten digits are
            remarks.append(
                f"column {name} could be an epoch time: `timestampFormat: {format_}` reads it as TIMESTAMP"
            )
    return EpochTimes(table=table, timestamp_format=timestamp_format, remarks=tuple(remarks))


def _format_of(values: pa.ChunkedArray) -> str | None:
    """Return the format with which all numbers are times of this century; None if there is none."""
    is_whole = kind.is_integer(values.type)
    if values.null_count == len(values) or not (is_whole or kind.is_floating(values.type)):
        return None
    bounds = pc.min_max(values).as_py()
    least, most = likely_epoch(bounds["min"]), likely_epoch(bounds["max"])
    return least if least == most and (is_whole or least == "epochSeconds") else None


def _as_times(name: str, values: pa.ChunkedArray, digits: int) -> tuple[pa.Field, pa.ChunkedArray]:
    if kind.is_floating(values.type):
        unit, values = _FRACTION_UNIT, pc.round(pc.multiply(values, 10 ** EPOCHS["epochMicros"]))
        digits = EPOCHS["epochMicros"]
    else:
        unit = _EPOCH_UNITS[digits]
        values = pc.multiply_checked(values.cast(pa.int64()), 1000) if digits == 0 else values
    type_ = pa.timestamp(unit, "UTC")
    return pa.field(name, type_), values.cast(pa.int64()).cast(type_)


_TIME: Final = r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:?\d\d)?$"
_UNITS: Final = (
    ("ms", r":\d\d\.\d{4}"),
    ("us", r":\d\d\.\d{7}"),
)  # each with the fractions that it does not hold
_NO_TYPE: Final = "DECIMAL(38, 0) is the widest; write it as a string, for a column of STRING"
_NO_OPTIONS: Final = frozenset({"ddl_schema", "schema", "infer_schema"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The records of a sample in the types in which they would be stored."""

    table: pa.Table
    options: Mapping[str, str]
    """The read step for the records, as in a manifest."""
    remarks: tuple[str, ...]
    """Remarks about the columns for the author of the manifest."""
    is_changes: bool = False
    """Whether the messages are changes of a table; then the columns are those of the table."""


def read_sample(file: Path, input_format: str, *, is_topic: bool = False) -> Sample:
    """Return all records of a file. Columns without values are strings. Records of a topic may be in an envelope.

    Csv has a header line unless an option says otherwise; its separator, quote and escape are detected. Raises
    `InvalidInput` for an unknown format, and for the first malformed record.
    """
    format_ = InputFormat.parse(input_format)
    if format_.name is None:
        raise InvalidInput(text="a sample needs the name of its format")
    kind_ = BY_NAME[format_.name]
    step = format_.step(ReadStepCsv(header=True, infer_schema=True) if kind_ is ReadStepCsv else kind_())
    content = file.read_bytes()
    rows = rows_of_changes(content) if is_topic and isinstance(step, ReadStepNdJson) else None
    if rows is not None:
        with TemporaryDirectory() as folder:
            sample = Path(folder) / "rows.ndjson"
            sample.write_bytes(rows)
            found = read_sample(sample, input_format)
        return replace(found, is_changes=True)
    step = with_dialect(step, content) if isinstance(step, ReadStepCsv) else step
    table = _read(step, file, infer_batch(step, content, None))
    if table.num_columns == 0:
        raise InvalidInput(text="the sample has no records")
    table = table.cast(stored_schema(pa.schema([_with_stored_type(column) for column in table.schema])))
    remarks = _remarks(step, file, table) if isinstance(step, ReadStepCsv) else []
    if isinstance(step, ReadStepCsv | ReadStepJson | ReadStepNdJson):
        table = _with_times(table, named_format(step.timestamp_format))
        epochs = with_epoch_times(table, step.timestamp_format)
        table, step = epochs.table, replace(step, timestamp_format=epochs.timestamp_format)
        remarks += [*epochs.remarks, *(() if isinstance(step, ReadStepCsv) else _long_numbers(table))]
    return Sample(table=table, options=_options(step), remarks=tuple(remarks))


def _read(step: ReadStep, file: Path, columns: pa.Schema) -> pa.Table:
    try:
        return read_file(step, file, columns)
    except InvalidInput as error:
        # The column has no type yet that it would keep.
        raise error.with_facts(text=(error.text or "").replace(OUTGROWN, _NO_TYPE)) from error


def _long_numbers(table: pa.Table) -> Iterator[str]:
    """Yield remarks on columns of numbers that are DECIMAL, because no other type represents them exactly."""
    for column in table.schema:
        if kind.is_decimal(column.type):
            name = type_name(column.type)
            yield f"column {column.name} is {name}: BIGINT and DOUBLE do not have all of its numbers exactly"


def _options(step: ReadStep) -> Mapping[str, str]:
    values = {one.name: getattr(step, one.name) for one in fields(step) if one.name not in _NO_OPTIONS}
    return {
        camel(name): str(value).lower() if isinstance(value, bool) else value
        for name, value in values.items()
        if value is not None
    }


def _remarks(step: ReadStepCsv, file: Path, table: pa.Table) -> list[str]:
    """Return the remarks about columns of Csv; raises `InvalidInput` for one without a name."""
    if "" in table.column_names:
        number = table.column_names.index("") + 1
        text = f"column {number} has no name in the header; write one, or remove the separator at the end of each line"
        raise InvalidInput(text=text)
    remarks = list(_nearly_numbers(step, file, table))
    number_like = next((name for name in table.column_names if re.search(ANY_NUMBER, name)), None)
    if step.header and number_like is not None:
        remarks.append(
            f"the first line, with {number_like!r}, is taken as the names of columns: if it is a record, "
            "`--read-option header=false`"
        )
    return remarks


def _nearly_numbers(step: ReadStepCsv, file: Path, table: pa.Table) -> Iterator[str]:
    """Yield remarks on columns that contain numbers but are strings, with the reason."""
    strings = pa.schema([(name, pa.string()) for name in table.column_names])
    written = read_file(replace(step, infer_schema=None), file, strings)
    for column, texts in zip(table.schema, written.columns, strict=True):
        if not kind.is_string(column.type):
            continue
        why = why_text(texts, has_null_value=step.null_value is not None)
        if why is not None:
            yield f"column {column.name} is STRING: {why}"


def out_of_order(table: pa.Table, runs: Sequence[int] = ()) -> Mapping[str, Lateness]:
    """Return by column of times the number of records with an earlier time than a previous record of their run.

    `runs` has the lengths of consecutive runs of records; empty: all records are one run.
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
                late = late.plus(_lateness_of(times.slice(start, length)))
                start += length
            if late.count:
                lateness[column.name] = late
    return lateness


def _lateness_of(times: pa.ChunkedArray) -> Lateness:
    """Return the number of times (ms) that are earlier than a previous one, and the greatest difference."""
    values = times.drop_null().to_numpy()
    if len(values) == 0:
        return NONE_LATE
    behind = np.maximum.accumulate(values) - values
    return Lateness(count=int(np.count_nonzero(behind)), most=int(behind.max()))


def _with_times(table: pa.Table, time_format: str | None) -> pa.Table:
    """Return the table with timestamps instead of strings that are all times of the format; None: RFC 3339."""
    for index, column in enumerate(table.schema):
        if kind.is_string(column.type):
            texts = table.column(index).combine_chunks()
            is_time = time_format is not None or pc.all(pc.match_substring_regex(texts, _TIME)).as_py()
            if len(texts) > texts.null_count and is_time:
                table = _set_times(table, index, texts, time_format)
    return table


def _set_times(table: pa.Table, index: int, texts: pa.Array, time_format: str | None) -> pa.Table:
    finer = (unit for unit, more in _UNITS if not pc.any(pc.match_substring_regex(texts, more)).as_py())
    time_type = pa.timestamp(next(finer, "ns"), "UTC")
    try:
        times = to_timestamps(texts, time_format, time_type).cast(time_type)
    except (InvalidInput, ValueError):  # such as a 30th of February
        return table
    return table.set_column(index, table.schema.field(index).with_type(time_type), times)


def _with_stored_type(column: pa.Field) -> pa.Field:
    return column.with_type(pa.string()) if kind.is_null(column.type) else column
