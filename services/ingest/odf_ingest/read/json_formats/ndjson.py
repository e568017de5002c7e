"""NdJson: one object per line, or one object per message."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from odf_common.metadata.steps import ReadStepNdJson
from odf_ingest.read.encoding import to_utf8
from odf_ingest.read.format import FileRecords, infer_batch, read_batch, read_file, split_file
from odf_ingest.read.json_formats.json_lines import columns_of_batch, lines_of, parse_text
from odf_ingest.read.json_formats.object_readers import register_messages
from odf_ingest.read.types.kinds import TimeFormats


@read_file.register(ReadStepNdJson)
def _file(step: ReadStepNdJson, file: Path, schema: pa.Schema | None) -> pa.Table:
    return _batch(step, file.read_bytes(), schema)


@read_batch.register(ReadStepNdJson)
def _batch(step: ReadStepNdJson, value: bytes, schema: pa.Schema | None) -> pa.Table:
    return parse_text(to_utf8(value, step.encoding), schema, TimeFormats.from_step(step))


@split_file.register(ReadStepNdJson)
def _split(step: ReadStepNdJson, content: bytes) -> FileRecords:
    lines, places = lines_of(to_utf8(content, step.encoding))
    return FileRecords(step=replace(step, encoding=None), values=lines, places=places)


@infer_batch.register(ReadStepNdJson)
def _infer_batch(step: ReadStepNdJson, value: bytes, base: pa.Schema | None) -> pa.Schema:
    lines, _ = lines_of(to_utf8(value, step.encoding))
    return columns_of_batch(lines, base, TimeFormats.from_step(step))


register_messages(
    ReadStepNdJson, lambda step, value: to_utf8(value, step.encoding), lambda step: step.encoding is None
)
