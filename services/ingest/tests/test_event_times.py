"""Event times of records: in milliseconds, whatever their type was, and filled in if missing."""

import datetime as dt

import pyarrow as pa
import pytest

from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import Timestamp
from odf_ingest.prepare.event_time import event_times, fill_event_time, max_event_time, with_event_time
from odf_ingest.read.types.times import refusing_finer_times

NOON = dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC)
MS = pa.timestamp("ms", "UTC")


def times(column: pa.Array, timestamps: list[int] | None = None) -> pa.ChunkedArray:
    return with_event_time(pa.table({"event_time": column}), "event_time", timestamps).column("event_time")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_any_precision_are_truncated_to_milliseconds(unit: str) -> None:
    exact = NOON.replace(microsecond=0 if unit == "s" else 1999 if unit in ("us", "ns") else 1000)
    found = times(pa.array([exact, None], pa.timestamp(unit, "UTC")))
    assert found.type == MS
    assert found.to_pylist() == [NOON.replace(microsecond=0 if unit == "s" else 1000), None]


def test_event_times_before_1970_are_cut_towards_the_past() -> None:
    found = times(pa.array([-1, -1000, -1001, 1999], pa.int64()).cast(pa.timestamp("us", "UTC")))
    assert found.cast(pa.int64()).to_pylist() == [-1, -1, -2, 1]
    with (
        refusing_finer_times(is_on=True),
        pytest.raises(InvalidInput, match=r"event_time: .* has a finer fraction"),
    ):
        times(pa.array([-1000, -1001], pa.int64()).cast(pa.timestamp("us", "UTC")))


def test_missing_times_are_filled_in() -> None:
    ms = int(NOON.timestamp() * 1000)
    assert times(pa.array([NOON, None], MS), [1, ms + 1]).to_pylist() == [
        NOON,
        NOON.replace(microsecond=1000),
    ]
    assert times(pa.nulls(1), [ms]).to_pylist() == [NOON]


def test_missing_days_are_those_of_the_timestamps() -> None:
    ms = int(NOON.timestamp() * 1000)
    found = times(pa.array([dt.date(2021, 5, 6), None], pa.date32()), [1, ms])
    assert found.to_pylist() == [dt.date(2021, 5, 6), NOON.date()]


def test_records_without_the_column_get_the_timestamps_or_nulls() -> None:
    records = pa.table({"id": [1, 2]})
    assert with_event_time(records, "at", [0, 1000]).to_pylist() == [
        {"id": 1, "at": dt.datetime(1970, 1, 1, tzinfo=dt.UTC)},
        {"id": 2, "at": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)},
    ]
    empty = with_event_time(records, "at", None).column("at")
    assert (empty.type, empty.null_count) == (MS, 2)


@pytest.mark.parametrize("type_", [pa.date32(), pa.date64()])
def test_a_day_begins_at_midnight_in_utc(type_: pa.DataType) -> None:
    days = pa.array([dt.date(1969, 12, 31), dt.date(2020, 1, 1), None], type_)
    records = pa.table({"at": days})
    assert event_times(records, "at").to_pylist() == [-86_400_000, 1_577_836_800_000, None]
    assert max_event_time(records, "at") == 1_577_836_800_000
    assert max_event_time(records, "at", 1_577_836_799_999) == -86_400_000


def test_finer_times_are_truncated_where_they_are_compared() -> None:
    records = pa.table({"at": pa.array([NOON.replace(microsecond=1999)], pa.timestamp("us", "UTC"))})
    assert event_times(records, "at").to_pylist() == [int(NOON.timestamp() * 1000) + 1]


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must be a TIMESTAMP or DATE"):
        times(pa.array(["2020-01-01"]))


@pytest.mark.parametrize(("type_", "expected"), [(MS, NOON), (pa.date32(), NOON.date())])
def test_times_that_are_missing_after_a_query_are_the_timestamp_of_the_batch(
    type_: pa.DataType, expected: dt.datetime | dt.date
) -> None:
    time = Timestamp.from_datetime(NOON)
    later = NOON + dt.timedelta(days=1)
    records = pa.table({"event_time": pa.array([None, later], MS).cast(type_), "id": [1, 2]})
    filled = fill_event_time(records, "event_time", time)
    assert filled.column("event_time").to_pylist() == [
        expected,
        later if type_ == MS else later.date(),
    ]
    assert filled.column("id").to_pylist() == [1, 2]
