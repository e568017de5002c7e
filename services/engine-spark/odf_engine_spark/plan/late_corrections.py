"""Corrections of closed windows by late records: `/*+ LATE('2 days') */` (RFC-015).

A window closes when the watermark reaches its end, and is then emitted. Records that arrive later, within the declared
bound after the end, correct it block by block: with -C/+C if the output has columns that identify rows, else with -R
and +A. So the output does not depend on how blocks are combined to requests. Its watermark is held back by the bound.

Records that are later than the bound are dropped in `late_records.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from odf_common.data.columns import Operation
from odf_common.errors import InvalidQuery
from odf_engine_spark.analysis.columns import output
from odf_engine_spark.analysis.plan_shape import Node
from odf_engine_spark.analysis.times import FOREVER, Frame, Times, known_of
from odf_engine_spark.plan.delta import ALWAYS, NEVER, Delta, nothing
from odf_engine_spark.plan.late_records import first_ends
from odf_engine_spark.plan.segments import Segment, Step
from odf_engine_spark.spark.logical_plans import COMPLETE
from odf_engine_spark.spark.tree import Tree
from odf_engine_spark.values.operations import Numbers


@dataclass(frozen=True, slots=True)
class LateResult:
    """Rows of windows in total order, and the watermark at which each is complete."""

    rows: pa.Table
    complete: Numbers

    def between(self, after: int, until: int) -> "LateResult":
        """Return the rows that are complete after the watermark `after`, up to and including `until`."""
        chosen = (self.complete > after) & (self.complete <= until)
        return LateResult(self.rows.filter(pa.array(chosen)), self.complete[chosen])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Near:
    """Selects the records that rows complete after `after` up to `until` need, or rows that late records change.

    A row needs records that are complete up to `retention` before it. A row of which some records are not selected
    lacks them both with and without the late records, so its differences cancel out.
    """

    retention: float
    late: Numbers
    after: int
    until: int

    def of(self, records: pa.Table) -> pa.Table:
        """Return the selected records, with their hidden columns."""
        complete = np.asarray(records.column(COMPLETE))
        matters = complete <= self.until
        if self.retention != FOREVER and self.after != NEVER:
            retention = int(self.retention)
            nearest = np.append(self.late, ALWAYS)[np.searchsorted(self.late, complete - retention)]
            matters &= (complete > self.after - retention) | (nearest <= complete + retention)
        return records.filter(pa.array(matters))


def check_late(node: Node) -> None:
    """Raise `InvalidQuery` unless late records can correct the query's rows."""
    if not node.flow.waits or len(node.flow.streams) != 1 or _has_cut(node) or node.flow.period == 1:
        raise InvalidQuery(
            text="the hint LATE is for GROUP BY window(<event time>, '<size>') over one input: remove it, or put "
            "the windows into a dataset of their own"
        )


def run_late(segment: Segment, step: Step, keys: Sequence[int]) -> Delta:
    """Return the windows that close now and the corrections by late records, in the order of the input's blocks.

    `keys` are the positions of the columns that identify a window's rows; empty if no columns do.
    """
    (name,) = segment.flow.streams
    delta, now = step.streams[name], step.watermarks.latest
    reached = NEVER if step.watermarks.before is None else step.watermarks.before
    parts: list[Delta] = []
    for start, end, watermark, late in _late_blocks(delta, segment):
        near = _Near(retention=segment.flow.retention[name], late=late, after=reached, until=watermark)
        # The same windows are computed without and with the block's records: how they differ is the correction.
        before = _results(segment, step, start, near)
        parts.append(_as_new_rows(before.between(reached, watermark)))
        after = _results(segment, step, end, near)
        # Windows that ended earlier cannot be corrected any more.
        oldest = watermark - segment.late
        parts.append(
            _changes_between(before.between(oldest, watermark), after.between(oldest, watermark), keys)
        )
        reached = watermark
    fed = segment.intake(step)[name]
    if len(fed) and now > reached:
        near = _Near(
            retention=segment.flow.retention[name], late=delta.complete[:0], after=reached, until=now
        )
        parts.append(_as_new_rows(_compute(segment, name, near.of(fed)).between(reached, now)))
    parts = [part for part in parts if len(part.records)]
    if not parts:
        return nothing(segment.schema)
    return Delta(
        records=pa.concat_tables([part.records for part in parts]),
        operations=np.concatenate([part.operations for part in parts]),
        complete=np.concatenate([part.complete for part in parts]),
    )


def _late_blocks(delta: Delta, segment: Segment) -> Iterator[tuple[int, int, int, Numbers]]:
    """Yield the blocks that contain records for closed windows.

    For each: its start and end among the records, the watermark before it, and the completion times of those records,
    ascending.
    """
    assert delta.late is not None
    assert delta.blocks is not None
    (rule,) = segment.flow.late.values()
    is_late = first_ends(delta.complete - 1, rule) <= delta.late
    edges = [0, *(np.flatnonzero(np.diff(delta.blocks)) + 1).tolist(), len(delta.blocks)]
    for start, end in pairwise(edges):
        if is_late[start:end].any():
            yield start, end, int(delta.late[start]), np.sort(delta.complete[start:end][is_late[start:end]])


def _results(segment: Segment, step: Step, end: int, near: _Near) -> LateResult:
    """Return the rows of windows over the stored records and the first `end` new ones, restricted to `near`."""
    (name,) = segment.flow.streams
    delta = step.streams[name]
    part = replace(
        delta,
        records=delta.records.slice(0, end),
        operations=delta.operations[:end],
        complete=delta.complete[:end],
        late=None if delta.late is None else delta.late[:end],
    )
    # With a progress of its own: `intake` counts the late records, and here they would be counted once more.
    records = segment.known_records(name, replace(step, streams={name: part}, progress=type(step.progress)()))
    return _compute(segment, name, near.of(records))


def _compute(segment: Segment, name: str, records: pa.Table) -> LateResult:
    if not len(records):
        return LateResult(segment.schema.empty_table(), np.zeros(0, dtype=np.int64))
    rows, hidden = segment.collect({name: records})
    return LateResult(rows, np.asarray(hidden).astype(np.int64))


def _as_new_rows(result: LateResult) -> Delta:
    none = np.zeros(len(result.rows), dtype=np.int64)
    return Delta(records=result.rows, operations=none, complete=result.complete)


def _changes_between(before: LateResult, after: LateResult, keys: Sequence[int]) -> Delta:
    """Return the changes between two results: corrected and retracted rows in their order, then new ones."""
    both = pa.concat_tables([before.rows, after.rows])
    old, total = len(before.rows), len(both)
    chosen = both.select(list(keys)) if keys else both
    names = [repr(row) for row in chosen.to_pylist()]
    values = [repr(row) for row in both.to_pylist()] if keys else names
    new: dict[str, list[int]] = {}
    # Reversed, since `pop` takes the last: rows with equal keys then meet in their order.
    for row in reversed(range(old, total)):
        new.setdefault(names[row], []).append(row)
    rows, operations = [], []
    for row in range(old):
        other = new[names[row]].pop() if new.get(names[row]) else None
        if other is None:
            rows.append(row)
            operations.append(Operation.RETRACT)
        elif values[other] != values[row]:
            rows += [row, other]
            operations += [Operation.CORRECT_FROM, Operation.CORRECT_TO]
    added = sorted(row for left in new.values() for row in left)
    rows += added
    operations += [Operation.APPEND] * len(added)
    complete = np.concatenate([before.complete, after.complete])
    return Delta(
        records=both.take(pa.array(rows, pa.int64())),
        operations=np.array([int(operation) for operation in operations], dtype=np.int64),
        complete=complete[rows] if rows else complete[:0],
    )


def keys_of(node: Node, columns: Sequence[int]) -> tuple[int, ...]:
    """Return the positions of the columns that identify an aggregate's rows, which are all its keys.

    Empty if the output lacks a key.
    """
    keys = _keys(node)
    if keys is None:
        return ()
    key_of, count = keys
    places = [(index, key_of[column]) for index, column in enumerate(columns) if column in key_of]
    return tuple(index for index, _ in places) if {key for _, key in places} == set(range(count)) else ()


def _keys(node: Node) -> tuple[dict[int, int], int] | None:
    """Return the grouping key of each column, by column id, and the number of keys; None if a plan has no keys."""
    tree = node.tree
    if tree.kind == "Aggregate":
        keys = tree.part("groupingExpressions")
        times = node.children[0].flow.times
        own = [_identity(key, times) for key in keys]
        columns = {column.id: _identity(column, times) for column in tree.part("aggregateExpressions")}
        return {column: own.index(field) for column, field in columns.items() if field in own}, len(keys)
    if tree.kind == "Distinct":
        ids = [column for _, column in output(tree)]
        return {column: index for index, column in enumerate(ids)}, len(ids)
    if len(node.children) != 1:
        return None
    key_columns = _keys(node.children[0])
    if key_columns is None or tree.kind != "Project":
        return key_columns
    key_of, count = key_columns
    for column in tree.part("projectList"):
        if column.kind == "Alias" and (source := _identity(column, node.children[0].flow.times)) in key_of:
            key_of[column.id] = key_of[source]
    return key_of, count


def _identity(value: Tree, times: Times) -> object:
    """Return a value that is equal for expressions that identify the same rows; edges of a window count as it."""
    while value.kind == "Alias" or (
        value.kind == "GetStructField" and isinstance(known_of(value.children[0], times), Frame)
    ):
        value = value.children[0]
    if value.kind == "AttributeReference":
        return value.id
    return repr([(node.kind, node.fields.get("value"), node.fields.get("name")) for node in value.walk()])


def _has_cut(node: Node) -> bool:
    return node.cut is not None or any(_has_cut(child) for child in node.children)
