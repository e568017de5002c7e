"""Windowed queries: closing, lateness, retractions, order, times."""

import numpy as np
import pytest
from odf_testing.engine import COUNTS, HOUR, MINUTE, A, Block, Make, flight, ms, sql

from odf_common.errors import InvalidQuery
from odf_engine_spark.analysis.times import Lateness
from odf_engine_spark.plan.late_records import last_ends
from odf_engine_spark.transform.checkpoint import read_state


def test_a_window_closes_when_the_watermark_reaches_its_end(derive: Make) -> None:
    hourly = derive(
        sql(COUNTS),
        flights=[
            Block(rows=[flight(10, 1.0), flight(HOUR + 5, 2.0)], watermark=HOUR - 1),
            Block(watermark=HOUR),
            Block(rows=[flight(HOUR + 6, 3.0)], watermark=3 * HOUR + 7),
        ],
    )
    assert ms(hourly.pull(1)) == 0
    assert hourly.rows() == []
    hourly.pull(2)
    assert hourly.rows() == [(A, 0, "JFK", 1, 1.0)]
    assert ms(hourly.pull(3)) == 3 * HOUR
    assert hourly.rows()[1:] == [(A, HOUR, "JFK", 2, 5.0)]


def test_a_row_is_late_by_the_watermark_of_the_block_before_it(derive: Make) -> None:
    hourly = derive(
        sql(COUNTS),
        flights=[
            Block(rows=[flight(10, 1.0)], watermark=HOUR),
            Block(rows=[flight(20, 2.0), flight(HOUR, 4.0)], watermark=2 * HOUR),
        ],
    )
    hourly.pull()
    assert hourly.rows() == [(A, 0, "JFK", 1, 1.0), (A, HOUR, "JFK", 1, 4.0)]


def test_rows_of_the_block_that_sets_the_watermark_are_in_time(derive: Make) -> None:
    hourly = derive(sql(COUNTS), flights=[Block(rows=[flight(10, 1.0)], watermark=5 * HOUR)])
    hourly.pull()
    assert hourly.rows() == [(A, 0, "JFK", 1, 1.0)]


def test_results_are_in_total_order_nulls_first(derive: Make) -> None:
    rows = [flight(1, None, origin="B"), flight(1, 2.0, origin="A"), flight(HOUR, 1.0, origin="A")]
    query = (
        "SELECT window.start AS event_time, max(dep_delay) AS m, origin FROM flights "
        "GROUP BY window(time_hour, '1 hour'), origin"
    )
    hourly = derive(sql(query), flights=[Block(rows=rows[::-1], watermark=9 * HOUR)])
    hourly.pull()
    assert hourly.rows() == [(A, 0, None, "B"), (A, 0, 2.0, "A"), (A, HOUR, 1.0, "A")]


def test_event_times_that_are_shifted_shift_the_watermark(derive: Make) -> None:
    query = COUNTS.replace("window.start AS", "window.start - INTERVAL 1 DAY AS")
    shifted = derive(sql(query), flights=[Block(rows=[flight(1)], watermark=2 * HOUR)])
    assert ms(shifted.pull()) == -22 * HOUR
    assert shifted.rows() == [(A, -24 * HOUR, "JFK", 1, 0.0)]


def test_event_times_that_do_not_follow_from_the_inputs_are_refused(derive: Make) -> None:
    query = COUNTS.replace("window.start AS", "timestamp_millis(unix_millis(window.start) - 86400000) AS")
    with pytest.raises(InvalidQuery, match=r"use window\.start"):
        derive(sql(query), flights=[Block(rows=[flight(1)])]).pull()


def test_sessions_identified_by_their_start_have_no_watermark(derive: Make) -> None:
    query = "SELECT session_window.start AS event_time, count(*) AS n FROM flights GROUP BY session_window(time_hour, '5 minutes')"
    sessions = derive(sql(query), flights=[Block(rows=[flight(1), flight(9)], watermark=HOUR)])
    assert sessions.pull().new_watermark is None
    assert sessions.rows() == [(A, 1, 2)]


def test_filters_before_and_after_windows_and_windows_of_windows(derive: Make) -> None:
    transform = sql(
        ("late", "SELECT * FROM flights WHERE dep_delay > 1"),
        (
            "by_origin",
            "SELECT window, origin, count(*) AS n FROM late GROUP BY window(time_hour, '1 hour'), origin HAVING n > 1",
        ),
        "SELECT window.end AS event_time, sum(n) AS n FROM by_origin WHERE origin <> 'X' GROUP BY window",
    )
    rows = [flight(n, float(n), origin=o) for n in range(4) for o in ("JFK", "LGA", "X")]
    nested = derive(transform, flights=[Block(rows=rows, watermark=HOUR)])
    nested.pull()
    assert nested.rows() == [(A, HOUR, 4)]


def test_time_before_the_epoch_falls_into_the_window_that_holds_it(derive: Make) -> None:
    hourly = derive(sql(COUNTS), flights=[Block(rows=[flight(-1, 1.0)], watermark=0)])
    hourly.pull()
    assert hourly.rows() == [(A, -HOUR, "JFK", 1, 1.0)]


def test_a_record_exactly_at_a_session_s_end_belongs_to_it(derive: Make) -> None:
    query = "SELECT session_window.end AS event_time, count(*) AS n FROM flights GROUP BY session_window(time_hour, '10 minutes')"
    blocks = [
        Block(rows=[flight(0)], watermark=10 * MINUTE),
        Block(rows=[flight(10 * MINUTE)], watermark=20 * MINUTE + 1),
    ]
    stepwise, whole = derive(sql(query), flights=blocks), derive(sql(query), flights=blocks)
    stepwise.pull(1)
    assert stepwise.rows() == []
    stepwise.pull(2)
    whole.pull()
    assert stepwise.rows() == whole.rows() == [(A, 20 * MINUTE, 2)]


def test_records_that_a_session_leaves_out_are_not_kept(derive: Make) -> None:
    query = (
        "SELECT session_window.end AS event_time, count(*) AS n FROM flights WHERE flight > 1 "
        "GROUP BY session_window(time_hour, '10 minutes')"
    )
    rows = [flight(0), flight(MINUTE, number=2), flight(11 * MINUTE, number=2), flight(12 * MINUTE)]
    sessions = derive(sql(query), flights=[Block(rows=rows, watermark=15 * MINUTE), Block(watermark=HOUR)])
    sessions.pull(1)
    assert sessions.rows() == []
    assert sum(len(table) for table in read_state(sessions.checkpoint).tables.values()) == 2
    sessions.pull(2)
    assert sessions.rows() == [(A, 21 * MINUTE, 2)]
    assert not any(len(table) for table in read_state(sessions.checkpoint).tables.values())


def test_sums_next_to_distinct_aggregates_follow_the_order_of_the_records(derive: Make) -> None:
    query = (
        "SELECT date_trunc('hour', time_hour) AS event_time, count(DISTINCT flight) AS c, sum(dep_delay) AS s, "
        "count(DISTINCT flight) FILTER (WHERE flight > 1) AS d FROM flights GROUP BY date_trunc('hour', time_hour)"
    )
    rows = [flight(1, 1e16, number=1), flight(2, 1.0, number=2), flight(3, -1e16, number=1)]
    session = (
        query.replace("date_trunc('hour', time_hour) AS", "session_window.end AS")
        .replace("date_trunc('hour', ", "session_window(")
        .replace("time_hour)", "time_hour, '5 minutes')")
    )
    for text in (
        query,
        session,
        query.replace(" FILTER (WHERE flight > 1)", ""),
        query.replace("c, sum", "c, avg"),
    ):
        hourly = derive(sql(text), flights=[Block(rows=rows, watermark=HOUR)])
        hourly.pull()
        assert hourly.rows()[0][2:4] == (2, 0.0)


def test_several_orders_come_with_the_window(derive: Make) -> None:
    over = "OVER (PARTITION BY date_trunc('hour', time_hour) ORDER BY {}) AS {}"
    query = (
        f"SELECT time_hour AS event_time, row_number() {over.format('dep_delay', 'r')}, "
        f"sum(flight) {over.format('flight', 's')}, lead(flight) {over.format('time_hour', 'l')} FROM flights"
    )
    ranked = derive(
        sql(query), flights=[Block(rows=[flight(1, 2.0), flight(2, 1.0, number=3)], watermark=HOUR)]
    )
    answer = ranked.pull()
    assert ranked.rows() == [(A, 1, 2, 1, 3), (A, 2, 1, 4, None)]
    assert ms(answer) == HOUR


@pytest.mark.parametrize(
    "day", ["date_trunc('day', date_trunc('hour', time_hour))", "CAST(date_trunc('hour', time_hour) AS DATE)"]
)
def test_times_may_be_truncated_again(derive: Make, day: str) -> None:
    query = f"SELECT {day} AS event_time, count(*) AS n FROM flights GROUP BY {day}"
    daily = derive(sql(query), flights=[Block(rows=[flight(1), flight(2 * HOUR)], watermark=24 * HOUR)])
    daily.pull()
    assert [row[2] for row in daily.rows()] == [2]


DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("key", "ends"),
    [
        ("date_trunc('week', time_hour)", 4 * DAY),  # the epoch was a Thursday
        ("window(time_hour, '7 days')", 7 * DAY),
        ("window(time_hour - INTERVAL 4 DAYS, '7 days')", 4 * DAY),
        ("date_trunc('MONTH', time_hour)", 31 * DAY),
        ("trunc(date(time_hour), 'quarter')", 90 * DAY),
        ("date_trunc('year', date_trunc('hour', time_hour))", 365 * DAY),
        ("window(time_hour + INTERVAL 8 HOURS, '1 day')", 16 * HOUR),
        ("window(time_hour - INTERVAL 8 HOURS, '1 day')", 8 * HOUR),
        ("date_add(time_hour, 3)", DAY),
        ("window(date_trunc('hour', time_hour), '2 hours')", 2 * HOUR),
    ],
)
def test_a_record_is_late_when_its_window_has_ended(derive: Make, key: str, ends: int) -> None:
    time = "window.start" if key.startswith("window") else key
    if "4 DAYS" in key:  # a week that begins on a Monday
        time += " + INTERVAL 4 DAYS"
    query = f"SELECT {time} AS event_time, count(*) AS n FROM flights GROUP BY {key}"
    last = ends - 1
    blocks = [
        Block(rows=[flight(last)], watermark=last),
        Block(rows=[flight(last)], watermark=ends),
        Block(rows=[flight(last)], watermark=400 * DAY),
        Block(watermark=800 * DAY),
    ]
    whole, stepwise = (derive(sql(query), flights=blocks) for _ in range(2))
    whole.pull()
    for until in range(1, 5):
        stepwise.pull(until)
    assert stepwise.rows() == whole.rows()
    assert {row[-1] for row in whole.rows()} == {2}


def test_months_end_at_their_calendar_end() -> None:
    days = np.array(["2024-02-29", "2024-03-01", "1969-12-31", "2023-11-30"], "datetime64[us]").astype(
        np.int64
    )
    ends = {unit: last_ends(days, Lateness(unit=unit)).astype("datetime64[us]").astype(str) for unit in "mqy"}
    assert [each[:10] for each in ends["m"]] == ["2024-03-01", "2024-04-01", "1970-01-01", "2023-12-01"]
    assert [each[:10] for each in ends["q"]] == ["2024-04-01", "2024-04-01", "1970-01-01", "2024-01-01"]
    assert [each[:10] for each in ends["y"]] == ["2025-01-01", "2025-01-01", "1970-01-01", "2024-01-01"]
