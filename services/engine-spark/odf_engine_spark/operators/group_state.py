"""The state of groups between requests: one row per group, with its keys, number of records and accumulators.

Groups are ordered by their first records. So the same records leave the same state, however they were split into
requests. A state is read from storage that other programs can write to, so an invalid one raises `ValueError`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odf_engine_spark.aggregates.functions import Fold
from odf_engine_spark.values.equality_codes import compact, equality_codes, is_among, normalize_keys
from odf_engine_spark.values.operations import Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedRows:
    """The rows of a state and new records, assigned to groups.

    Rows are numbered through both. The `birth` of a group is the number of its first row.
    """

    state: pa.Table
    keys: Sequence[pa.Array]  # of the state's rows, then of the new records
    codes: Numbers  # the group of each row
    touched: Numbers  # the state's rows whose groups get new records

    @property
    def new_codes(self) -> Numbers:
        """Return the group of each new record."""
        return self.codes[len(self.state) :]

    def born(self, births: Numbers) -> list[pa.Array]:
        """Return the keys of the groups with these births."""
        return [column.take(pa.array(births)) for column in self.keys]

    def kept(self, births: Numbers, columns: Sequence[pa.Array]) -> pa.Table:
        """Return the new state: the groups with these births and columns, and the groups without new records."""
        altered = pa.Table.from_arrays([*self.born(births), *columns], schema=self.state.schema)
        is_other = np.ones(len(self.state), dtype=bool)
        is_other[self.touched] = False
        others = np.flatnonzero(is_other)
        rows = np.concatenate([others, len(self.state) + np.arange(len(births))])
        order = np.argsort(np.concatenate([others, births]), kind="stable")
        # A single take from one chunk leaves nothing stored under nulls, so equal states are equal bytes.
        return pa.concat_tables([self.state, altered]).combine_chunks().take(pa.array(rows[order]))


def group_rows(
    state: pa.Table | None, keys: Sequence[pa.ChunkedArray], folds: Sequence[Fold[Any]], rows: int
) -> GroupedRows:
    """Return the rows of a state, or of no state, and `rows` new records, assigned to groups by their keys.

    A state has the columns of the keys, the number of records per group, then the parts of each aggregate.
    """
    schema = _schema([column.type for column in keys], folds)
    state = schema.empty_table() if state is None else _check_state(state, schema)
    old = len(state)
    columns = [
        normalize_keys(pa.chunked_array([*state.column(index).chunks, *column.chunks], column.type))
        for index, column in enumerate(keys)
    ]
    codes = compact(equality_codes(columns, old + rows))
    if old and np.bincount(codes[:old]).max() > 1:
        raise ValueError("a group occurs in the state twice")
    touched = np.flatnonzero(is_among(codes[:old], codes[old:]))
    return GroupedRows(state=state, keys=columns, codes=codes, touched=touched)


def load_groups(folds: Sequence[Fold[Any]], rows: pa.Table, first: int) -> list[list[Any]]:
    """Return the accumulators in the rows of a state, a list per row; their columns start at `first`."""
    by_aggregate = []
    for fold in folds:
        parts = [part.read(rows.column(first + number)) for number, part in enumerate(fold.parts)]
        by_aggregate.append([fold.make(*state) for state in zip(*parts, strict=True)])
        first += len(fold.parts)
    return (
        [list(group) for group in zip(*by_aggregate, strict=True)]
        if folds
        else [[] for _ in range(len(rows))]
    )


def store_groups(folds: Sequence[Fold[Any]], groups: Sequence[Sequence[Any]]) -> list[pa.Array]:
    """Return the columns of a state for the accumulators of groups."""
    columns = []
    for index, fold in enumerate(folds):
        states = [group[index].state() for group in groups]
        columns += [part.write([state[n] for state in states]) for n, part in enumerate(fold.parts)]
    return columns


def _schema(keys: Sequence[pa.DataType], folds: Sequence[Fold[Any]]) -> pa.Schema:
    fields = [pa.field(f"key {index}", type_) for index, type_ in enumerate(keys)]
    fields.append(pa.field("records", pa.int64(), nullable=False))
    for index, fold in enumerate(folds):
        fields += [
            pa.field(f"aggregate {index} part {number}", part.type, nullable=part.is_nullable)
            for number, part in enumerate(fold.parts)
        ]
    return pa.schema(fields)


def _check_state(state: pa.Table, schema: pa.Schema) -> pa.Table:
    if not state.schema.equals(schema):
        raise ValueError(f"the state has other columns: {state.schema.names}")
    for field, column in zip(schema, state.columns, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"{field.name} is null in the state")
    if len(state) and pc.min(state.column("records")).as_py() < 1:
        raise ValueError("a group in the state has no records")
    return state
