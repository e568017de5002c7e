"""Readers of formats whose records are first written as JSON objects, by functions from bytes to records."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import ReadStep
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
from odf_ingest.read.geo.features import record_of
from odf_ingest.read.json_formats.json_lines import (
    columns_of_batch,
    inferred_columns,
    misfits,
    parse_inferred,
    parse_objects,
    read_records_by_name,
)
from odf_ingest.read.types.kinds import TimeFormats

Record = Callable[[bytes], bytes]
FeaturesByPlace = Callable[[bytes], Mapping[str, bytes]]  # features by the names of their places in a file


def _formats(step: ReadStep) -> TimeFormats:
    return TimeFormats(is_inferred=not (step.ddl_schema or step.schema))


def register_whole(step: type[ReadStep], named: Callable[[ReadStep, bytes], Mapping[str, bytes]]) -> None:
    """Register readers of a format in which each file and each message is a whole batch."""

    @read_batch.register(step)
    def batch(step: ReadStep, value: bytes, schema: pa.Schema | None) -> pa.Table:
        return _read_named(named(step, value), schema, _formats(step))

    @read_file.register(step)
    def file(step: ReadStep, file: Path, schema: pa.Schema | None) -> pa.Table:
        return _read_named(named(step, file.read_bytes()), schema, _formats(step))

    @infer_batch.register(step)
    def columns(step: ReadStep, value: bytes, base: pa.Schema | None) -> pa.Schema:
        return columns_of_batch(list(named(step, value).values()), base, _formats(step))


def register(step: type[ReadStep], record: Record, features: FeaturesByPlace) -> None:
    """Make the format readable: `record` returns the record of a message, `features` the features of a file."""
    register_whole(step, lambda _, value: _records_of(features(value)))
    register_records(step, record)

    @split_file.register(step)
    def split(step: ReadStep, content: bytes) -> FileRecords:
        records = features(content)
        return FileRecords(step=step, values=list(records.values()), places=list(records))


def register_records(step: type[ReadStep], record: Record) -> None:
    """Register readers of single records, which `record` writes as JSON objects."""

    @read_records.register(step)
    def records(step: ReadStep, values: Sequence[bytes], schema: pa.Schema | None) -> pa.Table:
        return parse_objects([record(value) for value in values], schema, _formats(step))

    @read_inferred.register(step)
    def inferred(step: ReadStep, values: Sequence[bytes], schema: pa.Schema) -> pa.Table:
        return parse_inferred([record(value) for value in values], schema, _formats(step))

    @suspects.register(step)
    def faults(step: ReadStep, values: Sequence[bytes], schema: pa.Schema | None) -> Mapping[int, str | None]:
        reasons: dict[int, str | None] = {}
        lines: dict[int, bytes] = {}
        for number, value in enumerate(values):
            try:
                lines[number] = record(value)
            except InvalidInput as error:
                reasons[number] = str(error)
        numbers = list(lines)
        found = misfits(list(lines.values()), schema, _formats(step))
        return reasons | {numbers[row]: why for row, why in found.items()}

    @infer_records.register(step)
    def columns(step: ReadStep, values: Sequence[bytes], base: pa.Schema | None) -> pa.Schema:
        return inferred_columns(_readable(values, record), base, _formats(step))


def _read_named(records: Mapping[str, bytes], schema: pa.Schema | None, formats: TimeFormats) -> pa.Table:
    """Return the records; raises `InvalidInput` with the name of the first that does not fit."""
    if not records:
        return (schema or pa.schema([])).empty_table()
    lines = list(records.values())
    column_schema = columns_of_batch(lines, None, formats) if schema is None else schema
    try:
        return parse_objects(lines, column_schema, formats)
    except InvalidInput:
        return read_records_by_name(lines, list(records), column_schema, formats)


def _records_of(features: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """Return the records of features by their places; raises `InvalidInput` with the place of the first bad one."""
    records = {}
    for name, feature in features.items():
        try:
            records[name] = record_of(feature)
        except InvalidInput as error:
            raise InvalidInput(where=name, text=str(error)) from error
    return records


def _readable(values: Sequence[bytes], record: Record) -> list[bytes]:
    """Return the records of the values that have one; the others are rejected when they are read."""
    records = []
    for value in values:
        try:
            records.append(record(value))
        except InvalidInput:
            continue
    return records
