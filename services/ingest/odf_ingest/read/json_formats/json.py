"""Json: an array of objects, at `subPath` of the document if given; a single object is one record."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepJson
from odf_ingest.read.encoding import require_utf8, to_utf8
from odf_ingest.read.format import (
    infer_batch,
    infer_records,
    read_batch,
    read_file,
    read_inferred,
    read_records,
    suspects,
)
from odf_ingest.read.json_formats.json_exact import Document
from odf_ingest.read.json_formats.json_lines import (
    columns_of_batch,
    inferred_columns,
    misfits,
    parse_inferred,
    parse_objects,
    read_records_by_name,
)
from odf_ingest.read.types.columns import TimeFormats


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
    lines = _lines(step, value)
    if not lines:
        return (schema or pa.schema([])).empty_table()
    wanted = columns_of_batch(lines, None, TimeFormats.of(step)) if schema is None else schema
    try:
        return parse_objects(lines, wanted, TimeFormats.of(step))
    except InvalidInput:
        names = [f"record {number}" for number in range(1, len(lines) + 1)]
        return read_records_by_name(lines, names, wanted, TimeFormats.of(step))


@suspects.register(ReadStepJson)
def _suspects(
    step: ReadStepJson, values: Sequence[bytes], schema: pa.Schema | None
) -> Mapping[int, str | None]:
    is_plain = step.sub_path is None and step.encoding is None
    return misfits(values, schema, TimeFormats.of(step)) if is_plain else dict.fromkeys(range(len(values)))


@infer_records.register(ReadStepJson)
def _infer(step: ReadStepJson, values: Sequence[bytes], known: pa.Schema | None) -> pa.Schema:
    lines = []
    for value in values:
        try:
            lines.append(_one(step, value))
        except InvalidInput:
            # It will be rejected when it is read.
            continue
    return inferred_columns(lines, known, TimeFormats.of(step))


@infer_batch.register(ReadStepJson)
def _infer_batch(step: ReadStepJson, value: bytes, known: pa.Schema | None) -> pa.Schema:
    return columns_of_batch(_lines(step, value), known, TimeFormats.of(step))


def _one(step: ReadStepJson, value: bytes) -> bytes:
    """Return the only record of a message, on one line; raises `InvalidInput`."""
    text = to_utf8(value, step.encoding)
    if step.sub_path is None and text.startswith(b"{"):
        return text
    found = _lines(step, value)
    if len(found) != 1:
        raise InvalidInput(text=f"has {len(found)} records instead of one")
    return found[0]


def _lines(step: ReadStepJson, value: bytes) -> list[bytes]:
    """Return each object of the array on its own line, exactly as written."""
    text = to_utf8(value, step.encoding)
    require_utf8(text)
    path = [name for name in (step.sub_path or "").split(".") if name]
    # Newlines occur only in white space: JSON strings cannot contain them.
    return [record.replace("\n", " ").encode() for record in Document(text.decode()).records(path)]
