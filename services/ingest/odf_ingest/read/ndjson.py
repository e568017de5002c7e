"""NdJson: one object a line, or one object a message."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepNdJson
from odf_ingest.read import obvious_faults, read_batch, read_file, read_records
from odf_ingest.read.columns import TimeFormats
from odf_ingest.read.encoding import require_utf8, to_utf8
from odf_ingest.read.json_lines import check_object, parse_lines, parse_objects
from odf_ingest.read.lines import first_bad_line


@read_records.register(ReadStepNdJson)
def _records(step: ReadStepNdJson, values: Sequence[bytes], schema: pa.Schema | None) -> pa.Table:
    if step.encoding is not None:
        values = [to_utf8(value, step.encoding) for value in values]
    return parse_objects(values, schema, _formats(step))


@read_file.register(ReadStepNdJson)
def _file(step: ReadStepNdJson, file: Path, schema: pa.Schema | None) -> pa.Table:
    return _whole(step, file.read_bytes(), schema)


@read_batch.register(ReadStepNdJson)
def _batch(step: ReadStepNdJson, value: bytes, schema: pa.Schema | None) -> pa.Table:
    return _whole(step, value, schema)


@obvious_faults.register(ReadStepNdJson)
def _faults(step: ReadStepNdJson, values: Sequence[bytes]) -> dict[int, str]:
    faults = {}
    for number, value in enumerate(values):
        try:
            check_object(to_utf8(value, step.encoding))
        except InvalidInput as error:
            faults[number] = str(error)
    return faults


def _formats(step: ReadStepNdJson) -> TimeFormats:
    return TimeFormats(timestamp=step.timestamp_format, date=step.date_format)


def _whole(step: ReadStepNdJson, raw: bytes, schema: pa.Schema | None) -> pa.Table:
    text = to_utf8(raw, step.encoding)
    if not text or text.isspace():
        return (schema or pa.schema([])).empty_table()
    try:
        require_utf8(text)
        return parse_lines(text, schema, _formats(step))
    except InvalidInput as error:
        raise first_bad_line(text, lambda part: _part(step, part, schema), error) from error


def _part(step: ReadStepNdJson, text: bytes, schema: pa.Schema | None) -> None:
    require_utf8(text)
    parse_lines(text, schema, _formats(step))
