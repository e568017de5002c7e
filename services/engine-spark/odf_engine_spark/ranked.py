"""The first rows of each partition, `row_number() <= limit`, as a changelog keyed by partition and place (RFC-015)."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
import pyarrow as pa

from odf_engine_spark.changelog import Numbers
from odf_engine_spark.changes import TAKES_AWAY, Altered, Changes, canonical, positional, steps
from odf_engine_spark.codes import (
    combined,
    compact,
    equality_codes,
    in_one_piece,
    is_among,
    normalized,
    order_codes,
)


@dataclass(frozen=True, slots=True)
class Order:
    """A key of ORDER BY: the column's place, and how it orders."""

    column: int
    is_ascending: bool = True
    nulls_first: bool = True


@dataclass(slots=True)
class _Places:
    """A partition: the rows in the first places, and the others, by a number that orders as they do."""

    limit: int
    first: list[int]
    others: list[int] = field(default_factory=list)  # a heap; some may be gone
    gone: set[int] = field(default_factory=set)

    def add(self, key: int) -> None:
        if len(self.first) < self.limit:
            insort(self.first, key)
        elif self.limit and key < self.first[-1]:
            insort(self.first, key)
            heappush(self.others, self.first.pop())
        else:
            heappush(self.others, key)

    def take(self, key: int) -> None:
        at = bisect_left(self.first, key)
        if at == len(self.first) or self.first[at] != key:
            self.gone.add(key)
            return
        del self.first[at]
        while self.others:
            following = heappop(self.others)
            if following not in self.gone:
                self.first.append(following)
                return
            self.gone.discard(following)


@dataclass(slots=True)
class _Ranking:
    """Partitions that change, and what came out: a row's number and its place."""

    total: int  # of the rows
    keys: list[int]  # a row's number among all, by order and arrival; the remainder by `total` is the row
    partitions: list[int]
    shown: list[int]  # rows of one number look the same
    places: dict[int, _Places]
    limit: int
    out: Altered = field(default_factory=Altered)
    numbers: list[int] = field(default_factory=list)

    def of(self, partition: int) -> _Places:
        """Return a partition, new if it has no rows."""
        found = self.places.get(partition)
        if found is None:
            found = self.places[partition] = _Places(self.limit, [])
        return found

    def show(self, before: Sequence[int], after: Sequence[int]) -> None:
        """Put out how the first places differ, in ascending order."""
        for at in range(max(len(before), len(after))):
            if at >= len(before):
                self.out.add(after[at] % self.total)
                self.numbers.append(at + 1)
            elif at >= len(after):
                self.out.take(before[at] % self.total)
                self.numbers.append(at + 1)
            elif before[at] != after[at]:
                old, new = before[at] % self.total, after[at] % self.total
                if self.shown[old] != self.shown[new]:
                    self.out.correct(old, new)
                    self.numbers.extend((at + 1, at + 1))


def ranked(
    changes: Changes,
    state: pa.Table | None,
    *,
    partition: Sequence[int],
    order: Sequence[Order],
    limit: int,
    outputs: int | None = None,
) -> tuple[Changes, pa.Table]:
    """Return how the first `limit` rows of each partition change, and the new state: every row, as it came.

    Results have the first `outputs` columns, all by default, and the place, int32, from 1. Of equal rows the earlier
    has the lower place. A retraction takes away the latest row that is equal in all columns, or does nothing. Raises
    `ValueError` for a state that is none, `InvalidQuery` for types without order.
    """
    new = positional(changes.records.columns)
    old = new.schema.empty_table() if state is None else state
    if old.schema != new.schema:
        raise ValueError(f"a state of other columns: {old.schema.names}")
    rows = pa.concat_tables([old, new])
    total, shown = len(rows), len(new.columns) if outputs is None else outputs
    partitions = compact(equality_codes([normalized(rows.column(at)) for at in partition], total))
    keys = np.zeros(total, dtype=np.int64)
    for each in order:
        codes = order_codes(
            rows.column(each.column), is_ascending=each.is_ascending, nulls_first=each.nulls_first
        )
        keys = combined(keys, codes)
    keys = compact(keys) * max(total, 1) + np.arange(total)
    ranking = _Ranking(
        total=total,
        keys=keys.tolist(),
        partitions=partitions.tolist(),
        shown=equality_codes([in_one_piece(column) for column in rows.columns[:shown]], total).tolist(),
        places=_known(partitions, keys, len(old), limit),
        limit=limit,
    )
    kept = _rank(ranking, rows, changes.operations, len(old))
    found = rows.select(range(shown)).take(pa.array(ranking.out.rows, pa.int64()))
    columns = [*found.columns, pa.array(ranking.numbers, pa.int32())]
    out = Changes(records=positional(columns), operations=np.array(ranking.out.operations, dtype=np.int64))
    return out, canonical(rows.filter(pa.array(kept, pa.bool_())))


def _known(partitions: Numbers, keys: Numbers, old: int, limit: int) -> dict[int, _Places]:
    """Return the partitions that change, with the rows that they have."""
    touched = np.flatnonzero(is_among(partitions[:old], partitions[old:]))
    touched = touched[np.lexsort((keys[touched], partitions[touched]))]
    found, edges = np.unique(partitions[touched], return_index=True)
    ordered, ends = keys[touched].tolist(), [*edges.tolist(), len(touched)][1:]
    known = {}
    for partition, start, end in zip(found.tolist(), edges.tolist(), ends, strict=True):
        middle = min(start + limit, end)
        # What is sorted is a heap.
        known[partition] = _Places(limit, ordered[start:middle], ordered[middle:end])
    return known


def _standing(rows: pa.Table, operations: Numbers, old: int) -> tuple[list[int], dict[int, list[int]]]:
    """Return what equal rows have in common, and of those that are taken away at some time the ones that stand."""
    takes = np.isin(operations, list(TAKES_AWAY))
    if not takes.any():
        return [], {}
    codes = equality_codes([normalized(column) for column in rows.columns], len(rows))
    known: dict[int, list[int]] = {code: [] for code in codes[old:][takes].tolist()}
    held = np.flatnonzero(np.isin(codes[:old], codes[old:][takes]))
    for row, code in zip(held.tolist(), codes[held].tolist(), strict=True):
        known[code].append(row)
    return codes.tolist(), known


def _rank(ranking: _Ranking, rows: pa.Table, changed: Numbers, old: int) -> list[bool]:
    """Apply each change and show what it did; return which rows are there in the end."""
    operations = changed.tolist()
    codes, standing = _standing(rows, changed, old)
    kept = [True] * len(rows)
    for start, end in steps(operations):
        before: dict[int, list[int]] = {}
        for row in range(old + start, old + end):
            partition = ranking.partitions[row]
            places = ranking.of(partition)
            before.setdefault(partition, places.first.copy())
            if operations[row - old] not in TAKES_AWAY:
                places.add(ranking.keys[row])
                if codes and codes[row] in standing:
                    standing[codes[row]].append(row)
                continue
            kept[row] = False
            if standing[codes[row]]:
                taken = standing[codes[row]].pop()
                kept[taken] = False
                places.take(ranking.keys[taken])
        for partition, first in before.items():
            ranking.show(first, ranking.places[partition].first)
    return kept
