"""Groups on their way through requests: a state has a row a group, with its keys, numbers and accumulators.

Groups stand in the order in which they began, so the same records, however they were cut, leave the same state.
It comes back from storage that anyone may have written: `ValueError` unless it is what was written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odf_engine_spark.aggregates.functions import Fold
from odf_engine_spark.values.equality_codes import compact, equality_codes, is_among, normalized
from odf_engine_spark.values.operations import Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """A state and new records by group. Rows of both are counted through; a group's birth is the first of its own."""

    state: pa.Table
    keys: Sequence[pa.Array]  # of the state's rows, then of the new ones
    codes: Numbers  # of the groups, a number a row
    touched: Numbers  # the state's rows whose groups have new records

    @property
    def new_codes(self) -> Numbers:
        """Return the groups of the new records."""
        return self.codes[len(self.state) :]

    def born(self, births: Numbers) -> list[pa.Array]:
        """Return the keys of the groups of these births."""
        return [column.take(pa.array(births)) for column in self.keys]

    def kept(self, births: Numbers, columns: Sequence[pa.Array]) -> pa.Table:
        """Return the new state: the groups of these births with these columns, and those without new records."""
        altered = pa.Table.from_arrays([*self.born(births), *columns], schema=self.state.schema)
        is_other = np.ones(len(self.state), dtype=bool)
        is_other[self.touched] = False
        others = np.flatnonzero(is_other)
        rows = np.concatenate([others, len(self.state) + np.arange(len(births))])
        order = np.argsort(np.concatenate([others, births]), kind="stable")
        # One take from one chunk: it leaves nothing behind nulls, so equal states are the same bytes.
        return pa.concat_tables([self.state, altered]).combine_chunks().take(pa.array(rows[order]))


def keyed(
    state: pa.Table | None, keys: Sequence[pa.ChunkedArray], folds: Sequence[Fold[Any]], rows: int
) -> Keyed:
    """Return the state, empty for None, and new records, as many as `rows`, by their keys.

    A state has the keys, how many records a group has, then the parts of each aggregate.
    """
    schema = _schema([column.type for column in keys], folds)
    state = schema.empty_table() if state is None else _checked(state, schema)
    old = len(state)
    columns = [
        normalized(pa.chunked_array([*state.column(at).chunks, *column.chunks], column.type))
        for at, column in enumerate(keys)
    ]
    codes = compact(equality_codes(columns, old + rows))
    if old and np.bincount(codes[:old]).max() > 1:
        raise ValueError("a group stands in the state twice")
    touched = np.flatnonzero(is_among(codes[:old], codes[old:]))
    return Keyed(state=state, keys=columns, codes=codes, touched=touched)


def loaded(folds: Sequence[Fold[Any]], rows: pa.Table, first: int) -> list[list[Any]]:
    """Return the accumulators of groups, a list a row; their parts begin at column `first`."""
    by_aggregate = []
    for fold in folds:
        parts = [part.read(rows.column(first + place)) for place, part in enumerate(fold.parts)]
        by_aggregate.append([fold.make(*state) for state in zip(*parts, strict=True)])
        first += len(fold.parts)
    return (
        [list(group) for group in zip(*by_aggregate, strict=True)]
        if folds
        else [[] for _ in range(len(rows))]
    )


def stored(folds: Sequence[Fold[Any]], groups: Sequence[Sequence[Any]]) -> list[pa.Array]:
    """Return the columns of the groups' accumulators."""
    columns = []
    for at, fold in enumerate(folds):
        states = [group[at].state() for group in groups]
        columns += [part.write([state[n] for state in states]) for n, part in enumerate(fold.parts)]
    return columns


def _schema(keys: Sequence[pa.DataType], folds: Sequence[Fold[Any]]) -> pa.Schema:
    fields = [pa.field(f"key {at}", type_) for at, type_ in enumerate(keys)]
    fields.append(pa.field("records", pa.int64(), nullable=False))
    for at, fold in enumerate(folds):
        fields += [
            pa.field(f"aggregate {at} part {place}", part.type, nullable=part.is_nullable)
            for place, part in enumerate(fold.parts)
        ]
    return pa.schema(fields)


def _checked(state: pa.Table, schema: pa.Schema) -> pa.Table:
    if not state.schema.equals(schema):
        raise ValueError(f"a state of other columns: {state.schema.names}")
    for field, column in zip(schema, state.columns, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"{field.name} of the state is null")
    if len(state) and pc.min(state.column("records")).as_py() < 1:
        raise ValueError("a group of the state has no records")
    return state
