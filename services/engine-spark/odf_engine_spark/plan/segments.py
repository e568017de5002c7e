"""Segments: parts of a transform that Spark runs, over the new records or over all that incomplete rows still need.

Late records are dropped before they are passed to Spark (`late_records.py`). A stream is what a plan reads: an input,
or the output of an earlier stage. Times are in microseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from odf_common.data.columns import Operation
from odf_common.errors import InvalidInput
from odf_engine_spark.analysis.flow import Flow
from odf_engine_spark.analysis.times import FOREVER
from odf_engine_spark.plan.delta import ALWAYS, NEVER, Delta, nothing
from odf_engine_spark.plan.join_keys import JoinKeys
from odf_engine_spark.plan.late_records import drop_late, last_ends
from odf_engine_spark.spark.error_messages import FAULTS, query_fault
from odf_engine_spark.spark.logical_plans import ARRIVED, COMPLETE, ROW, Plans, Slot
from odf_engine_spark.spark.progress import Progress
from odf_engine_spark.values.operations import Numbers, carried_operations

RECORDS_PER_RUN: Final = 1 << 18  # of Spark, in row-wise queries
UNTIL: Final = "__odf_until"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkRange:
    """The common watermark of all inputs before the request and now; None while unknown."""

    before: int | None
    now: int | None

    @property
    def latest(self) -> int:
        """Return the current watermark, `NEVER` while unknown."""
        return NEVER if self.now is None else self.now


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The data of one request that all parts of a transform share: `old` is the state before it, `new` after it."""

    streams: dict[str, Delta]
    watermarks: WatermarkRange
    old: Mapping[str, pa.Table]
    new: dict[str, pa.Table]
    progress: Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A plan that Spark runs. Its last column is hidden; `schema` describes the others in Spark's types.

    `name` is the prefix of the segment's tables in the state.
    """

    name: str
    plans: Plans
    slot: Slot
    flow: Flow
    schema: pa.Schema
    waits: bool
    join_keys: JoinKeys | None = None
    late: int = 0  # how long after a window's end records still correct it
    holder: str = ""  # the step that keeps its records, if that is neither a window nor a join

    def run(self, step: Step) -> Delta:
        """Return the new rows: those of each new record, or those that have become complete."""
        return self._complete_rows(step) if self.waits else self._by_record(step)

    def collect(self, records: Mapping[str, pa.Table]) -> tuple[pa.Table, pa.ChunkedArray]:
        """Run the plan over these records, and return the rows and their hidden column."""
        spark = self.plans.spark
        if self.waits:
            records = {name: _in_order_of_arrival(table) for name, table in records.items()}
        try:
            table = spark.collect(spark.frame(self.plans.over(self.slot, records)))
        except FAULTS as error:
            raise query_fault(error) from error
        hidden = table.column(table.num_columns - 1)
        columns = [
            # Arrow would not even cast a null struct with required fields to its own type.
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(table.columns, self.schema, strict=False)  # the last one is hidden
        ]
        return pa.Table.from_arrays(columns, schema=self.schema), hidden

    def _by_record(self, step: Step) -> Delta:
        """Process each new record on its own, in the order of streams and of their records."""
        deltas = {name: step.streams[name] for name in self.order(step)}
        operations = np.concatenate([delta.operations for delta in deltas.values()])
        parts = []
        for start, end in _chunks(operations, RECORDS_PER_RUN):
            if end > start:
                parts.append(self.collect(_number_records(deltas, start, end)))
                step.progress.report("records", rows=end, total=len(operations))
        if not parts:
            return nothing(self.schema)
        table = pa.concat_tables([part for part, _ in parts])
        rows = np.concatenate([np.asarray(numbers) for _, numbers in parts]).astype(np.int64)
        # A UNION, for example, gives the rows of one branch after those of the other.
        if len(rows) > 1 and (np.diff(rows) < 0).any():
            order = np.argsort(rows, kind="stable")
            table, rows = table.take(pa.array(order)), rows[order]
        carried = carried_operations(rows, operations)
        never = np.zeros(len(table), dtype=np.int64)
        return Delta(records=table, operations=carried, complete=never, numbers=rows)

    def record(self, step: Step, number: int) -> tuple[Delta, int] | None:
        """Return the input that has the record with this number across all streams, and the record's position in it.

        None if the record is from the output of a stage.
        """
        for name in self.order(step):
            delta = step.streams[name]
            if number < len(delta.records):
                return None if delta.vocab is None else (delta, number)
            number -= len(delta.records)
        return None

    def order(self, step: Step) -> Sequence[str]:
        """Return the streams of the plan, in the order of the transform's inputs."""
        return [name for name in step.streams if name in self.flow.streams]

    def _complete_rows(self, step: Step) -> Delta:
        """Return the rows that have become complete in this request, in the order of their completion."""
        fed, now = self.intake(step), step.watermarks.now
        if now is None or not any(len(table) for table in fed.values()) or not self._is_due(step.watermarks):
            return nothing(self.schema)
        if self.join_keys is not None and step.watermarks.before is not None:
            fed = self.join_keys.recent(fed, step.watermarks.before)
        step.progress.report("windows", total=sum(len(table) for table in fed.values()))
        table, hidden = self.collect(fed)
        # A row without a time never becomes complete.
        complete = np.asarray(hidden.fill_null(ALWAYS)).astype(np.int64)
        before = NEVER if step.watermarks.before is None else step.watermarks.before
        # Records are kept as long as any row may need them, so Spark also gives rows that earlier requests have
        # emitted, and rows that wait for more.
        is_new = (complete > before) & (complete <= now)
        if not is_new.all():
            table, complete = table.filter(pa.array(is_new)), complete[is_new]
        return Delta(records=table, operations=np.zeros(len(table), dtype=np.int64), complete=complete)

    def _is_due(self, watermarks: WatermarkRange) -> bool:
        """Return whether rows can have become complete: those of windows only do at the ends of windows."""
        if watermarks.before is None or watermarks.now is None:
            return True
        period, phase = self.flow.period, self.flow.phase
        return (watermarks.before - phase) // period != (watermarks.now - phase) // period

    def intake(self, step: Step) -> dict[str, pa.Table]:
        """Add the new records to the state, and return the complete records with their hidden columns.

        The new state has only the records that later rows need. Late records are dropped and counted.
        """
        fed, now = {}, step.watermarks.latest
        for name in self.order(step):
            records = self.known_records(name, step)
            complete = np.asarray(records.column(COMPLETE))
            # With LATE, records are kept for that much longer; the maximum keeps NEVER from wrapping around.
            is_needed = self._is_needed(name, complete, max(now, NEVER + self.late) - self.late)
            step.new[self.place(name)] = _with_until(records.filter(pa.array(is_needed)))
            fed[name] = records.filter(pa.array(complete <= now))
            self._report_held(name, complete, now, step.progress)
        return fed

    def _report_held(self, stream: str, complete: Numbers, now: int, progress: Progress) -> None:
        """Count the records that results need which are not emitted yet; not those that LATE keeps for corrections.

        The reported watermark is one at which all rows of a record are emitted, including the row of one without a
        partner.
        """
        retention, rule = self.flow.retention[stream], self.flow.late[stream]
        if retention == FOREVER:  # of an unbounded join: emitted as soon as both sides are complete
            ends = complete
        elif retention == rule.size - 1:  # one window
            ends = last_ends(complete - 1, rule)
        else:
            ends = complete + int(retention)
        held = ends[ends > now]
        if len(held):
            by = self.holder or ("a window" if rule.size > 1 or rule.unit else "a join")
            until = -(-int(held.min()) // 1000)  # rounded up to milliseconds
            progress.hold(len(held), until, by, is_shown=stream in self.flow.shown)

    def place(self, stream: str) -> str:
        """Return the name of the table in the state that has a stream's records."""
        return f"{self.name}/{stream}"

    def known_records(self, stream: str, step: Step) -> pa.Table:
        """Return the stored and new records of a stream in order of arrival, with hidden columns, without late ones."""
        new = drop_late(step.streams[stream], self.flow.late[stream], self.late, step.progress)
        old = step.old.get(self.place(stream))
        if old is None:
            return new
        # With another value, an earlier release has applied a retraction to them.
        if UNTIL in old.column_names and pc.min(old.column(UNTIL)).as_py() not in (None, ALWAYS):
            old = old.filter(pc.equal(old.column(UNTIL), ALWAYS))
        try:
            # A column that the input got since the checkpoint was written is NULL in its records.
            old = pa.concat_tables([new.schema.empty_table(), old], promote_options="permissive")
            return pa.concat_tables([old.select(new.column_names).cast(new.schema), new])
        except (pa.ArrowException, KeyError) as error:
            raise InvalidInput(text=f"the checkpoint's records do not match the query's: {error}") from error

    def _is_needed(self, stream: str, complete: Numbers, now: int) -> npt.NDArray[np.bool_]:
        """Return a mask of the records that incomplete rows of the output may still depend on."""
        retention, rule = self.flow.retention[stream], self.flow.late[stream]
        if retention == FOREVER:
            return np.ones(len(complete), dtype=bool)
        if retention == rule.size - 1 and not rule.unit:  # one window: needed until it ends
            return last_ends(complete - 1, rule) > now
        return complete > now - int(retention)


def _with_until(records: pa.Table) -> pa.Table:
    """Return records in the form of the state: with the column `UNTIL`, so that old blocks replay to equal bytes."""
    never = pa.array(np.full(len(records), ALWAYS))
    return records.append_column(UNTIL, never).combine_chunks()


def _in_order_of_arrival(table: pa.Table) -> pa.Table:
    if COMPLETE not in table.column_names:
        return table
    return table.append_column(ARRIVED, pa.array(np.arange(len(table), dtype=np.int64)))


def _chunks(operations: Numbers, size: int) -> list[tuple[int, int]]:
    """Return the edges of parts of about `size` records; the two records of a correction are never separated."""
    edges = [0]
    while edges[-1] < len(operations):
        end = min(edges[-1] + size, len(operations))
        if end < len(operations) and operations[end] == Operation.CORRECT_TO:
            end += 1
        edges.append(end)
    return list(pairwise(edges))


def _number_records(deltas: Mapping[str, Delta], start: int, end: int) -> dict[str, pa.Table]:
    """Return the records with the numbers `start` to `end` (exclusive) across all streams, with the numbers."""
    first, tables = 0, {}
    for name, delta in deltas.items():
        low, high = max(start - first, 0), max(min(end - first, len(delta.records)), 0)
        part = delta.records.slice(low, max(high - low, 0))
        numbers = np.arange(first + low, first + low + len(part), dtype=np.int64)
        tables[name] = part.append_column(ROW, pa.array(numbers))
        first += len(delta.records)
    return tables
