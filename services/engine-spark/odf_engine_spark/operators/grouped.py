"""GROUP BY without windows, as a changelog: each change of the input changes the row of one or two groups."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from odf_engine_spark.aggregates.accumulators import Retractable
from odf_engine_spark.aggregates.functions import Aggregate, Fold, changing_fold
from odf_engine_spark.operators.changes import (
    APPEND,
    FROM,
    RETRACT,
    TAKES_AWAY,
    TO,
    Changes,
    NothingToRetract,
    positional,
    steps,
)
from odf_engine_spark.operators.group_state import GroupedRows, group_rows, load_groups, store_groups
from odf_engine_spark.values.python_values import Plain


@dataclass(slots=True)
class _Group:
    """A group: the number of its first record, its number of records, and its accumulators."""

    birth: int
    records: int
    folded: list[Retractable[Any]]
    shown: tuple[Plain, ...] | None = None  # emitted last, if anything


@dataclass(slots=True)
class _Grouping:
    """Groups that are being changed, and their output: operations, births of groups, and values of each aggregate."""

    folds: Sequence[Fold[Retractable[Any]]]
    arguments: Sequence[Sequence[Plain]]
    groups: dict[int, _Group]
    values: Sequence[list[Plain]]
    operations: list[int] = field(default_factory=list)
    births: list[int] = field(default_factory=list)

    def add(self, code: int, row: int, birth: int) -> None:
        """Add a record to its group, which is created if it does not exist."""
        group = self.groups.get(code)
        if group is None:
            group = self.groups[code] = _Group(birth, 0, [fold.make() for fold in self.folds])
        group.records += 1
        for folded, values in zip(group.folded, self.arguments, strict=True):
            value = values[row]
            if value is not None:
                folded.add(value)

    def take(self, code: int, row: int) -> None:
        """Remove a record from its group; raises `NothingToRetract` if the group cannot contain it."""
        group = self.groups.get(code)
        if group is None:
            raise NothingToRetract(row)
        group.records -= 1
        for folded, values in zip(group.folded, self.arguments, strict=True):
            value = values[row]
            if value is not None and not folded.take(value):
                raise NothingToRetract(row)
        if not group.records and any(folded.value() for folded in group.folded):
            raise NothingToRetract(row)

    def show(self, code: int) -> None:
        """Emit the change of a group's row since it was last emitted."""
        group = self.groups[code]
        old = group.shown
        if not group.records:
            del self.groups[code]
            if old is not None:
                self.put(RETRACT, group.birth, old)
            return
        new = tuple([folded.value() for folded in group.folded])
        if old is None:
            self.put(APPEND, group.birth, new)
        elif new != old:
            self.put(FROM, group.birth, old)
            self.put(TO, group.birth, new)
        group.shown = new

    def put(self, operation: int, birth: int, values: tuple[Plain, ...]) -> None:
        """Emit a row with an operation."""
        self.operations.append(operation)
        self.births.append(birth)
        for column, value in zip(self.values, values, strict=True):
            column.append(value)


def aggregate_groups(
    changes: Changes, state: pa.Table | None, *, keys: int, aggregates: Sequence[Aggregate]
) -> tuple[Changes, pa.Table]:
    """Return the changelog of the groups, and the new state.

    The records have `keys` key columns, then one argument per aggregate. The results have the keys, then the values of
    the aggregates. A group exists as long as it has records; without aggregates its row is only its key, as for
    DISTINCT. Raises `ValueError` if `state` is malformed, `InvalidQuery` for unsupported aggregates, and
    `NothingToRetract` for a record that its group does not have.
    """
    by, inputs = changes.records.columns[:keys], changes.records.columns[keys:]
    folds = [
        changing_fold(aggregate, column.type) for aggregate, column in zip(aggregates, inputs, strict=True)
    ]
    groups = group_rows(state, by, folds, len(changes.operations))
    arguments = [fold.read(column) for fold, column in zip(folds, inputs, strict=True)]
    grouping = _Grouping(folds, arguments, _load_touched_groups(groups, folds, keys), [[] for _ in folds])
    _apply(grouping, groups.new_codes.tolist(), changes.operations.tolist(), len(groups.state))
    return _results(grouping, groups), _new_state(grouping, groups)


def _load_touched_groups(
    groups: GroupedRows, folds: Sequence[Fold[Retractable[Any]]], keys: int
) -> dict[int, _Group]:
    rows = groups.state.take(pa.array(groups.touched))
    accumulators = load_groups(folds, rows, keys + 1)
    # What was emitted last follows from the accumulators, so the state need not have it.
    shown = [tuple([folded.value() for folded in group]) for group in accumulators]
    values = map(_Group, groups.touched.tolist(), rows.column(keys).to_pylist(), accumulators, shown)
    return dict(zip(groups.codes[groups.touched].tolist(), values, strict=True))


def _apply(grouping: _Grouping, codes: Sequence[int], operations: Sequence[int], old: int) -> None:
    for start, end in steps(operations):
        code = codes[start]
        if operations[start] in TAKES_AWAY:
            grouping.take(code, start)
        else:
            grouping.add(code, start, old + start)
        if end - start == 1:
            grouping.show(code)
            continue
        other = codes[start + 1]
        # A correction that moves a record to another group changes two rows, otherwise one.
        if other != code:
            grouping.show(code)
        grouping.add(other, start + 1, old + start + 1)
        grouping.show(other)


def _results(grouping: _Grouping, groups: GroupedRows) -> Changes:
    births = np.array(grouping.births, dtype=np.int64)
    columns = [fold.write(values) for fold, values in zip(grouping.folds, grouping.values, strict=True)]
    return Changes(
        records=positional([*groups.born(births), *columns]),
        operations=np.array(grouping.operations, dtype=np.int64),
    )


def _new_state(grouping: _Grouping, groups: GroupedRows) -> pa.Table:
    kept_groups = list(grouping.groups.values())
    records = pa.array([group.records for group in kept_groups], pa.int64())
    births = np.array([group.birth for group in kept_groups], dtype=np.int64)
    return groups.kept(
        births, [records, *store_groups(grouping.folds, [group.folded for group in kept_groups])]
    )
