import random
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from odf_common.errors import InvalidInput
from odf_ingest.history.indexes import KeyIndex
from odf_ingest.history.keys import key_array, key_order, with_keys

TRICKY = ["", "\0", "a", "a\0", "a\0\0", "ab", "a" * 64, "a" * 65, "a" * 66, "ä", "\1", "a\1"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(TRICKY),
        pa.array([text.encode() for text in TRICKY], pa.binary()),
        pa.array([b"\xff", b"\xff\0", b"\xfe"], pa.large_binary()),
        pa.array([b"\xff\0", b"\xff\1"], pa.binary(2)),
        pa.array([0, -1, 1, 2**63 - 1, -(2**63)]),
        pa.array([0, 1, 2**64 - 1], pa.uint64()),
        pa.array([0.5, -0.5, 1.5]),
        pa.array([True, False]),
        pa.array([datetime(2020, 1, day, tzinfo=UTC) for day in (1, 2)], pa.timestamp("ms", "UTC")),
        pa.array([1, 2]).cast(pa.decimal128(22, 3)),
    ],
)
def test_keys_are_equal_exactly_where_the_values_are(column: pa.Array) -> None:
    doubled = pa.table({"k": pa.concat_arrays([column, column]), "other": pa.nulls(2 * len(column))})
    keys = key_array(doubled, ["k"])
    assert len(np.unique(keys)) == len(column)
    assert (keys[: len(column)] == keys[len(column) :]).all()


@pytest.mark.parametrize("width", [0, 1, 7, 8, 9, 30, 70])
@pytest.mark.parametrize("count", [0, 1, 2, 500])
def test_keys_are_ordered_as_numpy_orders_them(width: int, count: int) -> None:
    source = random.Random(7)
    texts = [
        "same" + "".join(source.choice("ab\0") for _ in range(source.randint(0, width))) for _ in range(count)
    ]
    for column in (pa.array(texts, pa.string()), pa.array([len(text) - 9 for text in texts], pa.int64())):
        keys = key_array(pa.table({"k": column}), ["k"])
        assert key_order(keys).tolist() == np.argsort(keys, kind="stable").tolist()


def test_columns_of_a_key_do_not_run_into_each_other() -> None:
    table = pa.table({"a": ["x", "xy", "", "xyz"], "b": ["yz", "z", "xyz", ""], "c": [1, 1, 1, 1]})
    assert len(np.unique(key_array(table, ["a", "b", "c"]))) == 4


@pytest.mark.parametrize("columns", [["missing"], ["a"]])
def test_a_key_that_is_missing_or_null_is_refused(columns: list[str]) -> None:
    with pytest.raises(InvalidInput, match=columns[0]):
        key_array(pa.table({"a": [1, None]}), columns)


@pytest.mark.parametrize("columns", [["a"], ["b", "a"]])
def test_a_key_that_cannot_be_one_is_refused_by_its_name(columns: list[str]) -> None:
    with pytest.raises(InvalidInput, match=r"column a: list<.*> cannot be a primary key"):
        key_array(pa.table({"a": [[1]], "b": [1]}), columns)


@pytest.mark.parametrize("is_text", [False, True])
def test_the_index_knows_every_key_ever_added_and_no_other(is_text: bool) -> None:
    source = random.Random(7)
    index, known = KeyIndex(), set()
    for _ in range(60):
        numbers = [source.randrange(5000) for _ in range(source.choice([0, 1, 10, 300]))]
        column = (
            pa.array([f"k{n}" for n in numbers], pa.string()) if is_text else pa.array(numbers, pa.int64())
        )
        keys = key_array(pa.table({"k": column}), ["k"])
        places, fresh = index.fresh(keys)
        expected = [n for at, n in enumerate(numbers) if n not in known and n not in numbers[:at]]
        assert [numbers[place] for place in places] == expected
        index.add(fresh)
        known |= set(numbers)
    assert len(index) == len(known)


def test_runs_stay_few() -> None:
    index = KeyIndex()
    for number in range(5000):
        index.add(np.array([number]))
    assert len(index.store.runs) <= 35


def test_only_records_with_a_value_in_every_key_column_have_a_key() -> None:
    table = pa.table({"a": [1, None, 3], "b": ["x", "y", None]})
    assert with_keys(table, ["a", "b"]).to_pylist() == [{"a": 1, "b": "x"}]
    assert with_keys(table, ["a"]).num_rows == 2
    assert with_keys(table, ["a", "c"]).num_rows == with_keys(table, ["c"]).num_rows == 0
