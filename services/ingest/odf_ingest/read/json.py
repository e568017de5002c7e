"""Json: an array of objects, at `subPath` inside the document where one is given; a lone object is one record."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStepJson
from odf_ingest.read import read_batch, read_file, read_records
from odf_ingest.read.columns import TimeFormats
from odf_ingest.read.encoding import to_utf8
from odf_ingest.read.json_lines import parse_lines, parse_objects


@read_records.register(ReadStepJson)
def _records(step: ReadStepJson, values: Sequence[bytes], schema: pa.Schema | None) -> pa.Table:
    texts = [to_utf8(value, step.encoding) for value in values]
    if step.sub_path is None and all(text.startswith(b"{") for text in texts):
        return parse_objects(texts, schema, _formats(step))
    lines = []
    for text in texts:
        found = _lines(step, text)
        if len(found) != 1:
            raise InvalidInput(text=f"holds {len(found)} records instead of one")
        lines.extend(found)
    return parse_objects(lines, schema, _formats(step))


@read_file.register(ReadStepJson)
def _file(step: ReadStepJson, file: Path, schema: pa.Schema | None) -> pa.Table:
    return _whole(step, file.read_bytes(), schema)


@read_batch.register(ReadStepJson)
def _batch(step: ReadStepJson, value: bytes, schema: pa.Schema | None) -> pa.Table:
    return _whole(step, value, schema)


def _whole(step: ReadStepJson, raw: bytes, schema: pa.Schema | None) -> pa.Table:
    lines = _lines(step, to_utf8(raw, step.encoding))
    if not lines:
        return (schema or pa.schema([])).empty_table()
    try:
        return parse_objects(lines, schema, _formats(step))
    except InvalidInput as error:
        for number, line in enumerate(lines, start=1):
            try:
                parse_lines(line, schema, _formats(step))
            except InvalidInput as fault:
                raise InvalidInput(where=f"record {number}", text=str(fault)) from error
        raise


def _formats(step: ReadStepJson) -> TimeFormats:
    return TimeFormats(timestamp=step.timestamp_format, date=step.date_format)


def _lines(step: ReadStepJson, text: bytes) -> list[bytes]:
    """Return each object of the array as a line of its own."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(text=f"is not JSON: {error}") from error
    for name in (step.sub_path or "").split("."):
        if not name:
            continue
        if not isinstance(document, dict) or name not in document:
            raise InvalidInput(text=f"the document has nothing at {step.sub_path!r}")
        document = document[name]
    records = [document] if isinstance(document, dict) else document
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise InvalidInput(text="expected an array of objects")
    return [json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass") for record in records]
