"""Csv: delimiter-separated text with Spark's options (spec: ReadStep.Csv); one line is one record."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.types as kind

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepCsv
from odf_ingest.read import read_batch, read_file, read_records
from odf_ingest.read.columns import TimeFormats, converted, parsed_schema
from odf_ingest.read.encoding import require_utf8, to_utf8
from odf_ingest.read.lines import first_bad_line


@read_records.register(ReadStepCsv)
def _records(step: ReadStepCsv, values: Sequence[bytes], schema: pa.Schema | None) -> pa.Table:
    texts = [_without_header(step, to_utf8(value, step.encoding)) for value in values]
    text = b"\n".join(texts)
    if text.count(b"\n") != len(texts) - 1:
        # Line feeds inside quotes: each message by itself.
        tables = [_parse(step, one, schema, has_header=False) for one in texts]
        if any(table.num_rows != 1 for table in tables):
            raise InvalidInput(text="is not one line of values")
        return pa.concat_tables(tables)
    table = _parse(step, text, schema, has_header=False)
    if table.num_rows != len(texts):
        raise InvalidInput(text="is not one line of values")
    return table


@read_file.register(ReadStepCsv)
def _file(step: ReadStepCsv, file: Path, schema: pa.Schema | None) -> pa.Table:
    return _whole(step, file.read_bytes(), schema)


@read_batch.register(ReadStepCsv)
def _batch(step: ReadStepCsv, value: bytes, schema: pa.Schema | None) -> pa.Table:
    return _whole(step, value, schema)


def _whole(step: ReadStepCsv, raw: bytes, schema: pa.Schema | None) -> pa.Table:
    text = to_utf8(raw, step.encoding)
    if not text or text.isspace():
        return (schema or pa.schema([])).empty_table()
    try:
        return _parse(step, text, schema, has_header=bool(step.header))
    except InvalidInput as error:
        if schema is None or (step.quote or '"').encode() in text:
            raise
        # Without quotes a line is a record, and the header is one line.
        raise first_bad_line(
            text,
            lambda part: _parse(step, part, schema, has_header=False),
            error,
            skipped=int(bool(step.header)),
        ) from error


def _without_header(step: ReadStepCsv, text: bytes) -> bytes:
    """Return a message's own line; a message may carry the header before it when the source has one."""
    text = text.rstrip(b"\r\n")
    return text.split(b"\n", 1)[1] if step.header and text.count(b"\n") == 1 else text


def _parse(step: ReadStepCsv, text: bytes, schema: pa.Schema | None, *, has_header: bool) -> pa.Table:
    require_utf8(text)
    # At the very end of a text Arrow takes an empty value after a quoted one for quoted too.
    text = text if text.endswith(b"\n") else text + b"\n"
    formats = TimeFormats(timestamp=step.timestamp_format, date=step.date_format)
    try:
        if schema is None:
            return _read(step, text, None, has_header=has_header)
        parsed = _readable(parsed_schema(schema, formats, is_lenient=True))
        return converted(_read(step, text, parsed, has_header=has_header), schema, formats)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInput(text=str(error)) from error


def _readable(schema: pa.Schema) -> pa.Schema:
    """Return the schema with text where Arrow reads no such numbers from Csv."""
    return pa.schema(
        [column.with_type(pa.string()) if kind.is_decimal256(column.type) else column for column in schema]
    )


def _read(step: ReadStepCsv, text: bytes, schema: pa.Schema | None, *, has_header: bool) -> pa.Table:
    names = None if schema is None else schema.names
    reading = pcsv.ReadOptions(
        # Columns go by their place under a declared schema, as in Spark.
        column_names=names,
        skip_rows=1 if has_header and names is not None else 0,
        autogenerate_column_names=names is None and not has_header,
        block_size=max(1 << 20, min(len(text), 16 << 20)),
    )
    parsing = pcsv.ParseOptions(
        delimiter=step.separator or ",",
        quote_char=step.quote or '"',
        escape_char=step.escape or False,
        double_quote=step.escape is None or step.escape == (step.quote or '"'),
        newlines_in_values=True,
    )
    table = pcsv.read_csv(
        pa.BufferReader(text),
        read_options=reading,
        parse_options=parsing,
        convert_options=_converting(step, schema),
    )
    if schema is None and not step.infer_schema:
        return table.cast(pa.schema([(name, pa.string()) for name in table.column_names]))
    return table


def _converting(step: ReadStepCsv, schema: pa.Schema | None) -> pcsv.ConvertOptions:
    nulls = ["" if step.null_value is None else step.null_value]
    return pcsv.ConvertOptions(
        column_types=schema,
        null_values=nulls,
        strings_can_be_null=True,
        quoted_strings_can_be_null=step.null_value is not None,
    )
