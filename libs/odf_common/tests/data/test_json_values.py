"""Records as JSON: what users see of each value, whatever stands in the other columns."""

import datetime as dt
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath

import pyarrow as pa
import pytest

from odf_common.data.json_values import distinct, plain, record_rows

DAY_NANOS = 86_400 * 10**9


def nanos(value: int, kind: pa.DataType) -> pa.Array:
    return pa.array([value], pa.int64()).view(kind)


class Color(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({1: {"a": None}}, {"1": {"a": None}}),
        ([(1, True), "x"], [[1, True], "x"]),
        (frozenset({2}), [2]),
        (Color.RED, "red"),
        (0.5, 0.5),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (dt.datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05Z"),  # noqa: DTZ001 - records have them
        (
            dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            "2026-01-02T01:04:05Z",
        ),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (dt.time(3, 4, 5), "03:04:05"),
        (dt.timedelta(minutes=1, milliseconds=500), 60.5),
        (b"\xff\x00", "/wA="),
        (Decimal("2.50"), "2.50"),
        (PurePosixPath("a/b"), "a/b"),
    ],
    ids=repr,
)
def test_a_value_is_shown_as_json(value: object, expected: object) -> None:
    assert plain(value) == expected


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (1, pa.timestamp("ns"), "1970-01-01T00:00:00.000000001Z"),
        (-1, pa.timestamp("ns", "Europe/Oslo"), "1969-12-31T23:59:59.999999999Z"),
        (1, pa.duration("ns"), 1e-09),
        (1, pa.time64("ns"), "00:00:00.000000001"),
        (DAY_NANOS // 2 + 61 * 10**9, pa.time64("ns"), "12:01:01"),
        (DAY_NANOS - 1, pa.time64("ns"), "23:59:59.999999999"),
        (DAY_NANOS, pa.time64("ns"), f"{DAY_NANOS} time64[ns]"),
        (-1, pa.time64("ns"), "-1 time64[ns]"),
    ],
)
def test_nanoseconds_are_exact_beside_columns_of_other_types(
    value: int, kind: pa.DataType, expected: object
) -> None:
    table = pa.table({"number": [7], "at": nanos(value, kind), "none": pa.array([None], kind)})
    assert plain(list(record_rows(table))) == [{"number": 7, "at": expected, "none": None}]


def test_nanoseconds_are_exact_inside_other_values() -> None:
    time = nanos(1, pa.time64("ns"))
    start = pa.array([0, 1], pa.int32())
    table = pa.table(
        {
            "struct": pa.StructArray.from_arrays([time, pa.array([5])], ["a", "b"]),
            "twins": pa.StructArray.from_arrays([time, pa.array([5])], ["a", "a"]),
            "map": pa.MapArray.from_arrays(start, pa.array(["key"]), time),
            "list": pa.ListArray.from_arrays(start, time),
            "dictionary": pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), time),
        }
    )
    text = "00:00:00.000000001"
    assert plain(list(record_rows(table))) == [
        {
            "struct": {"a": text, "b": 5},
            "twins": [["a", text], ["a", 5]],
            "map": [["key", text]],
            "list": [text],
            "dictionary": text,
        }
    ]


def test_records_of_many_batches_are_all_shown_in_order() -> None:
    for column in (pa.array(range(10_001)), pa.array(range(10_001), pa.time64("ns"))):
        rows = list(record_rows(pa.table({"number": range(10_001), "value": column})))
        assert [row["number"] for row in rows] == list(range(10_001))


def test_a_record_without_a_python_value_changes_nothing_in_other_columns() -> None:
    table = pa.table({"day": pa.array([1 << 30, None], pa.date32()), "text": ["a", None]})
    assert list(record_rows(table)) == [
        {"day": "1073741824 date32[day]", "text": "a"},
        {"day": None, "text": None},
    ]


def test_repeated_names_are_numbered_and_collide_with_no_other() -> None:
    assert distinct(["a", "a", "a", "b"]) == ["a", "a_2", "a_3", "b"]
    assert distinct(["a_2", "a", "a"]) == ["a_2", "a", "a_3"]
