"""Prepares the records of a batch: read, preprocess, add event times (spec: phases of ingestion).

The result does not depend on the dataset's earlier records. Messages that cannot be read as records are separated, and
so are bad rows of a file if the caller allows that; otherwise a file with a bad row is refused.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from odf_common.data.columns import as_stored, normalize_timestamps
from odf_common.data.time_format import first_unknown_year
from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    AddPushSource,
    MergeStrategyUpsertStream,
    ReadStepEsriShapefile,
    ReadStepParquet,
)
from odf_common.metadata.scalars import Timestamp
from odf_ingest.merge.strategies import key_columns, operation_faults, takes_whole_batches
from odf_ingest.message_columns import MessageColumns
from odf_ingest.prepare.bad_rows import BadRows, RefusedRows, RejectedRows, TextRows
from odf_ingest.prepare.batch import BadRecord, FileBatch, MessageBatch, Part
from odf_ingest.prepare.event_time import (
    arrival_times,
    max_event_time,
    retractions,
    with_event_time,
    without_times_of_retractions,
)
from odf_ingest.prepare.inferred_columns import Columns, inferred_columns
from odf_ingest.prepare.message_values import (
    TOMBSTONE,
    deletes_by_tombstone,
    deletions,
    follows_deletion,
    in_order,
    require_possible,
    with_message_columns,
    with_operations,
    without_message_columns,
)
from odf_ingest.prepare.plan import Plan, declared_schema
from odf_ingest.prepare.preprocess import Preprocessor
from odf_ingest.read import (
    infer_batch,
    infer_records,
    read_batch,
    read_file,
    read_inferred,
    read_records,
    suspects,
)
from odf_ingest.read.isolate_bad_records import isolate_bad_records
from odf_ingest.read.message_buffer import Int64Array
from odf_ingest.read.types.times import refusing_finer_times
from odf_ingest.read.types.type_names import type_name

Infer = Callable[[pa.Schema | None], pa.Schema | None]
_NAMED_MESSAGES: Final = 10  # whose columns an error may name


_NO_EVENT_TIME: Final = Timestamp(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRecords:
    """The records of a batch in order, with a column of event times; `records` is None if there are none.

    `greatest` is the greatest event time per partition in ms since the epoch; `rows` the number of records per
    partition, in the order of the records. `default_event_time` replaces null event times.
    """

    source: AddPushSource
    records: pa.Table | None = None
    default_event_time: Timestamp = _NO_EVENT_TIME
    bad: tuple[BadRecord, ...] = ()
    bad_rows: tuple[BadRecord, ...] = ()
    """Bad rows of a message that contains a table."""
    row_count: int = 0
    """Number of rows of a message that contains a table, if some of them are bad."""
    greatest: Mapping[int, int] = field(default_factory=dict)
    rows: Mapping[int, int] = field(default_factory=dict)
    is_state: bool = False
    """Whether the records are the complete state of the source. Then no records mean that the state is empty."""
    is_blank: bool = False
    """Whether the batch is empty or only whitespace. Then it does not show that the state of the source is empty."""


class Preparer:
    """Reads batches; thread-safe."""

    def __init__(self, preprocessor: Preprocessor) -> None:
        """Use `preprocessor` for sources that have a preprocess query."""
        self._preprocessor = preprocessor

    def messages(self, plan: Plan, batch: MessageBatch) -> PreparedRecords:
        """Read messages and return their records; exactly one message if each is a batch of its own.

        Raises `InvalidInput` for errors of the source's definition.
        """
        tables: list[pa.Table] = []
        bad: list[BadRecord] = []
        table_rows: RejectedRows | None = None
        highest: dict[int, int] = {}
        rows: dict[int, int] = {}
        last = 0
        columns = self._columns(plan, batch)
        with refusing_finer_times(is_on=plan.refuses_finer_times):
            for part in batch.parts:
                require_possible(batch.columns, plan)
                if plan.takes_whole_batches:
                    table_rows = _rejectable_rows(plan, part)
                    records, faults = self._message(plan, columns, part, table_rows)
                else:
                    records, faults = self._part(plan, columns, part, batch.columns)
                bad += [_bad(part, row, reason) for row, reason in sorted(faults.items())]
                last = max(last, int(_timestamps(part)[-1])) if plan.takes_whole_batches else last
                if records is None or len(records) == 0:
                    continue
                records = without_times_of_retractions(plan, records)
                tables.append(records)
                rows[part.partition] = len(records)
                if (greatest := max_event_time(records, plan.vocab.event_time_column)) is not None:
                    highest[part.partition] = greatest
        # Partitions without tombstones have no operations yet.
        tables = [*with_operations(tables, plan.vocab.operation_type_column)]
        records = pa.concat_tables(tables, promote_options="permissive") if tables else None
        return PreparedRecords(
            source=plan.source,
            records=records,
            default_event_time=Timestamp.from_ms(last),
            bad=tuple(bad),
            bad_rows=table_rows.bad if table_rows is not None and not bad else (),
            row_count=0 if table_rows is None else table_rows.count,
            greatest=highest,
            rows=rows,
            is_state=takes_whole_batches(plan.source.merge) and not bad,
            is_blank=records is None
            and not any(value and value.strip() for part in batch.parts for value in part.values),
        )

    def file(self, plan: Plan, batch: FileBatch, rejected: RejectedRows | None = None) -> PreparedRecords:
        """Read a file and return its records. With `rejected`, bad rows are left out.

        Raises `InvalidInput` for the first error otherwise.
        """
        plan = replace(plan, fills_event_times=batch.fills_event_times)
        step = plan.source.read
        if plan.schema is not None:
            columns = Columns(schema=plan.schema)
        elif rejected is None:
            columns = _columns_after(plan, infer_batch(step, batch.file.read_bytes(), plan.dataset_schema))
        else:
            columns = _columns_after(plan, rejected.infer(plan.dataset_schema))
        with refusing_finer_times(is_on=plan.refuses_finer_times):
            if rejected is None:
                table = read_file(step, batch.file, columns.schema)
                records = self._read_whole(plan, columns, table, RefusedRows(step, batch.file.read_bytes))
            else:
                table = rejected.read(columns.schema, is_declared=plan.schema is not None)
                records = self._read_whole(plan, columns, table, rejected)
        return PreparedRecords(
            source=plan.source,
            records=records,
            default_event_time=batch.event_time,
            bad=() if rejected is None else rejected.bad,
            is_state=takes_whole_batches(plan.source.merge),
            is_blank=records is None and not batch.file.read_bytes().strip(),
        )

    def rows(self, plan: Plan, rows: TextRows, event_time: Timestamp) -> PreparedRecords:
        """Return the records of single rows, such as rejected ones; `event_time` is that of their file.

        Bad rows are left out of the records and listed in `bad`.
        """
        columns = Columns(schema=plan.schema)
        if plan.schema is None:
            values = rows.records.messages(0, len(rows.records.places))
            columns = _columns_after(plan, infer_records(rows.records.step, values, plan.dataset_schema))
        with refusing_finer_times(is_on=plan.refuses_finer_times):
            table = rows.read(columns.schema, is_declared=plan.schema is not None)
            records = None if table is None else self._read_whole(plan, columns, table, rows)
        return PreparedRecords(
            source=plan.source, records=records, default_event_time=event_time, bad=rows.bad
        )

    def _columns(self, plan: Plan, batch: MessageBatch) -> Columns:
        """Return the columns to read messages with. They are inferred later if each message is a batch of its own."""
        if plan.schema is not None or plan.takes_whole_batches:
            return Columns(schema=plan.schema)
        values = [value for part in batch.parts for value in part.values if value is not None]
        return _columns_after(plan, infer_records(plan.source.read, values, plan.dataset_schema))

    def _part(
        self, plan: Plan, columns: Columns, part: Part, messages: MessageColumns
    ) -> tuple[pa.Table | None, Mapping[int, str]]:
        records, bad = self._records(plan, columns, part, messages)
        if not part.values.empty:
            return records, bad
        if follows_deletion(plan):
            return records, {row: why for row, why in bad.items() if row not in part.values.empty}
        if not deletes_by_tombstone(plan, messages):
            return records, {**bad, **dict.fromkeys(part.values.empty, TOMBSTONE)}
        return self._with_deletions(plan, messages, part, records, bad)

    def _message(
        self, plan: Plan, columns: Columns, part: Part, rows: RejectedRows | None
    ) -> tuple[pa.Table | None, Mapping[int, str]]:
        """Return the records of the only message, which is a batch, or the reason why it is bad.

        With `rows`, its bad rows are left out.
        """
        (value,) = part.values
        if value is None:
            return None, {0: "is empty"}
        step = plan.source.read
        try:
            if plan.schema is None:
                columns = _columns_after(plan, infer_batch(step, value, plan.dataset_schema))
            if rows is None:
                table = read_batch(step, value, columns.schema)
                return self._read_whole(plan, columns, table, RefusedRows(step, lambda: value)), {}
            table = rows.read(columns.schema, is_declared=plan.schema is not None)
            return self._read_whole(plan, columns, table, rows), {}
        except InvalidInput as error:
            return None, {0: str(error)}

    def _read_whole(
        self, plan: Plan, columns: Columns, table: pa.Table, bad_rows: BadRows
    ) -> pa.Table | None:
        """Return the records of a file or of a message that is a batch. Event times to be filled in later are null."""
        if len(table) == 0:
            return None
        if columns.schema is None:
            columns = _columns_after(plan, table.schema)
        table, faults = columns.admit(table)
        table = _without_empty_event_time(plan, bad_rows.without(table, faults))
        if plan.source.preprocess is None:
            faults = {
                **operation_faults(plan.source.merge, table, plan.vocab),
                **_nulls(plan, table, _required_in(plan, table), bad_rows.infer),
            }
            records = bad_rows.without(table, faults)
        else:
            records = self._preprocess(plan, table)
            if records is None:
                return None
            _require(plan, records, _required_in(plan, records))
        return _as_kept(with_event_time(records, plan.vocab.event_time_column, None))

    def _with_deletions(
        self,
        plan: Plan,
        messages: MessageColumns,
        part: Part,
        records: pa.Table | None,
        bad: Mapping[int, str],
    ) -> tuple[pa.Table | None, Mapping[int, str]]:
        """Return the records of messages with a value, and retractions for those without."""
        tombstones = np.array(sorted(part.values.empty), np.int64)
        bad = {row: reason for row, reason in bad.items() if row not in part.values.empty}
        indices = np.setdiff1d(np.arange(len(part.values)), [*tombstones, *bad])
        deleted, faults = deletions(plan, messages, part, tombstones)
        name = plan.vocab.event_time_column
        if name not in deleted.column_names:
            deleted = with_event_time(deleted, name, _timestamps(part)[tombstones])
        deleted, places, bad = _without(_as_kept(deleted), tombstones, faults, bad)
        return in_order(records, indices, deleted, places, plan.vocab.operation_type_column), bad

    def _records(
        self, plan: Plan, columns: Columns, part: Part, messages: MessageColumns
    ) -> tuple[pa.Table | None, Mapping[int, str]]:
        """Return the records of a partition's messages, and the reason for each bad message."""
        step, schema = plan.source.read, without_message_columns(columns.schema, messages)
        read = read_records if plan.schema is not None else read_inferred
        outcome = isolate_bad_records(
            part.values,
            lambda values: read(step, values, schema),
            lambda values: suspects(step, values, schema),
        )
        if outcome.table is None:
            return None, outcome.bad
        table, faults = columns.admit(outcome.table)
        table, wrong = with_message_columns(table, plan, messages, part, outcome.kept)
        faults |= wrong
        if plan.source.preprocess is not None:
            if plan.has_envelope:
                times = arrival_times(plan, table, _timestamps(part)[outcome.kept])
                table = with_event_time(table, plan.vocab.event_time_column, times)
            table, indices, bad = _without(table, outcome.kept, faults, outcome.bad)
            return self._query(plan, part, _without_empty_event_time(plan, table), indices, bad)
        name = plan.vocab.event_time_column
        # A declared event time column must have a value; otherwise a missing one is the message's timestamp.
        is_declared = plan.schema is not None and name in plan.schema.names and not plan.has_envelope
        if is_declared:
            table = with_event_time(table, name, None)
        else:
            times = arrival_times(plan, table, _timestamps(part)[outcome.kept])
            table = with_event_time(table, name, times)
        required = (name, *plan.required_columns) if is_declared else plan.required_columns
        infer = partial(infer_records, step, list(part.values[:_NAMED_MESSAGES]))
        nulls = _nulls if plan.schema is not None else _missing
        faults = {
            **operation_faults(plan.source.merge, table, plan.vocab),
            **nulls(plan, table, required, infer),
            **faults,
        }
        table, _, bad = _without(_as_kept(table), outcome.kept, faults, outcome.bad)
        return table, bad

    def _query(
        self,
        plan: Plan,
        part: Part,
        table: pa.Table,
        indices: npt.NDArray[np.int64],
        bad: Mapping[int, str],
    ) -> tuple[pa.Table | None, Mapping[int, str]]:
        """Return the output of the preprocess query. Messages for which it fails are bad, unless it always fails."""
        latest = int(_timestamps(part).max())

        def query(rows: Sequence[int]) -> pa.Table:
            output = self._preprocess(plan, table.take(pa.array(rows, pa.int64())))
            if output is None:
                return pa.table({})
            name, operation = plan.vocab.event_time_column, plan.vocab.operation_type_column
            if plan.has_envelope and operation not in output.column_names:
                raise InvalidInput(where=f"column {operation}", text="the query has to return it")
            if _has_values(output, name):
                output = with_event_time(output, name, None)
                _require(plan, output, (name, *plan.required_columns))
            else:
                times = arrival_times(plan, output, np.full(len(output), latest))
                output = with_event_time(output, name, times)
                _require(plan, output, plan.required_columns)
            return output

        rows = range(len(table))
        try:
            return query(rows), bad
        except InvalidInput:
            # A query that fails even without records is an error of the source: raise it.
            self._preprocess(plan, table.slice(0, 0))
        outcome = isolate_bad_records(rows, query, lambda _: {}, chunk=len(table))
        failed = {int(indices[row]): reason for row, reason in outcome.bad.items()}
        return outcome.table, {**bad, **failed}

    def _preprocess(self, plan: Plan, table: pa.Table) -> pa.Table | None:
        if plan.source.preprocess is None:
            return table
        output = self._preprocessor.run(plan.source.preprocess, table, plan.is_wanted)
        return None if output is None else _with_known_years(output)


def _rejectable_rows(plan: Plan, part: Part) -> RejectedRows | None:
    """Return the rows of the only message if bad rows may be left out: a table that is not a snapshot."""
    (value,) = part.values
    is_table = isinstance(plan.source.read, ReadStepParquet | ReadStepEsriShapefile)
    if value is None or not is_table or takes_whole_batches(plan.source.merge):
        return None
    return RejectedRows(plan.source.read, value)


def _with_known_years(output: pa.Table) -> pa.Table:
    """Return a query's output; raises `InvalidInput` with the first row that has a time in an unsupported year."""
    found = first_unknown_year(output)
    if found is not None:
        row, error = found
        raise InvalidInput(where=f"record {row + 1} of the query's output", text=str(error)) from error
    return output


def _columns_after(plan: Plan, inferred: pa.Schema | None) -> Columns:
    return inferred_columns(inferred, plan.source, plan.vocab)


def _without(
    table: pa.Table, indices: npt.NDArray[np.int64], faults: Mapping[int, str], bad: Mapping[int, str]
) -> tuple[pa.Table, npt.NDArray[np.int64], Mapping[int, str]]:
    """Return the good records, their indices in the input, and all bad messages by index."""
    if not faults:
        return table, indices, bad
    good = np.setdiff1d(np.arange(len(table)), list(faults))
    more = {int(indices[row]): reason for row, reason in faults.items()}
    return table.take(pa.array(good)), indices[good], {**bad, **more}


def _as_kept(table: pa.Table) -> pa.Table:
    """Return the records in stored types, so that their keys equal keys that are read from slices."""
    return as_stored(normalize_timestamps(table))


def _missing(plan: Plan, table: pa.Table, columns: Sequence[str], infer: Infer) -> Mapping[int, str]:
    """Return the rows that lack a required value, with the reason; all rows if the column does not exist."""
    for name in columns:
        if name not in table.column_names:
            return dict.fromkeys(range(len(table)), f"has no {name}{_other_case(name, infer)}")
    return _nulls(plan, table, columns, infer)


def _without_empty_event_time(plan: Plan, table: pa.Table) -> pa.Table:
    """Drop an event time column that is not declared and has no values."""
    name = plan.vocab.event_time_column
    if name not in table.column_names or table.column(name).null_count < len(table):
        return table
    return table if declared_schema(plan.source.read) is not None else table.drop_columns([name])


def _required_in(plan: Plan, table: pa.Table) -> Sequence[str]:
    """Return the columns that must have a value. They include event time if it exists and nulls are not filled in."""
    name = plan.vocab.event_time_column
    is_required = _has_values(table, name) and not plan.fills_event_times
    return (name, *plan.required_columns) if is_required else plan.required_columns


def _has_values(table: pa.Table, name: str) -> bool:
    """Return whether a table has the column, and its type is not Arrow's null type."""
    return name in table.column_names and not kind.is_null(table.column(name).type)


def _nulls(
    plan: Plan, table: pa.Table, columns: Sequence[str], infer: Infer | None = None
) -> Mapping[int, str]:
    """Return the rows that lack a required value, with the reason.

    A retraction that is completed from the current record needs only its key. `infer` returns the columns of the input;
    it is used to mention a column whose name differs only in case.
    """
    faults: dict[int, str] = {}
    for name in columns:
        if name not in table.column_names:
            text = f"is required and is missing{_other_case(name, infer)}"
            raise InvalidInput(where=f"column {name}", text=text)
        column = table.column(name)
        if column.null_count:
            rows = np.flatnonzero(pc.is_null(column).to_numpy())
            why = f"column {name}: null is not allowed; a value of {type_name(column.type)} is required"
            if _is_known_of_retractions(plan, name):
                rows = np.setdiff1d(rows, retractions(plan, table))
            why += _other_case(name, infer) if len(rows) else ""
            faults |= {int(row): why for row in rows if int(row) not in faults}
    return faults


def _other_case(name: str, infer: Infer | None) -> str:
    """Return a sentence about a column of the input whose name differs only in case; empty if there is none."""
    try:
        columns = None if infer is None else infer(pa.schema([]))
    except InvalidInput:
        return ""
    names = () if columns is None else columns.names
    return next(
        (f"; it has {one}: case matters" for one in names if one != name and one.lower() == name.lower()), ""
    )


def _is_known_of_retractions(plan: Plan, name: str) -> bool:
    """Return whether a retraction needs no value in a column, because it is taken from the current record."""
    if name in key_columns(plan.source.merge):
        return False
    is_time_of_envelope = plan.has_envelope and name == plan.vocab.event_time_column
    is_upsert = isinstance(plan.source.merge, MergeStrategyUpsertStream)
    return is_upsert or plan.completes_retractions or is_time_of_envelope


def _require(plan: Plan, output: pa.Table, columns: Sequence[str]) -> None:
    """Raise `InvalidInput` unless each row of a query's output has these columns."""
    faults = _nulls(plan, output, columns)
    if faults:
        row = min(faults)
        raise InvalidInput(where=f"record {row + 1} of the query's output", text=faults[row])


def _bad(part: Part, row: int, reason: str) -> BadRecord:
    return BadRecord(
        partition=part.partition, offset=part.offsets[row], value=part.values[row], reason=reason
    )


def _timestamps(part: Part) -> Int64Array:
    if part.timestamps is None:
        raise TypeError("the plan says that it needs no timestamps")
    return part.timestamps
