"""Times and dates outside of the years 1 to 9999 are refused, wherever they are in a column."""

import datetime as dt
from pathlib import Path

import pyarrow as pa
import pytest

from odf_common.data.columns import Operation, check_corrections, normalize_timestamps, with_system_columns
from odf_common.data.slices import hash_slice, read_slice, without_nulls_behind_nulls, write_slice
from odf_common.data.time_format import require_known_years
from odf_common.errors import InvalidInput
from odf_common.metadata.events import DatasetVocabulary
from odf_common.metadata.scalars import Timestamp

MS_UTC = pa.timestamp("ms", "UTC")
NOON = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)


def records(**columns: object) -> pa.Table:
    return pa.table({"city": ["A", "B"], "event_time": pa.array([NOON, NOON], MS_UTC), **columns})


def numbered(
    table: pa.Table, *, ops: pa.Array | None = None, signed: bool = False, first: int = 5
) -> pa.Table:
    return with_system_columns(
        table,
        ops=ops,
        first_offset=first,
        system_time=Timestamp.parse("2021-01-01T00:00:00.123456Z"),
        vocab=DatasetVocabulary(),
        signed=signed,
    )


def test_system_columns_come_first_and_are_required() -> None:
    table = numbered(records(population=[1, None]))
    assert table.schema.equals(
        pa.schema(
            [
                pa.field("offset", pa.uint64(), nullable=False),
                pa.field("op", pa.uint8(), nullable=False),
                pa.field("system_time", MS_UTC, nullable=False),
                pa.field("event_time", MS_UTC, nullable=False),
                pa.field("city", pa.string()),
                pa.field("population", pa.int64()),
            ]
        )
    )
    assert table.column("offset").to_pylist() == [5, 6]
    assert table.column("op").to_pylist() == [0, 0]
    assert table.column("system_time").to_pylist() == [dt.datetime(2021, 1, 1, 0, 0, 0, 123000, dt.UTC)] * 2


def test_signed_columns_are_those_of_the_reference() -> None:
    ops = pa.array([Operation.CORRECT_FROM, Operation.CORRECT_TO], pa.uint8())
    table = numbered(records(), ops=ops, signed=True)
    assert table.schema.field("offset").type == pa.int64()
    assert table.schema.field("op").type == pa.int32()
    assert table.column("op").to_pylist() == [2, 3]


def test_columns_have_the_names_of_the_vocabulary() -> None:
    table = with_system_columns(
        pa.table({"at": pa.array([NOON], MS_UTC)}),
        ops=None,
        first_offset=0,
        system_time=Timestamp(0),
        vocab=DatasetVocabulary(
            offset_column="o", operation_type_column="p", system_time_column="s", event_time_column="at"
        ),
        signed=False,
    )
    assert table.column_names == ["o", "p", "s", "at"]


def test_no_records_make_an_empty_table() -> None:
    assert len(numbered(records().slice(0, 0))) == 0


@pytest.mark.parametrize("name", ["offset", "op", "system_time"])
def test_a_record_cannot_bring_a_system_column(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"column {name}"):
        numbered(records(**{name: [1, 2]}))


@pytest.mark.parametrize(
    "event_time", [pa.array([1, 2]), pa.array(["2020", "2021"]), pa.array([NOON, None], MS_UTC), None]
)
def test_an_invalid_event_time_is_refused(event_time: pa.Array | None) -> None:
    table = records().drop_columns("event_time")
    with pytest.raises(InvalidInput, match="column event_time"):
        numbered(table if event_time is None else table.append_column("event_time", event_time))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.array([dt.date(2020, 1, 1)] * 2, pa.date32()), pa.date32()),
        (pa.array([dt.date(2020, 1, 1)] * 2, pa.date64()), pa.date32()),
        (pa.array([NOON, NOON], pa.timestamp("ns", "Europe/Kyiv")), MS_UTC),
    ],
)
def test_an_event_time_is_a_timestamp_or_a_date(given: pa.Array, kept: pa.DataType) -> None:
    table = records().drop_columns("event_time").append_column("event_time", given)
    assert numbered(table).schema.field("event_time").type == kept


def test_every_timestamp_is_converted_to_utc_and_keeps_its_fraction() -> None:
    naive, zoned = pa.timestamp("us"), pa.timestamp("s", "America/New_York")
    struct = pa.struct([("at", zoned), ("n", pa.int8())])
    table = pa.table(
        {
            "naive": pa.array([1_999], naive),
            "zoned": pa.array([2], zoned),
            "list": pa.array([[3]], pa.list_(zoned)),
            "struct": pa.array([{"at": 4, "n": 1}], struct),
            "text": ["x"],
        }
    )
    normal = normalize_timestamps(table)
    assert normal.schema.field("list").type == pa.list_(MS_UTC)
    assert normal.schema.field("struct").type == pa.struct([("at", MS_UTC), ("n", pa.int8())])
    assert normal.column("naive").cast(pa.int64()).to_pylist() == [1_999]
    assert normal.column("zoned").cast(pa.int64()).to_pylist() == [2000]
    assert normal.schema.field("naive").type == pa.timestamp("us", "UTC")
    assert normal.schema.field("zoned").type == MS_UTC
    assert normalize_timestamps(normal) is normal


@pytest.mark.parametrize("ops", [[], [0, 1], [2, 3], [0, 2, 3, 2, 3, 1]])
def test_whole_corrections_are_well_formed(ops: list[int]) -> None:
    check_corrections(pa.array(ops, pa.uint8()))
    check_corrections(pa.chunked_array([pa.array(ops, pa.int32())]))


@pytest.mark.parametrize(
    ("ops", "record"), [([2], 1), ([3], 1), ([2, 0, 3], 1), ([0, 3, 2], 2), ([2, 2, 3, 3], 1), ([2, 3, 3], 3)]
)
def test_half_a_correction_is_named(ops: list[int], record: int) -> None:
    with pytest.raises(InvalidInput, match=f"record {record}:"):
        check_corrections(pa.array(ops, pa.uint8()))


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_a_fraction_that_was_declared_is_stored_and_read_back(unit: str, tmp_path: Path) -> None:
    column = pa.array([1_234_567_891, -1, None], pa.timestamp(unit, "UTC"))
    table = pa.table({"event_time": pa.array([1, 2, 3], MS_UTC), "at": column})
    records = with_system_columns(
        table,
        ops=None,
        first_offset=0,
        system_time=Timestamp.from_ms(0),
        vocab=DatasetVocabulary(),
        signed=False,
    )
    write_slice(records, tmp_path / "slice")
    assert read_slice(tmp_path / "slice").column("at").combine_chunks().equals(column)


INNER = pa.struct([pa.field("n", pa.int32(), nullable=False), pa.field("t", pa.string())])
OUTER = pa.struct(
    [
        pa.field("s", INNER, nullable=False),
        pa.field("t", pa.string(), nullable=False),
        pa.field("u", pa.uuid(), nullable=False),
        pa.field("b", pa.bool_(), nullable=False),
        pa.field("l", pa.list_(pa.field("element", pa.int8())), nullable=False),
    ]
)


def a_value(number: int) -> dict[str, object]:
    return {"s": {"n": number, "t": None}, "t": str(number), "u": bytes(16), "b": True, "l": [number, None]}


def struct_records(*values: dict[str, object] | None) -> pa.Table:
    parts = []
    for field in OUTER.fields:
        items = [None if value is None else value[field.name] for value in values]
        if field.type == pa.uuid():
            parts.append(pa.ExtensionArray.from_storage(pa.uuid(), pa.array(items, pa.binary(16))))
        elif field.type == INNER:
            loose = pa.array(items, pa.struct([("n", pa.int32()), ("t", pa.string())]))
            halves = [loose.field(0), loose.field(1)]
            parts.append(pa.StructArray.from_arrays(halves, fields=list(INNER), mask=loose.is_null()))
        else:
            parts.append(pa.array(items, field.type))
    missing = pa.array([value is None for value in values])
    column = pa.StructArray.from_arrays(parts, fields=list(OUTER), mask=missing)
    return pa.table({"offset": pa.array(range(len(values)), pa.uint64()), "c": column})


@pytest.mark.parametrize("start", [0, 1, 2])
def test_a_null_struct_with_required_parts_is_stored(tmp_path: Path, start: int) -> None:
    table = struct_records(a_value(1), None, a_value(2), None).slice(start)
    written = write_slice(table, tmp_path / "slice")
    assert hash_slice(tmp_path / "slice") == written.logical_hash
    assert read_slice(tmp_path / "slice").to_pylist() == table.to_pylist()


def test_one_required_part_among_others_is_enough(tmp_path: Path) -> None:
    values = [pa.array([1, None], pa.int32()), pa.array(["a", None])]
    column = pa.StructArray.from_arrays(values, fields=list(INNER), mask=pa.array([False, True]))
    table = pa.table({"offset": pa.array([0, 1], pa.uint64()), "c": column})
    written = write_slice(table, tmp_path / "slice")
    assert hash_slice(tmp_path / "slice") == written.logical_hash
    assert read_slice(tmp_path / "slice").to_pylist() == table.to_pylist()


def test_a_null_where_a_value_is_required_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="'t' is declared non-nullable"):
        write_slice(struct_records(a_value(1) | {"t": None}), tmp_path / "slice")


def test_other_columns_are_left_unchanged() -> None:
    table = pa.table({"n": [1, None], "s": [{"a": None}, None]})
    made = without_nulls_behind_nulls(table)
    assert [made.column(at).chunk(0).equals(table.column(at).chunk(0)) for at in range(2)] == [True, True]
    assert made.schema == table.schema


FIRST, LAST = -719_162, 2_932_896  # days since the epoch: 0001-01-01 and 9999-12-31
DAY_MS = 86_400_000


def column(type_: pa.DataType, number: int) -> pa.Array:
    """A value of the type that has the number as its date or time, at whatever depth, next to a null."""
    if pa.types.is_struct(type_):
        (inner,) = type_.fields
        return pa.StructArray.from_arrays([column(inner.type, number)], fields=[inner])
    if pa.types.is_list(type_):
        return pa.ListArray.from_arrays(pa.array([0, 2, 2], pa.int32()), column(type_.value_type, number))
    storage = pa.int32() if pa.types.is_date32(type_) else pa.int64()
    return pa.array([number, None], storage).cast(type_)


@pytest.mark.parametrize(
    ("type_", "place"),
    [
        (pa.date32(), "c"),
        (pa.struct([("d", pa.date32())]), "c.d"),
        (pa.list_(pa.date32()), "c[]"),
        (pa.list_(pa.struct([("d", pa.date32())])), "c[].d"),
        (pa.struct([("l", pa.list_(pa.date32()))]), "c.l[]"),
    ],
    ids=str,
)
def test_dates_may_be_those_of_the_first_to_the_last_year_at_any_depth(
    type_: pa.DataType, place: str
) -> None:
    for day in (FIRST, 0, LAST):
        require_known_years(pa.chunked_array([column(type_, day)]), "column c")
    for day, text in ((FIRST - 1, "0000-12-31"), (LAST + 1, "10000-01-01")):
        with pytest.raises(InvalidInput, match="outside of the years 0001 to 9999") as refused:
            require_known_years(pa.chunked_array([column(type_, day)]), "column c")
        assert str(refused.value).startswith(f"column {place}: ")
        assert text in str(refused.value)


@pytest.mark.parametrize(
    ("type_", "per_day"),
    [
        (pa.date64(), DAY_MS),
        (pa.timestamp("s", "UTC"), DAY_MS // 1000),
        (pa.timestamp("ms", "UTC"), DAY_MS),
        (pa.timestamp("us"), DAY_MS * 1000),
    ],
    ids=str,
)
def test_the_last_tick_of_the_last_year_is_accepted_and_the_next_is_not(
    type_: pa.DataType, per_day: int
) -> None:
    step = per_day if pa.types.is_date64(type_) else 1
    for number in (FIRST * per_day, (LAST + 1) * per_day - step):
        require_known_years(pa.chunked_array([column(type_, number)]), "column c")
    for number in (FIRST * per_day - step, (LAST + 1) * per_day):
        with pytest.raises(InvalidInput, match="outside of the years"):
            require_known_years(pa.chunked_array([column(type_, number)]), "column c")
