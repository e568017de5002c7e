"""The top N rows per partition, `row_number() <= limit`, as a changelog keyed by partition and rank (RFC-015)."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odf_engine_spark.operators.changes import (
    FROM,
    TAKES_AWAY,
    ChangelogBuilder,
    Changes,
    NothingToRetract,
    canonical,
    positional,
    steps,
)
from odf_engine_spark.values.equality_codes import (
    combine_codes,
    compact,
    equality_codes,
    in_one_piece,
    is_among,
    normalize_keys,
    order_codes,
)
from odf_engine_spark.values.operations import Numbers

Flags = npt.NDArray[np.bool_]
FIRST: Final = pa.field("first", pa.bool_(), nullable=False)  # in the state: whether a row is in the top N


@dataclass(frozen=True, slots=True)
class SortKey:
    """A key of ORDER BY: the position of its column, and its sort order."""

    column: int
    is_ascending: bool = True
    nulls_first: bool = True


@dataclass(slots=True)
class TopRows:
    """The rows of one partition, as numbers that sort like the rows; only the first `limit` are emitted."""

    limit: int
    first: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)  # a heap; may contain removed rows
    gone: set[int] = field(default_factory=set)

    def add(self, key: int) -> None:
        """Insert a row."""
        if len(self.first) < self.limit:
            insort(self.first, key)
        # With a limit of 0 there is no first row to compare with.
        elif self.limit and key < self.first[-1]:
            insort(self.first, key)
            heappush(self.others, self.first.pop())
        else:
            heappush(self.others, key)

    def take(self, key: int) -> None:
        """Remove an existing row; the next row may then move up to the first ones."""
        index = bisect_left(self.first, key)
        if index == len(self.first) or self.first[index] != key:
            # It is inside the heap, and skipped when it comes to the top.
            self.gone.add(key)
            return
        del self.first[index]
        while self.others:
            following = heappop(self.others)
            if following not in self.gone:
                self.first.append(following)
                return
            self.gone.discard(following)


@dataclass(slots=True, kw_only=True)
class _Ranking:
    """The rows of the state (the first `old` ones) and new rows, the partitions that change, and the output."""

    rows: pa.Table
    old: int
    partitions: Numbers
    keys: Numbers  # sort by order, then arrival; modulo the number of rows they are the row's number
    tops: dict[int, TopRows]
    limit: int
    out: ChangelogBuilder = field(default_factory=ChangelogBuilder)
    numbers: list[int] = field(default_factory=list)  # ranks of the emitted rows

    def apply(self, changed: Numbers) -> Flags:
        """Apply all changes, and emit their effects; returns a mask of the rows that remain."""
        operations = changed.tolist()
        partitions, keys = self.partitions[self.old :].tolist(), self.keys[self.old :].tolist()
        codes, by_code = _rows_by_code(self.rows, changed, self.old)
        mask = np.ones(len(self.rows), dtype=bool)
        for start, end in steps(operations):
            before: dict[int, list[int]] = {}
            for index in range(start, end):
                top = self.tops.setdefault(partitions[index], TopRows(self.limit))
                # As of the beginning of the change: a correction within a partition shows one difference, not two.
                before.setdefault(partitions[index], top.first.copy())
                equal_rows = by_code.get(codes[index]) if codes else None
                if operations[index] not in TAKES_AWAY:
                    top.add(keys[index])
                    if equal_rows is not None:
                        equal_rows.append(self.old + index)
                    continue
                mask[self.old + index] = False
                if not equal_rows:
                    raise NothingToRetract(index)
                row = equal_rows.pop()
                mask[row] = False
                top.take(int(self.keys[row]))
            for partition, first in before.items():
                self._show(first, self.tops[partition].first)
        return mask

    def _show(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Emit the difference between two lists of top rows, by ascending rank."""
        total = len(self.rows)
        for index in range(max(len(before), len(after))):
            if index >= len(before):
                self.out.add(after[index] % total)
                self.numbers.append(index + 1)
            elif index >= len(after):
                self.out.take(before[index] % total)
                self.numbers.append(index + 1)
            elif before[index] != after[index]:
                self.out.correct(before[index] % total, after[index] % total)
                self.numbers.extend((index + 1, index + 1))

    def is_first(self, flags: Flags) -> Flags:
        """Return a mask of the rows in the top N; `flags` is that mask for partitions that have not changed."""
        changed = np.array(list(self.tops), dtype=np.int64)
        flags = flags & ~is_among(self.partitions, changed)
        rows = [key % len(self.rows) for top in self.tops.values() for key in top.first]
        flags[np.array(rows, dtype=np.int64)] = True
        return flags


def top_n(
    changes: Changes,
    state: pa.Table | None,
    *,
    partition: Sequence[int],
    order: Sequence[SortKey],
    limit: int,
    outputs: int | None = None,
) -> tuple[Changes, pa.Table]:
    """Return the changelog of the top-N rows per partition, and the new state, which has all rows in order of arrival.

    Results have the first `outputs` columns (by default all) and the rank, an int32 that starts at 1. Of rows that tie,
    the earlier one ranks first. A retraction removes the latest row that is equal in all columns. Without retractions,
    only the top rows of the state are processed. Raises `ValueError` if `state` is malformed, `InvalidQuery` for types
    that cannot be ordered, and `NothingToRetract` if no row is equal.
    """
    new = positional(changes.records.columns)
    old, flags = _read_state(state, new.schema)
    takes = np.isin(changes.operations, list(TAKES_AWAY)).any()
    # In place of a removed row any other may move up, so retractions need all of them.
    pool = np.arange(len(old)) if takes else np.flatnonzero(flags)
    rows = pa.concat_tables([old if takes else old.take(pa.array(pool)), new])
    partitions = compact(
        equality_codes([normalize_keys(rows.column(index)) for index in partition], len(rows))
    )
    ranks = _ranks(rows, order)
    ranking = _Ranking(
        rows=rows,
        old=len(pool),
        partitions=partitions,
        # Unique numbers in the order of the rows: by rank, and where ranks are equal by arrival.
        keys=ranks * max(len(rows), 1) + np.arange(len(rows)),
        tops=_changed_partitions(partitions, ranks, len(pool), limit),
        limit=limit,
    )
    held = np.append(flags[pool], np.zeros(len(new), dtype=bool))
    # The state comes from storage that others can write to, and is read by its marks from here on.
    if (ranking.is_first(held) != held).any():
        raise ValueError("the top rows marked in the state are not those of its rows")
    mask = ranking.apply(changes.operations)
    held = ranking.is_first(held)
    flags[pool], stays = held[: len(pool)], np.ones(len(old), dtype=bool)
    stays[pool] = mask[: len(pool)]
    everything = pa.concat_tables([old, canonical(new)])
    everything = everything.append_column(FIRST, pa.array(np.append(flags, held[len(pool) :])))
    if takes:
        everything = everything.filter(pa.array(np.append(stays, mask[len(pool) :])))
    return _results(ranking, len(new.columns) if outputs is None else outputs), everything.combine_chunks()


def _read_state(state: pa.Table | None, schema: pa.Schema) -> tuple[pa.Table, Flags]:
    """Return the rows of a state, or no rows, and a mask of those in the top N."""
    if state is None:
        return schema.empty_table(), np.zeros(0, dtype=bool)
    if state.schema != schema.append(FIRST) or state.column(FIRST.name).null_count:
        raise ValueError(f"the state has other columns: {state.schema.names}")
    return state.drop_columns([FIRST.name]), np.array(state.column(FIRST.name), dtype=bool)


def _ranks(rows: pa.Table, order: Sequence[SortKey]) -> Numbers:
    ranks = np.zeros(len(rows), dtype=np.int64)
    for key in order:
        column = rows.column(key.column)
        ranks = combine_codes(
            ranks, order_codes(column, is_ascending=key.is_ascending, nulls_first=key.nulls_first)
        )
    return compact(ranks)


def _changed_partitions(partitions: Numbers, ranks: Numbers, old: int, limit: int) -> dict[int, TopRows]:
    """Return the partitions that have new rows, with all their rows."""
    touched = np.flatnonzero(is_among(partitions[:old], partitions[old:]))
    touched = touched[np.argsort(combine_codes(partitions[touched], ranks[touched]), kind="stable")]
    changed_codes, edges = np.unique(partitions[touched], return_index=True)
    keys = (ranks * len(ranks) + np.arange(len(ranks)))[touched].tolist()
    changed, ends = {}, [*edges.tolist(), len(touched)][1:]
    for partition, start, end in zip(changed_codes.tolist(), edges.tolist(), ends, strict=True):
        middle = min(start + limit, end)
        # A sorted list is a heap.
        changed[partition] = TopRows(limit, keys[start:middle], keys[middle:end])
    return changed


def _rows_by_code(rows: pa.Table, operations: Numbers, old: int) -> tuple[list[int], dict[int, list[int]]]:
    """Return a code per new row that is the same for equal rows, and the existing rows by code, for retracted codes."""
    takes = np.isin(operations, list(TAKES_AWAY))
    if not takes.any():
        return [], {}
    codes = equality_codes([normalize_keys(column) for column in rows.columns], len(rows))
    by_code: dict[int, list[int]] = {code: [] for code in codes[old:][takes].tolist()}
    held = np.flatnonzero(np.isin(codes[:old], codes[old:][takes]))
    for row, code in zip(held.tolist(), codes[held].tolist(), strict=True):
        by_code[code].append(row)
    return codes[old:].tolist(), by_code


def _results(ranking: _Ranking, outputs: int) -> Changes:
    """Return the changelog without corrections that change no visible column."""
    operations = np.array(ranking.out.operations, dtype=np.int64)
    rows = ranking.rows.select(range(outputs)).take(pa.array(ranking.out.rows, pa.int64()))
    codes = equality_codes([in_one_piece(column) for column in rows.columns], len(operations))
    is_same = np.append((operations[:-1] == FROM) & (codes[:-1] == codes[1:]), False)[: len(operations)]
    is_same[1:] |= is_same[:-1].copy()
    columns = [*rows.columns, pa.array(ranking.numbers, pa.int32())]
    records = positional(columns).filter(pa.array(~is_same))
    return Changes(records=records, operations=operations[~is_same])
