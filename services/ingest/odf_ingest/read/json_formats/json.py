"""Json: an array of objects, at `subPath` of the document if given; a single object is one record."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepJson
from odf_ingest.read.encoding import require_utf8, to_utf8
from odf_ingest.read.format import (
    FileRecords,
    infer_batch,
    infer_records,
    read_batch,
    read_file,
    read_inferred,
    read_records,
    split_file,
    suspects,
)
from odf_ingest.read.json_formats.json_exact import Document
from odf_ingest.read.json_formats.json_lines import (
    columns_of_batch,
    inferred_columns,
    misfits,
    one_line,
    parse_inferred,
    parse_objects,
    read_records_by_name,
)
from odf_ingest.read.types.kinds import TimeFormats


@read_records.register(ReadStepJson)
def _records(step: ReadStepJson, values: Sequence[bytes], schema: pa.Schema | None) -> pa.Table:
    return parse_objects([_one(step, value) for value in values], schema, TimeFormats.of(step))


@read_inferred.register(ReadStepJson)
def _inferred(step: ReadStepJson, values: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    return parse_inferred([_one(step, value) for value in values], schema, TimeFormats.of(step))


@read_file.register(ReadStepJson)
def _file(step: ReadStepJson, file: Path, schema: pa.Schema | None) -> pa.Table:
    return _batch(step, file.read_bytes(), schema)


@read_batch.register(ReadStepJson)
def _batch(step: ReadStepJson, value: bytes, schema: pa.Schema | None) -> pa.Table:
    formats = TimeFormats.of(step)
    records, places = _placed(step, value)
    if not records:
        return (schema or pa.schema([])).empty_table()
    lines = [one_line(record, schema, formats) for record in records]
    column_schema = columns_of_batch(lines, None, formats) if schema is None else schema
    try:
        return parse_objects(lines, column_schema, formats)
    except InvalidInput:
        return read_records_by_name(lines, places, column_schema, formats)


@split_file.register(ReadStepJson)
def _split(step: ReadStepJson, content: bytes) -> FileRecords:
    records, places = _placed(step, content)
    before, after = b"", b""
    for name in reversed(_path(step)):
        before, after = b"{" + json.dumps(name).encode() + b":" + before, after + b"}"
    values = [before + record + after for record in records]
    return FileRecords(step=replace(step, encoding=None), values=values, places=places)


@suspects.register(ReadStepJson)
def _suspects(
    step: ReadStepJson, values: Sequence[bytes], schema: pa.Schema | None
) -> Mapping[int, str | None]:
    is_plain = step.sub_path is None and step.encoding is None
    return misfits(values, schema, TimeFormats.of(step)) if is_plain else dict.fromkeys(range(len(values)))


@infer_records.register(ReadStepJson)
def _infer(step: ReadStepJson, values: Sequence[bytes], base: pa.Schema | None) -> pa.Schema:
    formats, lines = TimeFormats.of(step), []
    for value in values:
        try:
            lines.append(one_line(_one(step, value), None, formats))
        except InvalidInput:
            # It will be rejected when it is read.
            continue
    return inferred_columns(lines, base, formats)


@infer_batch.register(ReadStepJson)
def _infer_batch(step: ReadStepJson, value: bytes, base: pa.Schema | None) -> pa.Schema:
    formats = TimeFormats.of(step)
    lines = [one_line(record, None, formats) for record in _placed(step, value)[0]]
    return columns_of_batch(lines, base, formats)


def _one(step: ReadStepJson, value: bytes) -> bytes:
    """Return the only record of a message; raises `InvalidInput`."""
    text = to_utf8(value, step.encoding)
    if step.sub_path is None and text.startswith(b"{"):
        return text
    records, _ = _placed(step, value)
    if len(records) != 1:
        raise InvalidInput(text=f"has {len(records)} records instead of one")
    return records[0]


def _placed(step: ReadStepJson, value: bytes) -> tuple[list[bytes], list[str]]:
    """Return each object of the array, exactly as written, and its place in the document."""
    raw = to_utf8(value, step.encoding)
    require_utf8(raw)
    text = raw.decode()
    records, places = [], []
    line, position = 1, 0
    for number, (start, record) in enumerate(Document(text).records(_path(step)), start=1):
        line += text.count("\n", position, start)
        position = start
        places.append(f"line {line}, record {number}")
        records.append(record.encode())
    return records, places


def _path(step: ReadStepJson) -> list[str]:
    return [name for name in (step.sub_path or "").split(".") if name]
