"""Json: an array of objects, or a single object as one record; at `subPath` of the document, if that is given.

NdJson: one object per line, or one object per message.

`register_files` and `register_messages` create the readers of any format whose records are JSON objects, from a
function that finds the objects in a file or message.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from odf_common.errors import InvalidInput
from odf_common.metadata.events import ReadStep, ReadStepJson, ReadStepNdJson
from odf_ingest.read import format as interface
from odf_ingest.read.encoding import require_utf8, to_utf8
from odf_ingest.read.format import FileRecords, infer_batch, read_batch, read_file, split_file
from odf_ingest.read.json_formats import json_lines
from odf_ingest.read.json_formats.json_exact import Document
from odf_ingest.read.json_formats.json_lines import columns_of_batch, lines_of, parse_text
from odf_ingest.read.types.kinds import TimeFormats

Step = TypeVar("Step", bound=ReadStep)
ObjectsByPlace = Callable[[Step, bytes], Mapping[str, bytes]]  # by the names of their places in a file


def register_files(step: type[Step], find_objects: ObjectsByPlace[Step]) -> None:
    """Register readers of files, and of messages that are batches of their own."""

    @interface.read_batch.register(step)
    def batch(step: Step, value: bytes, schema: pa.Schema | None) -> pa.Table:
        return _read_objects(find_objects(step, value), schema, TimeFormats.from_step(step))

    @interface.read_file.register(step)
    def file(step: Step, file: Path, schema: pa.Schema | None) -> pa.Table:
        return batch(step, file.read_bytes(), schema)

    @interface.infer_batch.register(step)
    def columns(step: Step, value: bytes, base: pa.Schema | None) -> pa.Schema:
        formats = TimeFormats.from_step(step)
        lines = [json_lines.one_line(text, None, formats) for text in find_objects(step, value).values()]
        return json_lines.columns_of_batch(lines, base, formats)


def register_messages(
    step: type[Step],
    find_object: Callable[[Step, bytes], bytes],
    is_object: Callable[[Step], bool] = lambda _: False,
) -> None:
    """Register readers of messages with one object each.

    `find_object` returns the object in a message. It is not called for a step for which `is_object` returns True: there
    the message itself is the object.
    """

    def objects(step: Step, values: Sequence[bytes]) -> Sequence[bytes]:
        return values if is_object(step) else [find_object(step, value) for value in values]

    @interface.read_records.register(step)
    def records(step: Step, values: Sequence[bytes], schema: pa.Schema | None) -> pa.Table:
        return json_lines.parse_objects(objects(step, values), schema, TimeFormats.from_step(step))

    @interface.read_inferred.register(step)
    def infer(step: Step, values: Sequence[bytes], schema: pa.Schema) -> pa.Table:
        return json_lines.parse_inferred(objects(step, values), schema, TimeFormats.from_step(step))

    @interface.suspects.register(step)
    def suspects(step: Step, values: Sequence[bytes], schema: pa.Schema | None) -> Mapping[int, str | None]:
        found, reasons = _find_each(step, values, find_object)
        misfits = json_lines.misfits(list(found.values()), schema, TimeFormats.from_step(step))
        numbers = list(found)
        return reasons | {numbers[row]: why for row, why in misfits.items()}

    @interface.infer_records.register(step)
    def columns(step: Step, values: Sequence[bytes], base: pa.Schema | None) -> pa.Schema:
        formats = TimeFormats.from_step(step)
        if is_object(step):
            return json_lines.inferred_columns(values, base, formats)
        found, _ = _find_each(step, values, find_object)  # the others are rejected when they are read
        lines = [json_lines.one_line(text, None, formats) for text in found.values()]
        return json_lines.inferred_columns(lines, base, formats)


def _find_each(
    step: Step, values: Sequence[bytes], find_object: Callable[[Step, bytes], bytes]
) -> tuple[dict[int, bytes], dict[int, str | None]]:
    """Return the objects of messages by index, and the reason for each message that has none."""
    found: dict[int, bytes] = {}
    reasons: dict[int, str | None] = {}
    for number, value in enumerate(values):
        try:
            found[number] = find_object(step, value)
        except InvalidInput as error:
            reasons[number] = str(error)
    return found, reasons


def _read_objects(objects: Mapping[str, bytes], schema: pa.Schema | None, formats: TimeFormats) -> pa.Table:
    """Return the records; raises `InvalidInput` with the location of the first object that does not fit."""
    if not objects:
        return (schema or pa.schema([])).empty_table()
    lines = [json_lines.one_line(text, schema, formats) for text in objects.values()]
    column_schema = json_lines.columns_of_batch(lines, None, formats) if schema is None else schema
    try:
        return json_lines.parse_objects(lines, column_schema, formats)
    except InvalidInput:
        return json_lines.read_records_by_name(lines, list(objects), column_schema, formats)


@split_file.register(ReadStepJson)
def _split_document(step: ReadStepJson, content: bytes) -> FileRecords:
    records = _find_objects(step, content)
    before, after = b"", b""
    for name in reversed(_path(step)):
        before, after = b"{" + json.dumps(name).encode() + b":" + before, after + b"}"
    values = [before + record + after for record in records.values()]
    return FileRecords(step=replace(step, encoding=None), values=values, places=list(records))


def _find_object(step: ReadStepJson, value: bytes) -> bytes:
    """Return the only record of a message; raises `InvalidInput`."""
    text = to_utf8(value, step.encoding)
    if step.sub_path is None and text.startswith(b"{"):
        return text
    records = _find_objects(step, value)
    if len(records) != 1:
        raise InvalidInput(text=f"has {len(records)} records instead of one")
    (record,) = records.values()
    return record


def _find_objects(step: ReadStepJson, value: bytes) -> Mapping[str, bytes]:
    """Return the objects of the array, exactly as written, by location in the document."""
    raw = to_utf8(value, step.encoding)
    require_utf8(raw)
    text = raw.decode()
    records = {}
    line, position = 1, 0
    for number, (start, record) in enumerate(Document(text).records(_path(step)), start=1):
        line += text.count("\n", position, start)
        position = start
        records[f"line {line}, record {number}"] = record.encode()
    return records


def _path(step: ReadStepJson) -> list[str]:
    return [name for name in (step.sub_path or "").split(".") if name]


register_files(ReadStepJson, _find_objects)
register_messages(ReadStepJson, _find_object)


@read_file.register(ReadStepNdJson)
def _file(step: ReadStepNdJson, file: Path, schema: pa.Schema | None) -> pa.Table:
    return _batch(step, file.read_bytes(), schema)


@read_batch.register(ReadStepNdJson)
def _batch(step: ReadStepNdJson, value: bytes, schema: pa.Schema | None) -> pa.Table:
    return parse_text(to_utf8(value, step.encoding), schema, TimeFormats.from_step(step))


@split_file.register(ReadStepNdJson)
def _split_lines(step: ReadStepNdJson, content: bytes) -> FileRecords:
    lines, places = lines_of(to_utf8(content, step.encoding))
    return FileRecords(step=replace(step, encoding=None), values=lines, places=places)


@infer_batch.register(ReadStepNdJson)
def _infer_batch(step: ReadStepNdJson, value: bytes, base: pa.Schema | None) -> pa.Schema:
    lines, _ = lines_of(to_utf8(value, step.encoding))
    return columns_of_batch(lines, base, TimeFormats.from_step(step))


register_messages(
    ReadStepNdJson, lambda step, value: to_utf8(value, step.encoding), lambda step: step.encoding is None
)
