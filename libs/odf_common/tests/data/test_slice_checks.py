"""Records that differ from what their block declares are named, whatever their hash."""

import datetime as dt
import re
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath

import pyarrow as pa
import pytest

from odf_common.data.columns import TIMESTAMP, compared_type, stored_type
from odf_common.data.ddl import ddl_to_schema
from odf_common.data.json_values import distinct, plain, record_rows
from odf_common.data.odf_schema import from_arrow
from odf_common.data.schema_evolution import (
    align_to_schema,
    aligned_schema,
    check_evolution,
    schema_of_event,
    with_new_columns,
)
from odf_common.data.slice_checks import (
    CORRECTION,
    NULL,
    OFFSETS,
    OPERATIONS,
    SCHEMA,
    SYSTEM_TIME_MISMATCH,
    YEARS,
    RecordsDiffer,
    check_records,
)
from odf_common.errors import InvalidInput
from odf_common.metadata.events import DatasetVocabulary, OffsetInterval, SetDataSchema
from odf_common.metadata.scalars import Timestamp

WHOLE = {
    "offset": pa.array([3, 4, 5], pa.uint64()),
    "op": pa.array([0, 2, 3], pa.uint8()),
    "system_time": pa.array([1, 1, 1], TIMESTAMP),
    "event_time": pa.array([1, 2, 3], TIMESTAMP),
    "text": pa.array(["a", None, "c"]),
}
INTERVAL = OffsetInterval(start=3, end=5)
BLOCK_TIME = Timestamp(2_999_999)  # records have milliseconds
FAR = 1 << 62
DECLARED = pa.table(WHOLE).schema


def with_column(name: str, values: pa.Array) -> pa.Table:
    return pa.table({**WHOLE, name: values})


def in_list(values: list[list[int]]) -> pa.Array:
    return pa.array(values, pa.list_(TIMESTAMP))


def in_map(values: list[list[tuple[str, int]] | None]) -> pa.Array:
    return pa.array(values, pa.map_(pa.string(), TIMESTAMP))


def test_records_that_are_as_declared_are_accepted_in_every_layout() -> None:
    check_records(pa.table(WHOLE), INTERVAL, DECLARED, None)
    for unit in ("s", "ms", "us", "ns"):
        latest = pa.array([2_000_000] * 3, pa.int64()).cast(pa.timestamp("ns", "UTC"))
        latest = latest.cast(pa.timestamp(unit, "UTC"), safe=False)
        check_records(with_column("system_time", latest), INTERVAL, None, BLOCK_TIME)
    check_records(pa.table(WHOLE), INTERVAL, None, None)
    signed = {"offset": pa.array([3, 4, 5], pa.int64()), "op": pa.array([0, 0, 1], pa.int32())}
    check_records(pa.table({**WHOLE, **signed}), INTERVAL, None, None)
    view = with_column("text", pa.array(["a", None, "c"]).dictionary_encode())
    check_records(view, INTERVAL, DECLARED, None)
    required = pa.schema([field.with_nullable(False) for field in DECLARED])
    check_records(pa.table(WHOLE), INTERVAL, required, None)


@pytest.mark.parametrize(
    ("table", "kind", "text"),
    [
        (with_column("offset", pa.array([3, 9, 5], pa.uint64())), OFFSETS, "record 2 has 9"),
        (with_column("offset", pa.array([3, 3, 5], pa.uint64())), OFFSETS, "record 2 has 3"),
        (with_column("offset", pa.array([3, 4, 6], pa.uint64())), OFFSETS, "record 3 has 6"),
        (with_column("offset", pa.array([3, -4, 5], pa.int64())), OFFSETS, "record 2 has -4"),
        (with_column("offset", pa.array([3, None, 5], pa.uint64())), OFFSETS, "no integers"),
        (with_column("offset", pa.array(["3", "4", "5"])), OFFSETS, "no integers"),
        (pa.table(WHOLE).slice(1), OFFSETS, "has 2 records"),
        (with_column("op", pa.array([0, 7, 0], pa.uint8())), OPERATIONS, "from 0 to 7"),
        (with_column("op", pa.array([0, 4, 0], pa.uint8())), OPERATIONS, "from 0 to 4"),
        (with_column("op", pa.array([0, -1, 0], pa.int32())), OPERATIONS, "from -1 to 0"),
        (with_column("op", pa.array([0.0, 0.0, 0.0])), OPERATIONS, "double"),
        (with_column("op", pa.array([0, None, 0], pa.uint8())), NULL, "column op has 1 null"),
        (with_column("system_time", pa.array([1, None, 1], TIMESTAMP)), NULL, "system_time"),
        (with_column("event_time", pa.array([None, 1, 1], TIMESTAMP)), NULL, "event_time"),
        (with_column("op", pa.array([0, 2, 0], pa.uint8())), CORRECTION, "record 2: a -C without"),
        (
            with_column("event_time", pa.array([0, FAR, -FAR], TIMESTAMP)),
            YEARS,
            "offset 4: column event_time: +1",
        ),
        (
            with_column("system_time", pa.array([0, 1, -FAR], TIMESTAMP)),
            YEARS,
            "offset 5: column system_time: -1",
        ),
        (with_column("x", pa.array([None, 0, -800_000], pa.date32())), YEARS, "offset 5: column x: -0221"),
        (with_column("x", in_list([[0], [], [1, FAR]])), YEARS, "offset 5: column x[]: +1"),
        (
            with_column("x", in_map([[("a", FAR)], None, [("a", FAR)]])),
            YEARS,
            "offset 3: column x[].value: +1",
        ),
        (
            with_column("system_time", pa.array([2, 2, 3], TIMESTAMP)),
            SYSTEM_TIME_MISMATCH,
            "offset 5 has the system time 1970-01-01T00:00:00.003Z",
        ),
        (with_column("system_time", pa.array([1, 1, 1])), SYSTEM_TIME_MISMATCH, "system times are int64"),
    ],
)
def test_a_difference_is_named(table: pa.Table, kind: str, text: str) -> None:
    with pytest.raises(RecordsDiffer) as caught:
        check_records(table, INTERVAL, None, BLOCK_TIME)
    assert caught.value.kind == kind
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (with_column("text", pa.array([1, 2, 3])), "text int64, but text string is declared"),
        (pa.table(WHOLE).drop_columns(["text"]), "has 4 columns, but 5 are declared"),
        (pa.table(WHOLE).rename_columns(["offset", "op", "system_time", "event_time", "t"]), "column t"),
    ],
)
def test_another_schema_than_the_one_in_force_is_named(table: pa.Table, text: str) -> None:
    with pytest.raises(RecordsDiffer, match=text) as caught:
        check_records(table, INTERVAL, DECLARED, None)
    assert caught.value.kind == SCHEMA


def test_a_uuid_is_as_defined_by_the_odf_schema() -> None:
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16), None, bytes(16)], pa.binary(16)))
    table = with_column("text", uuids)
    schema = schema_of_event(SetDataSchema(schema=from_arrow(table.schema)))
    check_records(table, INTERVAL, schema, None)
    assert not check_evolution(schema, table.schema)


def test_a_slice_with_offsets_alone_has_no_operations_to_check() -> None:
    check_records(
        pa.table({"offset": pa.array([0, 1], pa.uint64())}), OffsetInterval(start=0, end=1), None, None
    )


def test_the_last_offset_may_be_the_greatest_of_its_type() -> None:
    offsets = pa.table({"offset": pa.array([254, 255], pa.uint8())})
    check_records(offsets, OffsetInterval(start=254, end=255), None, None)
    with pytest.raises(RecordsDiffer, match="offsets are uint8"):
        check_records(offsets, OffsetInterval(start=255, end=256), None, None)


VOCAB = DatasetVocabulary()
SIGNED = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("op", pa.int32(), nullable=False),
        pa.field("n", pa.int64(), nullable=False),
    ]
)
UNSIGNED = pa.schema([("offset", pa.uint64()), ("op", pa.uint8()), ("n", pa.int64())])


def test_offset_and_operation_take_the_datasets_integers_and_columns_its_nullability() -> None:
    made = align_to_schema(UNSIGNED.empty_table(), SIGNED, VOCAB)
    assert made.schema.equals(SIGNED)
    assert not check_evolution(SIGNED, made.schema)


def test_other_integers_are_left_for_later_checks() -> None:
    found = UNSIGNED.set(2, pa.field("n", pa.int32()))
    assert aligned_schema(found, SIGNED, VOCAB).field("n").type == pa.int32()


def test_new_columns_are_left_unchanged() -> None:
    found = UNSIGNED.append(pa.field("s", pa.string()))
    assert aligned_schema(found, SIGNED, VOCAB).field("s") == pa.field("s", pa.string())


def test_a_null_where_the_dataset_requires_a_value_is_refused_by_the_columns_name() -> None:
    records = pa.table({"offset": [1, 2], "op": [0, 0], "n": [None, 1]}, UNSIGNED)
    with pytest.raises(InvalidInput, match="column n: is required in this dataset, and 1 records"):
        align_to_schema(records, SIGNED, VOCAB)


def test_an_offset_that_the_datasets_integers_cannot_hold_is_refused() -> None:
    records = pa.table({"offset": [1 << 63], "op": [0], "n": [1]}, UNSIGNED)
    with pytest.raises(InvalidInput, match="column offset"):
        align_to_schema(records, SIGNED, VOCAB)


def test_timestamps_are_truncated_to_the_datasets_unit_at_any_depth() -> None:
    fine, coarse = pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC")
    value = pa.array([{"at": [1_999, None]}, None], pa.struct([("at", pa.list_(fine))]))
    known = pa.schema([("s", pa.struct([("at", pa.list_(coarse))]))])
    made = align_to_schema(pa.table({"s": value}).slice(0, 2), known, VOCAB)
    assert made.column("s").combine_chunks().field("at").flatten().cast(pa.int64()).to_pylist() == [1, None]
    assert made.column("s").null_count == 1
    assert not check_evolution(known, made.schema)


def test_parts_of_nested_columns_are_taken_from_their_place() -> None:
    optional = pa.list_(pa.field("element", pa.int32()))
    required = pa.list_(pa.field("element", pa.int32(), nullable=False))
    records = pa.table({"l": pa.array([[None], [1, 2], None, [3]], optional)})
    known = pa.schema([("l", required)])
    made = align_to_schema(records.slice(1), known, VOCAB)
    assert made.column("l").to_pylist() == [[1, 2], None, [3]]
    with pytest.raises(InvalidInput, match=r"column l\[\]"):
        align_to_schema(records, known, VOCAB)


@pytest.mark.parametrize("year", ["1600", "3000"])
def test_a_timestamp_that_the_datasets_unit_cannot_hold_is_refused_with_its_value(year: str) -> None:
    at = pa.array(["1970-01-01T00:00:00Z", f"{year}-01-01T00:00:00Z"]).cast(pa.timestamp("us", "UTC"))
    known = pa.schema([("at", pa.list_(pa.timestamp("ns", "UTC")))])
    records = pa.table({"at": pa.array([at.to_pylist()], pa.list_(at.type))})
    with pytest.raises(
        InvalidInput, match=rf"column at\[\]: {year}-01-01T00:00:00Z is outside of 1677 to 2262"
    ):
        align_to_schema(records, known, DatasetVocabulary())


@pytest.mark.parametrize("coarse", ["ms", "s"])
def test_times_are_cut_towards_the_past_at_any_depth(coarse: str) -> None:
    fine, unit = pa.timestamp("us", "UTC"), pa.timestamp(coarse, "UTC")
    value = pa.array(
        [{"at": [-1, -1_000_000, -1_000_001, 999_999, None]}, None], pa.struct([("at", pa.list_(fine))])
    )
    known = pa.schema([("s", pa.struct([("at", pa.list_(unit))]))])
    aligned = align_to_schema(pa.table({"s": value}), known, VOCAB).column("s").combine_chunks()
    ratio = {"ms": 1_000, "s": 1_000_000}[coarse if stored_type(unit) == unit else "ms"]
    cut = [number // ratio for number in (-1, -1_000_000, -1_000_001, 999_999)]
    assert aligned.field("at").flatten().cast(pa.int64()).to_pylist() == [*cut, None]


TYPES = ddl_to_schema([
    "a BOOLEAN", "b TINYINT", "c SMALLINT", "d INT", "e BIGINT", "f FLOAT", "g DOUBLE", "h DECIMAL(10, 2)", "i DECIMAL(12, 2)",
    "j STRING", "k BINARY", "l DATE", "m TIMESTAMP(0)", "n TIMESTAMP(3)", "o TIMESTAMP(6)", "p TIMESTAMP(9)", "q TIME(3)", "r UUID",
    "s BIGINT UNSIGNED", "t ARRAY<INT>", "u ARRAY<TIMESTAMP(6)>", "v ARRAY<TIMESTAMP(3)>", "w STRUCT<x: INT>", "y STRUCT<x: TIMESTAMP(9)>",
]).types  # fmt: skip


@pytest.mark.parametrize("new", TYPES, ids=str)
def test_no_type_of_a_result_becomes_another_one_but_times_of_another_unit(new: pa.DataType) -> None:
    for old in TYPES:
        known, found = pa.schema([("c", old)]), pa.schema([("c", new)])
        aligned = aligned_schema(found, known, VOCAB)
        if _without_unit(old) == _without_unit(new):
            assert not check_evolution(known, aligned)
        else:
            with pytest.raises(InvalidInput, match=r"column c[.\[]?.* cannot "):
                check_evolution(known, aligned)


def _without_unit(type_: pa.DataType) -> str:
    return re.sub(r"timestamp\[\w+", "timestamp[", str(compared_type(type_)))


def test_columns_that_a_dataset_never_had_are_added_as_optional() -> None:
    found = UNSIGNED.append(pa.field("s", pa.string(), nullable=False))
    wanted = with_new_columns(SIGNED, found)
    assert [*wanted] == [*SIGNED, pa.field("s", pa.string())]
    assert check_evolution(SIGNED, aligned_schema(found, wanted, VOCAB))


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
