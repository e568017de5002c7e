"""Columns that are read from keys, headers and timestamps of messages, and deletions by tombstones."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.columns import TIMESTAMP, Operation
from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    MergeStrategyChangelogStream,
    MergeStrategyUpsertStream,
    ReadStepCsv,
    ReadStepJson,
    ReadStepNdJson,
)
from odf_ingest.message_columns import Envelope, KeyFormat, MessageColumns
from odf_ingest.prepare.batch import Part
from odf_ingest.prepare.plan import Plan
from odf_ingest.read import read_records, suspects
from odf_ingest.read.isolate_bad_records import isolate_bad_records
from odf_ingest.read.message_buffer import Int64Array
from odf_ingest.read.types.columns import convert_table, unconvertible
from odf_ingest.read.types.kinds import DecodedJson, TimeFormats, ValueKind
from odf_ingest.read.types.times import cut

TOMBSTONE: Final = (
    "is empty: a tombstone deletes its key only where the source merges as UpsertStream, without preprocessing, and "
    "keyColumns has the primary key"
)
Faults = dict[int, str]  # by row
_Column = tuple[pa.ChunkedArray, Faults]


def require_possible(columns: MessageColumns, plan: Plan) -> None:
    """Raise `InvalidInput` unless the source can have these columns from its messages."""
    if columns.envelope is not Envelope.NONE:
        require_changes(plan)
    if not columns.names:
        return
    if plan.takes_whole_batches:
        text = "cannot come from the message: each message of this source is a whole batch of records"
        raise InvalidInput(where=f"column {columns.names[0]}", text=text)
    if plan.schema is None:
        return
    names = plan.schema.names
    for name in columns.names:
        if name not in names and not name == columns.timestamp == plan.vocab.event_time_column:
            text = f"is not among the columns of the source: {', '.join(names)}"
            raise InvalidInput(where=f"column {name}", text=text)
    if set(names) <= set(columns.names):
        text = "at least one column has to be read from the message's value"
        raise InvalidInput(where=f"column {names[0]}", text=text)
    if columns.timestamp in names and not _holds_time(plan.schema.field(columns.timestamp).type):
        text = "the message's timestamp needs a TIMESTAMP, DATE or BIGINT column"
        raise InvalidInput(where=f"column {columns.timestamp}", text=text)


def require_changes(plan: Plan) -> None:
    """Raise `InvalidInput` unless the source can merge changes that are in an envelope."""
    source = plan.source
    if not isinstance(source.read, ReadStepNdJson):
        kind_ = type(source.read).__name__.removeprefix("ReadStep")
        text = f"is read by a source with `kind: NdJson`, this one has {kind_}"
        raise InvalidInput(where="envelope", text=text)
    if not isinstance(source.merge, MergeStrategyChangelogStream | MergeStrategyUpsertStream):
        text = "has changes and deletions, which a source merges as ChangelogStream or UpsertStream"
        raise InvalidInput(where="envelope", text=text)


def without_message_columns(schema: pa.Schema | None, columns: MessageColumns) -> pa.Schema | None:
    """Return the schema without the columns that are read from keys, headers and timestamps."""
    if schema is None or not columns.names:
        return schema
    return pa.schema([column for column in schema if column.name not in columns.names])


def with_message_columns(
    table: pa.Table, plan: Plan, columns: MessageColumns, part: Part, rows: Int64Array
) -> tuple[pa.Table, Faults]:
    """Return records with the columns from their messages, and the reason for each record that is invalid.

    `rows` has for each record the index of its message in the part.
    """
    if not columns.names:
        return table, {}
    added = dict(_keys(plan, columns, part, rows))
    for header, name in columns.headers:
        values = [part.headers[header][row] for row in rows]
        added[name] = _of_text(plan, values, _field(plan, name), f"its header {header}")
    if columns.timestamp:
        added[columns.timestamp] = _of_times(part, rows, _field(plan, columns.timestamp, TIMESTAMP)), {}
    faults: Faults = {}
    for name, (values, wrong) in added.items():
        field = _field(plan, name, values.type)
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), field, values)
        else:
            table = table.append_column(field, values)
        faults |= wrong
    return table.select(_column_order(table, plan)), faults


def follows_deletion(plan: Plan) -> bool:
    """Return whether a tombstone only follows a deletion, and has to be ignored.

    That is so if the source's query returns operations: then deletions are messages with a value.
    """
    query = plan.source.preprocess
    if query is None or not isinstance(plan.source.merge, MergeStrategyUpsertStream):
        return False
    texts = [query.query or "", *(step.query for step in query.queries or ())]
    return any(re.search(rf"\b{re.escape(plan.vocab.operation_type_column)}\b", text) for text in texts)


def deletes_by_tombstone(plan: Plan, columns: MessageColumns) -> bool:
    """Return whether a tombstone, a message without a value, deletes its key."""
    merge = plan.source.merge
    if not isinstance(merge, MergeStrategyUpsertStream) or plan.source.preprocess is not None:
        return False
    return bool(merge.primary_key) and set(merge.primary_key) <= set(columns.keys)


def deletions(plan: Plan, columns: MessageColumns, part: Part, rows: Int64Array) -> tuple[pa.Table, Faults]:
    """Return a retraction for each tombstone, and the reason for each that is invalid.

    `rows` has the indices of the tombstones in the part. Columns that are not in the key are null.
    """
    assert isinstance(plan.source.merge, MergeStrategyUpsertStream)
    operation = plan.vocab.operation_type_column
    fields = {field.name: field for field in plan.schema or plan.dataset_schema or ()}
    arrays = {name: pa.nulls(len(rows), field.type) for name, field in fields.items()}
    faults: Faults = {}
    for name, (values, wrong) in _keys(plan, columns, part, rows).items():
        arrays[name] = values
        if name in plan.source.merge.primary_key:
            empty = np.flatnonzero(pc.is_null(values).to_numpy())
            faults |= {int(row): f"is empty, and its key has no {name}" for row in empty} | wrong
    operation_type = fields[operation].type if operation in fields else pa.uint8()
    arrays[operation] = pa.array(np.full(len(rows), int(Operation.RETRACT), np.uint8)).cast(operation_type)
    return pa.table(arrays), faults


def in_order(
    table: pa.Table | None, rows: Int64Array, deleted: pa.Table, deleted_rows: Int64Array, operation: str
) -> pa.Table:
    """Return records and deletions in one table, in the order of their messages."""
    if table is None or len(table) == 0:
        return deleted
    table, deleted = with_operations([table, deleted], operation)
    order = np.argsort(np.concatenate([rows, deleted_rows]), kind="stable")
    return pa.concat_tables([table, deleted], promote_options="permissive").take(pa.array(order))


def with_operations(tables: Sequence[pa.Table], operation: str) -> Sequence[pa.Table]:
    """Return the tables. If one has a column of operations, +A is added to those that have none."""
    types = [table.column(operation).type for table in tables if operation in table.column_names]
    if not types:
        return tables
    return [
        table
        if operation in table.column_names
        else table.append_column(
            operation, pa.array(np.full(len(table), int(Operation.APPEND), np.uint8)).cast(types[0])
        )
        for table in tables
    ]


def _keys(plan: Plan, columns: MessageColumns, part: Part, rows: Int64Array) -> Mapping[str, _Column]:
    if not columns.keys:
        return {}
    values = [part.keys[row] for row in rows]
    if columns.key_format is KeyFormat.TEXT:
        (name,) = columns.keys
        return {name: _of_text(plan, values, _field(plan, name), "its key")}
    step = _key_step(plan, columns.key_format)
    schema = pa.schema([(name, _field(plan, name).type) for name in columns.keys])
    present = np.array([row for row, value in enumerate(values) if value is not None], np.int64)
    outcome = isolate_bad_records(
        [values[row] for row in present],
        lambda some: read_records(step, some, schema),
        lambda some: suspects(step, some, schema),
    )
    faults = {int(present[index]): f"its key: {reason}" for index, reason in outcome.bad.items()}
    if outcome.table is None:
        return {field.name: (pa.chunked_array([pa.nulls(len(rows), field.type)]), faults) for field in schema}
    indices: list[int | None] = [None] * len(values)
    for index, row in enumerate(present[outcome.kept]):
        indices[row] = index
    table = outcome.table.take(pa.array(indices, pa.int64()))
    return {name: (table.column(name), faults) for name in columns.keys}


def _key_step(plan: Plan, format_: KeyFormat) -> ReadStepNdJson:
    """Return the step that reads keys as JSON with the source's columns.

    Its formats of dates and times apply unless a schema registry has decoded the keys.
    """
    step = plan.source.read
    if format_ is KeyFormat.REGISTRY:
        return DecodedJson(ddl_schema=step.ddl_schema, schema=step.schema)
    own = ReadStepNdJson(ddl_schema=step.ddl_schema, schema=step.schema)
    if not isinstance(step, ReadStepCsv | ReadStepJson | ReadStepNdJson):
        return own
    return replace(own, timestamp_format=step.timestamp_format, date_format=step.date_format)


def _of_text(plan: Plan, values: Sequence[bytes | None], field: pa.Field, what: str) -> _Column:
    """Return bytes as values of a column, and by row the reason for each invalid value."""
    if kind.is_binary(field.type):
        return pa.chunked_array([pa.array(values, pa.binary())]), {}
    texts, faults = _decode(values, field, what)
    schema = pa.schema([field])
    formats = replace(TimeFormats.from_step(_key_step(plan, KeyFormat.TEXT)), strings=ValueKind.TEXT)
    for row, why in unconvertible(_one_column(texts, field), schema, formats).items():
        faults[row], texts[row] = f"{what}: {why}", None
    return convert_table(_one_column(texts, field), schema, formats).column(0), faults


def _one_column(texts: Sequence[str | None], field: pa.Field) -> pa.Table:
    return pa.table({field.name: pa.array(texts, pa.string())})


def _decode(values: Sequence[bytes | None], field: pa.Field, what: str) -> tuple[list[str | None], Faults]:
    texts: list[str | None] = []
    faults: Faults = {}
    for row, value in enumerate(values):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            faults[row] = f"{what}: column {field.name}: is not UTF-8 at byte {error.start}"
            texts.append(None)
    return texts, faults


def _of_times(part: Part, rows: Int64Array, field: pa.Field) -> pa.ChunkedArray:
    assert part.timestamps is not None
    values = pa.array(part.timestamps[rows])
    if not kind.is_integer(field.type):
        times = values.cast(TIMESTAMP)
        values = cut(times, field.type) if kind.is_timestamp(field.type) else times.cast(field.type)
    return pa.chunked_array([values])


def _holds_time(type_: pa.DataType) -> bool:
    return bool(kind.is_timestamp(type_) or kind.is_date(type_) or kind.is_int64(type_))


def _field(plan: Plan, name: str, usual: pa.DataType | None = None) -> pa.Field:
    """Return the declared column, or that of the dataset, or a nullable one of the `usual` type (default: string)."""
    for schema in (plan.schema, plan.dataset_schema):
        if schema is not None and name in schema.names:
            return schema.field(name)
    return pa.field(name, usual or pa.string())


def _column_order(table: pa.Table, plan: Plan) -> Sequence[str]:
    """Return the names of the columns: declared ones first, in their order."""
    declared = [] if plan.schema is None else plan.schema.names
    first = [name for name in declared if name in table.column_names]
    return [*first, *(name for name in table.column_names if name not in first)]
