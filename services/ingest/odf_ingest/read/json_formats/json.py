"""Json: an array of objects, at `subPath` of the document if given; a single object is one record."""

import json
from collections.abc import Mapping
from dataclasses import replace

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepJson
from odf_ingest.read.encoding import require_utf8, to_utf8
from odf_ingest.read.format import FileRecords, split_file
from odf_ingest.read.json_formats.json_exact import Document
from odf_ingest.read.json_formats.object_readers import register_files, register_messages


@split_file.register(ReadStepJson)
def _split(step: ReadStepJson, content: bytes) -> FileRecords:
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
    """Return each object of the array, exactly as written, by its place in the document."""
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
