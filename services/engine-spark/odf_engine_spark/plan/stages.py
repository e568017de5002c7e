"""Stages: steps that fold records into a state between two runs of Spark; each produces a stream for the next step.

The order in which a stage folds records does not depend on how records were split into requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odf_common.errors import InvalidInput
from odf_engine_spark.aggregates.functions import Aggregate
from odf_engine_spark.operators.changes import Changes, InvalidChange, NothingToRetract
from odf_engine_spark.operators.grouped import aggregate_groups
from odf_engine_spark.operators.running import running
from odf_engine_spark.operators.temporal_join import as_of
from odf_engine_spark.operators.top_n import SortKey, top_n
from odf_engine_spark.plan.delta import NEVER, Delta, nothing
from odf_engine_spark.plan.segments import Segment, Step
from odf_engine_spark.spark.logical_plans import COMPLETE, HIDDEN, ROW
from odf_engine_spark.values.equality_codes import equality_codes, normalize_keys
from odf_engine_spark.values.operations import Numbers

Fold = Callable[
    [Changes, pa.Table | None], tuple[Changes, pa.Table]
]  # from changes and state to output and state


class Stage(Protocol):
    """A step that keeps state; `stream` is the name of its output."""

    @property
    def stream(self) -> str:
        """Return the name of the output stream."""

    def run(self, step: Step) -> Delta:
        """Return the new records of the output stream; the state for the next request is stored in `step.new`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBy:
    """GROUP BY without windows, which emits a changelog."""

    stream: str
    segment: Segment
    keys: int
    aggregates: tuple[Aggregate, ...]

    def run(self, step: Step) -> Delta:
        """Return the changelog of the groups."""
        return _run_fold(
            self, step, "groups", partial(aggregate_groups, keys=self.keys, aggregates=self.aggregates)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopN:
    """The top N rows per partition, as a changelog."""

    stream: str
    segment: Segment
    outputs: int
    partition: tuple[int, ...]
    order: tuple[SortKey, ...]
    limit: int

    def run(self, step: Step) -> Delta:
        """Return the changelog of the top rows."""
        fold = partial(
            top_n, partition=self.partition, order=self.order, limit=self.limit, outputs=self.outputs
        )
        return _run_fold(self, step, "places", fold)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateCall:
    """Aggregates over the same kind of frame: the positions of arguments and values, and the types of the values."""

    aggregates: tuple[Aggregate, ...]
    types: tuple[pa.DataType, ...]
    arguments: tuple[int, ...]
    places: tuple[int, ...]
    is_range: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAggregates:
    """Running aggregates in order of event time.

    The first `outputs` columns of the segment are passed on, followed by the values of the aggregates.
    """

    stream: str
    segment: Segment
    outputs: int
    keys: tuple[int, ...]
    peers: tuple[int, ...]
    calls: tuple[AggregateCall, ...]

    def run(self, step: Step) -> Delta:
        """Return the records that have become complete, with the values of the aggregates."""
        delta = self.segment.run(step)
        step.progress.report("running", total=len(delta.records))
        columns: dict[int, pa.ChunkedArray] = dict(enumerate(delta.records.columns[: self.outputs]))
        # Rows with equal codes are peers: in a RANGE frame they see each other, and have one value.
        ties = [normalize_keys(delta.records.column(index)) for index in self.peers]
        peers = pa.array(equality_codes(ties, len(delta.records)), pa.int64())
        for number, call in enumerate(self.calls):
            place = f"{self.stream}.{number}"
            keys, arguments = (
                [delta.records.column(index) for index in places] for places in (self.keys, call.arguments)
            )
            chosen = [*keys, pa.chunked_array([peers]), *arguments]
            table = pa.Table.from_arrays(chosen, names=[str(index) for index in range(len(chosen))])
            try:
                values, step.new[place] = running(
                    table,
                    step.old.get(place),
                    keys=range(len(self.keys)),
                    peers=len(self.keys) if call.is_range else None,
                    aggregates=call.aggregates,
                )
            except ValueError as error:
                raise _state_mismatch(error) from error
            typed = (values.column(index).cast(type_) for index, type_ in enumerate(call.types))
            columns.update(zip(call.places, typed, strict=True))
        ordered = [columns[index] for index in sorted(columns)]
        records = pa.Table.from_arrays(ordered, names=[str(index) for index in range(len(ordered))])
        return Delta(records=records, operations=delta.operations, complete=delta.complete)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalJoin:
    """A temporal join. The last column of each segment is the time of the row or version, in microseconds.

    `behind` is the maximum, in microseconds, by which the time of a row can be before the watermark at which the row is
    emitted.
    """

    stream: str
    left: Segment
    right: Segment
    keys: tuple[tuple[int, int], ...]
    behind: int
    is_inner: bool

    def run(self, step: Step) -> Delta:
        """Return the left rows that have become complete, each with the version that was valid at its time."""
        rows, versions = self.left.run(step), self._versions(step)
        step.progress.report("versions", total=len(rows.records))
        valid_from = _microseconds(versions, len(self.right.schema) - 1)
        matches = as_of(
            rows.records.select([left for left, _ in self.keys]),
            _microseconds(rows.records, len(self.left.schema) - 1),
            versions.select([right for _, right in self.keys]),
            valid_from,
        )
        self._keep(versions, valid_from, step)
        left, complete = rows.records, rows.complete
        if self.is_inner and (matches < 0).any():
            has_version = matches >= 0
            left, complete, matches = (
                left.filter(pa.array(has_version)),
                complete[has_version],
                matches[has_version],
            )
        version_rows = versions.take(pa.array(matches, mask=matches < 0))
        columns = [*left.columns[:-1], *version_rows.columns[:-1]]
        records = pa.Table.from_arrays(columns, names=[str(index) for index in range(len(columns))])
        return Delta(records=records, operations=np.zeros(len(records), dtype=np.int64), complete=complete)

    def _versions(self, step: Step) -> pa.Table:
        new = self.right.run(step).records
        old = step.old.get(self.stream)
        if old is None:
            return new
        if not old.schema.equals(new.schema):
            raise InvalidInput(text="the checkpoint's versions do not match the query's")
        return pa.concat_tables([old, new])

    def _keep(self, versions: pa.Table, valid_from: Numbers, step: Step) -> None:
        """Store the versions that later rows may need.

        The time of a later row is at least the watermark minus `behind`. So these are the versions that begin after
        that time, and those that are valid at it.
        """
        # Rows are emitted only up to a watermark, so none was, and each may still ask for any version.
        if step.watermarks.now is None:
            step.new[self.stream] = versions
            return
        earliest = step.watermarks.now - self.behind
        keys = versions.select([right for _, right in self.keys])
        # The version of each key that is valid at that time began before it.
        held = as_of(keys, np.full(len(versions), earliest), keys, valid_from)
        is_kept = valid_from > earliest
        is_kept[held[held >= 0]] = True
        step.new[self.stream] = versions.filter(pa.array(is_kept)).combine_chunks()


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Session windows, which last as long as records arrive without a gap."""

    stream: str
    segment: Segment  # hidden column: when a session ends; the column before it lists the session's records
    gap: int

    def run(self, step: Step) -> Delta:
        """Return the sessions that have ended, and store the records of open ones."""
        (name,) = self.segment.flow.streams
        records, now = self.segment.known_records(name, step), step.watermarks.latest
        complete = np.asarray(records.column(COMPLETE))
        final = np.flatnonzero(complete <= now)
        start = self.segment.place(name)
        step.progress.report("sessions", total=len(final))
        # Only a rising watermark ends sessions: Spark need not run.
        if not len(final) or step.watermarks.before == step.watermarks.now:
            step.new[start] = records
            self._report_held(records, step)
            return nothing(self.segment.schema.remove(len(self.segment.schema) - 1))
        numbered = (
            records.drop_columns(list(HIDDEN))
            .take(pa.array(final))
            .append_column(ROW, pa.array(final, pa.int64()))
        )
        table, hidden = self.segment.collect({name: numbered})
        ends = np.asarray(hidden).astype(np.int64)
        has_ended = ends <= now
        # A final record whose session is still open is needed again, with the records that extend the session.
        members = table.column(table.num_columns - 1).filter(pa.array(~has_ended))
        is_open = complete > now
        is_open[np.asarray(pc.list_flatten(members)).astype(np.int64)] = True
        step.new[start] = records.filter(pa.array(is_open)).combine_chunks()
        self._report_held(step.new[start], step)
        # A record of an open session may also be in one already emitted: explode makes several rows of one record.
        before = NEVER if step.watermarks.before is None else step.watermarks.before
        is_new = has_ended & (ends > before)
        table = table.drop_columns([table.column_names[-1]]).filter(pa.array(is_new))
        return Delta(records=table, operations=np.zeros(len(table), dtype=np.int64), complete=ends[is_new])

    def _report_held(self, records: pa.Table, step: Step) -> None:
        """Count the records of open sessions, with a watermark at which at least one of the sessions ends.

        That is where no record of any key follows within the gap.
        """
        if not len(records):
            return
        times = np.sort(np.asarray(records.column(COMPLETE)))
        breaks = np.flatnonzero(np.diff(times) > self.gap)
        end = int(times[breaks[0] if len(breaks) else -1]) + self.gap
        step.progress.hold(len(records), -(-end // 1000), "a session")


def _run_fold(stage: GroupBy | TopN, step: Step, what: str, fold: Fold) -> Delta:
    """Return the changelog of a stage, and store its new state."""
    delta = stage.segment.run(step)
    step.progress.report(what, total=len(delta.records))
    changes = Changes(records=delta.records, operations=delta.operations)
    try:
        out, step.new[stage.stream] = fold(changes, step.old.get(stage.stream))
    except NothingToRetract as error:
        raise _retraction_error(stage.segment, step, delta, error.row) from error
    except ValueError as error:
        raise _state_mismatch(error) from error
    never = np.zeros(len(out.records), dtype=np.int64)
    return Delta(records=out.records, operations=out.operations, complete=never)


def _retraction_error(segment: Segment, step: Step, delta: Delta, row: int) -> InvalidInput:
    """Return the error for a change that retracts a record which its stream does not have."""
    record = None if delta.numbers is None else segment.record(step, int(delta.numbers[row]))
    if record is None:
        return _state_mismatch(ValueError("they lack a row that is retracted"))
    stream, number = record
    return InvalidChange(
        text=f"{stream.describe(number)} takes back a record that was not there, so the input is not a "
        "valid changelog: reset it to the block before and ingest the records corrected, or exclude them by WHERE"
    )


def _microseconds(table: pa.Table, column: int) -> Numbers:
    return np.asarray(table.column(column).fill_null(NEVER)).astype(np.int64)


def _state_mismatch(error: ValueError) -> InvalidInput:
    return InvalidInput(text=f"the checkpoint's groups do not match the query's: {error}")
