"""Keys of any type and range are sorted with the right rows, and two that are equal are refused."""

import numpy as np
import pyarrow as pa
import pytest

from odf_ingest.merge.difference import PARALLEL_ROWS, RepeatedKey, begin_sorting

LOW, HIGH = np.iinfo(np.int64).min, np.iinfo(np.int64).max
SPREADS = {
    "dense": [5, 3, 4, 1, 2],
    "negative": [-1, -5, 0, 3, -2],
    "both ends": [HIGH, LOW, 0],
    "as wide as fits next to three rows": [1 << 60, 0, 7],
    "just as wide as fits next to three rows": [(1 << 61) - 1, 0, 7],
    "just wider than fits next to three rows": [1 << 61, 0, 7],
    "wider than fits next to three rows": [1 << 62, 0, -(1 << 61)],
    "at the top": [HIGH, HIGH - 2, HIGH - 1],
    "at the bottom": [LOW + 1, LOW, LOW + 2],
}


@pytest.mark.parametrize("keys", SPREADS.values(), ids=SPREADS)
@pytest.mark.parametrize("type_", [pa.int64(), pa.string()], ids=str)
def test_rows_follow_their_keys(keys: list[int], type_: pa.DataType) -> None:
    column = pa.array(keys, pa.int64()).cast(type_, safe=False)
    found = begin_sorting(pa.table({"id": column}), ("id",))()
    assert sorted(found.rows.tolist()) == list(range(len(keys)))
    assert np.all(np.greater(found.keys[1:], found.keys[:-1]))
    if type_ != pa.string():
        assert column.take(pa.array(found.rows)).to_pylist() == sorted(column.to_pylist())


def test_large_unsigned_keys_are_sorted() -> None:
    column = pa.array([2**64 - 1, 0, 2**63, 2**63 - 1], pa.uint64())
    assert begin_sorting(pa.table({"id": column}), ("id",))().rows.tolist() == [1, 3, 2, 0]


@pytest.mark.parametrize("count", [PARALLEL_ROWS - 1, PARALLEL_ROWS])
def test_equal_keys_are_refused(count: int) -> None:
    keys = np.random.default_rng(7).permutation(count)
    assert begin_sorting(pa.table({"id": keys}), ("id",))().keys.tolist() == list(range(count))
    keys[count // 2] = keys[0]
    keys[-1] = keys[count // 2 + 1]
    with pytest.raises(
        RepeatedKey, match=rf"the key id = {keys[0]} in 2 records: records 1 and {count // 2 + 1}$"
    ):
        begin_sorting(pa.table({"id": keys}), ("id",))()
