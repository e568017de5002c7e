"""Running aggregates, `f(x) OVER (PARTITION BY keys ORDER BY t)`, over rows in their final order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from odf_engine_spark.aggregates.accumulators import Accumulator
from odf_engine_spark.aggregates.functions import Aggregate, Fold, running_fold
from odf_engine_spark.operators.changes import positional
from odf_engine_spark.operators.group_state import GroupedRows, group_rows, load_groups, store_groups
from odf_engine_spark.values.equality_codes import combine_codes, compact, equality_codes, normalize_keys
from odf_engine_spark.values.operations import Numbers
from odf_engine_spark.values.python_values import Plain


def running(
    records: pa.Table,
    state: pa.Table | None,
    *,
    keys: Sequence[int],
    peers: int | None,
    aggregates: Sequence[Aggregate],
) -> tuple[pa.Table, pa.Table]:
    """Return the values of the aggregates after each record, and the new state; the last columns are the arguments.

    `peers` is the position of a column, or None. With it, records of a partition with equal values in that column share
    the value after the last of them (RANGE); they must be in the same request. Without it, each record has a value of
    its own (ROWS). Raises `ValueError` if `state` is malformed, and `InvalidQuery` for unsupported aggregates.
    """
    arguments = records.columns[len(records.columns) - len(aggregates) :]
    folds = [
        running_fold(aggregate, column.type) for aggregate, column in zip(aggregates, arguments, strict=True)
    ]
    partitions = group_rows(state, [records.column(index) for index in keys], folds, len(records))
    columns = [fold.read(column) for fold, column in zip(folds, arguments, strict=True)]
    values, new_state = _fold(partitions, folds, columns, len(keys))
    results = [fold.write(value) for fold, value in zip(folds, values, strict=True)]
    if peers is not None:
        last = _last_peers(partitions.new_codes, normalize_keys(records.column(peers)))
        results = [result.take(last) for result in results]
    return positional(results), new_state


def _fold(
    partitions: GroupedRows,
    folds: Sequence[Fold[Accumulator[Any]]],
    columns: Sequence[Sequence[Plain]],
    keys: int,
) -> tuple[list[list[Plain]], pa.Table]:
    """Return the value of each aggregate after each new record, and the new state."""
    codes, touched = partitions.new_codes, partitions.touched
    rows = partitions.state.take(pa.array(touched))
    groups = dict(zip(partitions.codes[touched].tolist(), load_groups(folds, rows, keys + 1), strict=True))
    values: list[list[Plain]] = [[] for _ in folds]
    for code in codes.tolist():
        group = groups.get(code)
        if group is None:
            group = groups[code] = [fold.make() for fold in folds]
        for folded, column, out in zip(group, columns, values, strict=True):
            value = column[len(out)]
            if value is not None:
                folded.add(value)
            out.append(folded.value())
    group_codes = np.array(list(groups), dtype=np.int64)
    counts = np.bincount(codes, minlength=2 * len(partitions.codes))
    counts[partitions.codes[touched]] += np.asarray(rows.column(keys))
    births = np.zeros(2 * len(partitions.codes), dtype=np.int64)
    # From the end, since numpy keeps the last value that it assigns: the first row of each group wins.
    births[partitions.codes[::-1]] = np.arange(len(partitions.codes))[::-1]
    births, counted = births[group_codes], pa.array(counts[group_codes], pa.int64())
    return values, partitions.kept(births, [counted, *store_groups(folds, list(groups.values()))])


def _last_peers(codes: Numbers, peers: pa.Array) -> pa.Array:
    both = compact(combine_codes(codes, equality_codes([peers], len(codes))))
    last = np.zeros(2 * len(codes), dtype=np.int64)
    # numpy assigns in order, so the last record with a code wins.
    last[both] = np.arange(len(codes))
    return pa.array(last[both])
