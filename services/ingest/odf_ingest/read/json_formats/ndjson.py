"""NdJson: one object per line, or one object per message."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from odf_common.metadata.steps import ReadStepNdJson
from odf_ingest.read.encoding import decodable, to_utf8
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
from odf_ingest.read.json_formats.json_lines import (
    columns_of_batch,
    inferred_columns,
    lines_of,
    misfits,
    parse_inferred,
    parse_objects,
    parse_text,
)
from odf_ingest.read.types.kinds import TimeFormats


@read_records.register(ReadStepNdJson)
def _records(step: ReadStepNdJson, values: Sequence[bytes], schema: pa.Schema | None) -> pa.Table:
    return parse_objects(_texts(step, values), schema, TimeFormats.of(step))


@read_inferred.register(ReadStepNdJson)
def _inferred(step: ReadStepNdJson, values: Sequence[bytes], schema: pa.Schema) -> pa.Table:
    return parse_inferred(_texts(step, values), schema, TimeFormats.of(step))


@read_file.register(ReadStepNdJson)
def _file(step: ReadStepNdJson, file: Path, schema: pa.Schema | None) -> pa.Table:
    return _batch(step, file.read_bytes(), schema)


@read_batch.register(ReadStepNdJson)
def _batch(step: ReadStepNdJson, value: bytes, schema: pa.Schema | None) -> pa.Table:
    return parse_text(to_utf8(value, step.encoding), schema, TimeFormats.of(step))


@split_file.register(ReadStepNdJson)
def _split(step: ReadStepNdJson, content: bytes) -> FileRecords:
    lines, places = lines_of(to_utf8(content, step.encoding))
    return FileRecords(step=replace(step, encoding=None), values=lines, places=places)


@suspects.register(ReadStepNdJson)
def _suspects(
    step: ReadStepNdJson, values: Sequence[bytes], schema: pa.Schema | None
) -> Mapping[int, str | None]:
    if step.encoding is None:
        return misfits(values, schema, TimeFormats.of(step))
    return dict.fromkeys(range(len(values)))


@infer_records.register(ReadStepNdJson)
def _infer(step: ReadStepNdJson, values: Sequence[bytes], base: pa.Schema | None) -> pa.Schema:
    return inferred_columns(decodable(values, step.encoding), base, TimeFormats.of(step))


@infer_batch.register(ReadStepNdJson)
def _infer_batch(step: ReadStepNdJson, value: bytes, base: pa.Schema | None) -> pa.Schema:
    lines, _ = lines_of(to_utf8(value, step.encoding))
    return columns_of_batch(lines, base, TimeFormats.of(step))


def _texts(step: ReadStepNdJson, values: Sequence[bytes]) -> Sequence[bytes]:
    return values if step.encoding is None else [to_utf8(value, step.encoding) for value in values]
