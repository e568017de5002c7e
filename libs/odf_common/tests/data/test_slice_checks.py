"""Records that differ from what their block declares are named, whatever their hash."""

import pyarrow as pa
import pytest

from odf_common.data.columns import TIMESTAMP
from odf_common.data.odf_schema import from_arrow
from odf_common.data.schema_evolution import check_evolution, schema_of_event
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
from odf_common.metadata.events import OffsetInterval, SetDataSchema
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
