"""Which version was valid at a given time, compared with a scan of all versions."""

import math
import random

import numpy as np
import pyarrow as pa

from odf_engine_spark.operators.temporal_join import as_of


def keys(*columns: list[object]) -> pa.Table:
    return pa.table([pa.array(column) for column in columns], names=[str(at) for at in range(len(columns))])


def times(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def test_the_last_version_up_to_the_given_time_is_valid() -> None:
    right = keys(["a", "a", "b", "a"])
    found = as_of(keys(["a", "a", "a", "a", "b", "c"]), times(0, 1, 4, 9, 2, 9), right, times(1, 5, 3, 5))
    assert found.tolist() == [-1, 0, 0, 3, -1, -1]


def test_null_keys_equal_nothing_and_zeros_and_nans_each_other() -> None:
    left, right = keys([None, -0.0, math.nan]), keys([None, 0.0, -math.nan])
    assert as_of(left, times(5, 5, 5), right, times(1, 1, 1)).tolist() == [-1, 1, 2]


def test_without_versions_or_rows_nothing_is_found() -> None:
    some, none = keys([1, 2]), keys([1, 2]).slice(0, 0)
    assert as_of(some, times(1, 2), none, times()).tolist() == [-1, -1]
    assert as_of(none, times(), some, times(1, 2)).tolist() == []


def test_any_keys_and_times() -> None:
    source = random.Random(4)

    def some(count: int) -> tuple[list[object], list[object], list[int]]:
        one: list[object] = [source.choice(["a", "b", None]) for _ in range(count)]
        two: list[object] = [source.randrange(3) for _ in range(count)]
        return one, two, [source.randrange(-20, 20) for _ in range(count)]

    for _ in range(20):
        left, right = some(30), some(40)
        found = as_of(keys(*left[:2]), times(*left[2]), keys(*right[:2]), times(*right[2]))
        versions = list(zip(*right, strict=True))
        for row, at in zip(zip(*left, strict=True), found.tolist(), strict=True):
            held = [
                (version[2], number)
                for number, version in enumerate(versions)
                if row[0] is not None and version[:2] == row[:2] and version[2] <= row[2]
            ]
            assert at == (max(held)[1] if held else -1)
