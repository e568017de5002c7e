"""Joins: by windows, by bounds in time, without bounds, and as of a time."""

from collections.abc import Mapping

import pyarrow as pa
import pytest
from odf_testing.engine import (
    HOUR,
    HOURLY,
    MINUTE,
    A,
    Block,
    Make,
    flight,
    ms,
    reading,
    sql,
)

from odf_engine_spark.plan.join_keys import JoinKeys
from odf_engine_spark.plan.segments import Segment
from odf_engine_spark.spark.logical_plans import COMPLETE


def test_flights_and_weather_join_by_the_hour(derive: Make) -> None:
    joined = derive(
        sql(*HOURLY),
        flights=[
            Block(rows=[flight(1, 60.0), flight(2, 30.0), flight(3, 5.0, origin="LGA")], watermark=HOUR)
        ],
        weather=[Block(rows=[reading(0, 21.5), reading(30 * MINUTE, 25.0)]), Block(watermark=HOUR)],
    )
    assert joined.pull(1, 1).new_watermark is None
    assert joined.rows() == []
    assert ms(joined.pull(1, 2)) == HOUR
    assert joined.rows() == [(A, 0, "JFK", 2, 90.0, 25.0), (A, 0, "LGA", 1, 5.0, None)]


@pytest.mark.parametrize("kind", ["INNER", "LEFT", "RIGHT", "FULL"])
def test_every_kind_of_join_is_by_window(derive: Make, kind: str) -> None:
    steps = (
        (
            "f",
            "SELECT window, origin, count(*) AS n FROM flights GROUP BY window(time_hour, '1 hour'), origin",
        ),
        (
            "w",
            "SELECT window, origin, max(temp) AS t FROM weather GROUP BY window(time_hour, '1 hour'), origin",
        ),
        (
            None,
            (
                "SELECT coalesce(f.window, w.window).start AS event_time, coalesce(f.origin, w.origin) AS origin, n, t "
                f"FROM f {kind} JOIN w ON f.window.start = w.window.start AND f.origin = w.origin"
            ),
        ),
    )
    joined = derive(
        sql(*steps),
        flights=[Block(rows=[flight(1), flight(2, origin="LGA")], watermark=HOUR)],
        weather=[Block(rows=[reading(1, 1.0), reading(2, 2.0, "EWR")], watermark=HOUR)],
    )
    joined.pull()
    both, left, right = (A, 0, "JFK", 1, 1.0), (A, 0, "LGA", 1, None), (A, 0, "EWR", None, 2.0)
    expected = {"INNER": {both}, "LEFT": {both, left}, "RIGHT": {both, right}, "FULL": {both, left, right}}
    assert set(joined.rows()) == expected[kind]


def test_a_join_without_bounds_reads_old_rows_only_for_new_partners(
    derive: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    collect = Segment.collect

    def counted(segment: Segment, records: Mapping[str, pa.Table]) -> tuple[pa.Table, pa.ChunkedArray]:
        seen.append(sum(len(table) for table in records.values()))
        return collect(segment, records)

    monkeypatch.setattr(Segment, "collect", counted)
    query = (
        "SELECT greatest(f.time_hour, w.time_hour) AS event_time, flight, temp FROM flights f "
        "JOIN weather w ON f.origin = w.origin AND f.flight > 0"
    )
    many = [flight(n, origin="A" if n % 10 else "B", number=n) for n in range(1, 101)]
    joined = derive(
        sql(query),
        flights=[Block(rows=many, watermark=HOUR), Block(watermark=3 * HOUR)],
        weather=[
            Block(rows=[reading(1, 1.0, "A")], watermark=HOUR),
            Block(rows=[reading(2 * HOUR, 2.0, "B")], watermark=3 * HOUR),
        ],
    )
    joined.pull(1, 1)
    joined.pull(2, 2)
    assert len(joined.rows()) == 100
    assert seen == [101, 11]


AS_OF = (
    "SELECT f.time_hour AS event_time, w.temp FROM flights f LEFT JOIN weather FOR SYSTEM_TIME AS OF f.time_hour AS w "
    "ON f.origin = w.origin"
)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_zeros_match_whatever_their_sign_and_block(derive: Make, zero: float) -> None:
    query = (
        "SELECT greatest(f.time_hour, w.time_hour) AS event_time, flight FROM flights f "
        "JOIN weather w ON f.dep_delay = w.temp"
    )
    joined = derive(
        sql(query),
        flights=[Block(rows=[flight(1, zero)], watermark=5), Block(watermark=50)],
        weather=[Block(watermark=5), Block(rows=[reading(10, -zero)], watermark=50)],
    )
    joined.pull(1, 1)
    joined.pull(2, 2)
    assert joined.rows() == [(A, 10, 1)]


@pytest.mark.parametrize("table", ["weather", "p"])
def test_of_versions_at_one_time_the_last_to_come_holds(derive: Make, table: str) -> None:
    step = ("p", "SELECT time_hour, origin, temp FROM weather")
    query = f"SELECT f.time_hour AS event_time, w.temp FROM flights f JOIN {table} FOR SYSTEM_TIME AS OF f.time_hour AS w ON f.origin = w.origin"
    weather = [
        reading(10, 50.0),
        reading(10, 20.0),
        reading(11, 9.0),
        reading(11, 5.0),
    ]
    joined = derive(
        sql(step, query),
        flights=[Block(rows=[flight(10), flight(15)], watermark=HOUR)],
        weather=[Block(rows=weather, watermark=HOUR)],
    )
    joined.pull()
    assert joined.rows() == [(A, 10, 20.0), (A, 15, 5.0)]


@pytest.mark.parametrize(
    "next_day",
    ["date_add(f.time_hour, 1)", "date_sub(date(f.time_hour), -1)", "to_date(dateadd(DAY, 1, f.time_hour))"],
)
def test_days_are_bounds(derive: Make, next_day: str) -> None:
    query = (
        "SELECT f.time_hour AS event_time, flight, temp FROM flights f LEFT JOIN weather w "
        f"ON f.origin = w.origin AND date(w.time_hour) = {next_day}"
    )
    joined = derive(
        sql(query),
        flights=[Block(rows=[flight(HOUR, number=1), flight(25 * HOUR, number=2)], watermark=99 * HOUR)],
        weather=[
            Block(rows=[reading(25 * HOUR, 1.0), reading(30 * HOUR, 2.0)], watermark=48 * HOUR - 1),
            Block(watermark=48 * HOUR),
            Block(watermark=73 * HOUR),
        ],
    )
    joined.pull(1, 1)
    joined.pull(1, 2)
    assert joined.rows() == [(A, HOUR, 1, 1.0), (A, HOUR, 1, 2.0)]
    joined.pull(1, 3)
    assert joined.rows()[2:] == [(A, 25 * HOUR, 2, None)]


@pytest.mark.parametrize("key", [{"a": 1, "b": [0.0]}, [1, 2], None])
def test_partners_are_found_by_structs_and_lists_too(key: object) -> None:
    type_ = (
        pa.list_(pa.int64())
        if isinstance(key, list)
        else pa.struct([("a", pa.int64()), ("b", pa.list_(pa.float64()))])
    )
    other = [3] if isinstance(key, list) else {"a": 2, "b": [1.0]}
    left = pa.table({"k": pa.array([key, other], type_), COMPLETE: [1, 2]})
    right = pa.table({"k": pa.array([key], type_), COMPLETE: [9]})
    recent = JoinKeys(("l", 0), ("r", 0)).recent({"l": left, "r": right}, 5)
    assert recent["l"].to_pylist() == left.slice(0, 1).to_pylist()
    assert recent["r"].equals(right)
