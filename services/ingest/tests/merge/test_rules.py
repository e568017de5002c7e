"""The rules that all merges share: operations, the order of records, equal values and keys."""

import math
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odf_common.data.columns import Operation
from odf_common.data.slices import hash_slice, read_slice, write_slice
from odf_common.errors import InvalidInput
from odf_common.metadata.events import (
    DatasetVocabulary,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
)
from odf_ingest.errors import IncompleteCorrection
from odf_ingest.history.keys import comparable, equal, key_array
from odf_ingest.merge.difference import PARALLEL_ROWS, RepeatedKey, begin_sorting
from odf_ingest.merge.interface import History, by_event_time, by_key
from odf_ingest.merge.strategies import merge, operation_faults, operations

TIMESTAMPS = pa.timestamp("ms", "UTC")


@pytest.mark.parametrize("ops", [[0, None], [0, 4], [-1], ["x"]])
def test_an_invalid_operation_is_refused(ops: list[object]) -> None:
    with pytest.raises(InvalidInput, match="column op"):
        operations(pa.table({"op": pa.array(ops)}), "op")


def test_all_operations_are_taken_as_bytes() -> None:
    found = operations(pa.table({"op": pa.chunked_array([[0, 1], [2, 3]])}), "op")
    assert (found.type, found.to_pylist()) == (pa.uint8(), [*map(int, Operation)])


def test_records_of_one_key_are_ordered_by_operation_and_otherwise_stay_as_they_were() -> None:
    records = pa.table({"id": [2, 1, 1, 1], "v": ["a", "b", "c", "d"]})
    ordered, ops = by_key(records, pa.array([0, 3, 2, 3], pa.uint8()), ("id",))
    assert ordered["v"].to_pylist() == ["c", "b", "d", "a"]
    assert ops.to_pylist() == [2, 3, 3, 0]


def test_records_that_are_ordered_are_not_copied() -> None:
    for times in ([1, 2, 2], [7], []):
        records = pa.table({"at": pa.array(times, pa.timestamp("ms", "UTC"))})
        assert by_event_time(records, "at") is records


A, FROM, TO = 0, 2, 3


@pytest.mark.parametrize(
    ("rows", "record", "whole", "may_come"),
    [
        ([(FROM, 1), (TO, 2)], "record 1: a -C without a +C after it", 0, False),
        ([(FROM, 1), (TO, 2), (TO, 1)], "record 2: a +C without a -C before it", 0, False),
        ([(TO, 1), (FROM, 1)], "record 1: a +C without", 0, False),
        ([(FROM, 1), (A, 9), (TO, 1), (TO, 1)], "record 4: a +C without", 3, False),
        ([(A, 9), (FROM, 1), (TO, 1), (FROM, 2), (A, 3)], "record 4: a -C without", 3, True),
        ([(FROM, 1), (FROM, 2), (TO, 1)], "record 2: a -C without", 0, True),
        ([(FROM, 2), (FROM, 1)], "record 1: a -C without", 0, True),
        ([(FROM, 1), (FROM, 1), (TO, 1)], "record 2: a -C without", 0, True),
    ],
)
def test_the_first_incomplete_correction_is_named_with_what_precedes_it(
    rows: list[tuple[int, int]], record: str, whole: int, may_come: bool
) -> None:
    ops, keys = zip(*rows, strict=True)
    new = pa.table({"op": pa.array(ops, pa.uint8()), "id": pa.array(keys)})
    strategy, unused = MergeStrategyChangelogStream(primary_key=("id",)), cast("History", None)
    with pytest.raises(IncompleteCorrection) as found:
        merge(strategy, new, unused, DatasetVocabulary())
    assert str(found.value).startswith(record)
    assert (found.value.whole, found.value.may_come) == (whole, may_come)


def test_an_empty_snapshot_of_a_dataset_without_records_needs_no_columns() -> None:
    empty = cast("History", SimpleNamespace(current=lambda _: pa.table({})))
    new = pa.table({"event_time": pa.array([], TIMESTAMPS)})
    merged = merge(MergeStrategySnapshot(primary_key=("id",)), new, empty, DatasetVocabulary())
    assert (merged.records, merged.ops) == (new, None)


def a_nan(bits: int) -> float:
    """A NaN with a payload; the upper bit makes it negative."""
    made: float = struct.unpack("<d", struct.pack("<Q", 0x7FF8_0000_0000_0000 | bits))[0]
    return made


NANS = [a_nan(0), a_nan(1), a_nan(1 << 63), a_nan((1 << 63) | 7)]
TIMESTAMP = datetime(2020, 1, 1, 1, 2, 3, tzinfo=UTC)

# Distinct values of each type.
VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int8(), [-128, 0, 127]),
    (pa.int64(), [-(2**63), 0, 2**63 - 1, 2**53, 2**53 + 1]),
    (pa.uint64(), [0, 2**64 - 1, 2**64 - 2]),
    (
        pa.float16(),
        [np.float16(0.0), np.float16(-0.0), np.float16(1.5), np.float16("inf"), np.float16("nan")],
    ),
    (pa.float32(), [0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), float("nan")]),
    (pa.float64(), [0.0, -0.0, 5e-324, -5e-324, 0.1, float("inf"), float("-inf"), float("nan")]),
    (pa.decimal128(38, 18), [Decimal("0.1"), Decimal("0.100000000000000001"), Decimal(-1)]),
    (pa.string(), ["", "a", "a\0", "A", "ä", "a\u0308"]),
    (pa.binary(), [b"", b"\0", b"\0\0", b"a"]),
    (pa.date32(), [date(2020, 1, 1), date(1, 1, 1)]),
    (pa.time64("us"), [time(0), time(0, 0, 0, 1)]),
    *(
        (pa.timestamp(unit, "UTC"), [TIMESTAMP, TIMESTAMP.replace(second=4)])
        for unit in ("s", "ms", "us", "ns")
    ),
    (pa.uuid(), [UUID(int=1), UUID(int=2)]),
]
IDS = [str(type_) for type_, _ in VALUES]


def nested(column: pa.Array) -> list[pa.Array]:
    """Return columns that contain one value in each row."""
    storage = column.storage if isinstance(column, pa.ExtensionArray) else column
    rows = len(storage)
    pairs = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), storage)
    return [
        pa.StructArray.from_arrays([pa.array([1] * rows), storage], ["a", "b"]),
        pairs,
        pa.StructArray.from_arrays([pairs], ["l"]),
        pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), pairs),
    ]


@pytest.mark.parametrize(("type_", "values"), VALUES, ids=IDS)
def test_a_value_equals_itself_and_no_other(type_: pa.DataType, values: list[Any]) -> None:
    count = len(values)
    left = pa.array([value for value in values for _ in range(count)], type_)
    right = pa.array(values * count, type_)
    expected = np.eye(count, dtype=bool).ravel().tolist()
    assert equal(left, right).tolist() == expected
    for one, other in zip(nested(left), nested(right), strict=True):
        assert equal(one, other).tolist() == expected


@pytest.mark.parametrize(("type_", "values"), VALUES, ids=IDS)
def test_keys_are_as_equal_as_values(type_: pa.DataType, values: list[Any]) -> None:
    table = pa.table({"k": pa.array(values * 2, type_), "one": [1] * (2 * len(values))})
    for columns in (["k"], ["one", "k"]):
        keys = key_array(table, columns)
        assert len(np.unique(keys)) == len(values)
        assert (keys[: len(values)] == keys[len(values) :]).all()


@pytest.mark.parametrize("width", [32, 64])
def test_every_nan_is_the_same_value_and_the_same_key(width: int) -> None:
    bits = {
        64: np.array(NANS),
        32: np.array([0x7FC00000, 0x7FC00001, 0xFFC00000, 0xFF800001], np.uint32).view(np.float32),
    }[width]
    left, right = pa.array(np.repeat(bits, 4)), pa.array(np.tile(bits, 4))
    assert equal(left, right).all()
    for one, other in zip(nested(left), nested(right), strict=True):
        assert equal(one, other).all()
    assert len(np.unique(key_array(pa.table({"k": pa.array(bits)}), ["k"]))) == 1


def test_zeros_of_both_signs_are_stored_and_hashed_differently_and_so_differ(tmp_path: Any) -> None:
    files = []
    for number, zero in enumerate((0.0, -0.0)):
        files.append(tmp_path / str(number))
        write_slice(pa.table({"offset": pa.array([0], pa.uint64()), "x": [zero]}), files[-1])
    assert hash_slice(files[0]) != hash_slice(files[1])
    first, second = (read_slice(file).column("x").combine_chunks() for file in files)
    assert not equal(first, second).any()


def test_null_equals_null_and_nothing_else() -> None:
    for type_, values in VALUES:
        left = pa.array([None, None, values[0]], type_)
        right = pa.array([None, values[0], None], type_)
        assert equal(left, right).tolist() == [True, False, False]


def test_columns_that_can_only_be_null_are_equal_also_without_any_row() -> None:
    for nulls in (pa.nulls(0), pa.nulls(3)):
        assert equal(nulls, nulls).tolist() == [True] * len(nulls)
    lists = pa.array([[], [], None], pa.list_(pa.null()))
    assert equal(lists, lists.take(pa.array([1, 2, 2]))).tolist() == [True, False, True]


def test_a_null_list_or_struct_is_not_an_empty_one() -> None:
    lists = pa.array([None, [], [None], [1, 2]], pa.list_(pa.int64()))
    assert equal(lists, lists).all()
    assert not equal(lists, pa.array([[], None, [], [2, 1]], lists.type)).any()
    structs = pa.array([None, {"a": None}, {"a": 1}], pa.struct([("a", pa.int64())]))
    assert equal(structs, structs).all()
    assert not equal(structs, structs.take(pa.array([1, 2, 0]))).any()


def test_values_under_a_null_are_ignored() -> None:
    values = pa.array([1, 2])
    mask = pa.array([True, False])
    left = pa.StructArray.from_arrays([values], ["a"], mask=mask)
    right = pa.StructArray.from_arrays([pa.array([9, 2])], ["a"], mask=mask)
    assert equal(left, right).all()


@given(st.lists(st.floats(width=64), max_size=20))
@example([0.0, 5e-324, -5e-324, 1.0, 1.0 + 2**-52])
def test_comparable_numbers_are_in_the_order_of_the_numbers(values: list[float]) -> None:
    codes = comparable(pa.array(values, pa.float64())).to_pylist()
    for one, a in zip(values, codes, strict=True):
        for other, b in zip(values, codes, strict=True):
            if one < other:
                assert a < b
            if math.isnan(one):
                assert a >= b


LISTS = st.lists(st.lists(st.none() | st.floats(width=16), max_size=3) | st.none(), min_size=1, max_size=8)


@given(LISTS, st.integers(0, 3), st.data())
def test_parts_of_columns_compare_as_their_values_do(
    values: list[list[float | None] | None], start: int, data: st.DataObject
) -> None:
    others = data.draw(st.permutations(values))
    type_ = pa.struct([("l", pa.list_(pa.float64()))])
    left = pa.array([{"l": value} for value in values], type_).slice(start)
    right = pa.array([{"l": value} for value in others], type_).slice(start)
    expected = [repr(a) == repr(b) for a, b in zip(values[start:], others[start:], strict=True)]
    assert equal(left, right).tolist() == expected


@pytest.mark.parametrize(
    ("type_", "empty"),
    [
        (pa.struct([("a", pa.int64())]), {"a": None}),
        (pa.struct([("a", pa.int64())]), {"a": 0}),  # as in the children of a null struct
        (pa.struct([("a", pa.struct([("b", pa.string())]))]), {"a": {"b": ""}}),
        (pa.list_(pa.int64()), []),
        (pa.large_list(pa.string()), []),
        (pa.list_(pa.int64(), 2), [None, None]),
        (pa.string(), ""),
        (pa.float64(), 0.0),
    ],
)
def test_an_empty_value_never_differs(type_: pa.DataType, empty: object) -> None:
    left, right = pa.array([None, empty, None, empty], type_), pa.array([empty, None, None, empty], type_)
    assert equal(left, right).tolist() == [False, False, True, True]


KEY = ("id",)


@pytest.mark.parametrize(
    "strategy", [MergeStrategyChangelogStream(primary_key=KEY), MergeStrategyUpsertStream(primary_key=KEY)]
)
@pytest.mark.parametrize("type_", [pa.int8(), pa.uint8(), pa.int64()])
def test_rows_without_an_operation_are_named_by_their_place(strategy: object, type_: pa.DataType) -> None:
    table = pa.table({"op": pa.array([0, None, 3, 4, 1, 2, 100], type_)})
    found = operation_faults(strategy, table, DatasetVocabulary())  # type: ignore[arg-type]
    assert found.keys() == {1, 3, 6}
    assert found[1] == "has no operation in op"
    assert found[3].startswith("column op: 4 is not an operation")
    for other in (table.rename_columns(["other"]), pa.table({"op": ["+A"]})):
        assert operation_faults(strategy, other, DatasetVocabulary()) == {}  # type: ignore[arg-type]


def test_other_strategies_have_none() -> None:
    table = pa.table({"op": pa.array([9], pa.uint8())})
    assert operation_faults(MergeStrategyAppend(), table, DatasetVocabulary()) == {}


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
