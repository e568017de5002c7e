from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest
from odf_testing.engine import (
    COUNTS,
    FROM,
    HOUR,
    HOURLY,
    MINUTE,
    TO,
    A,
    Block,
    Make,
    R,
    flight,
    ms,
    reading,
    sql,
)

from odf_common.errors import InvalidQuery
from odf_engine_spark.analysis.times import Lateness
from odf_engine_spark.plan.join_keys import JoinKeys
from odf_engine_spark.plan.late_records import last_ends
from odf_engine_spark.plan.segments import Segment
from odf_engine_spark.spark.logical_plans import COMPLETE
from odf_engine_spark.spark.progress import Progress
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


LATE_HINT = COUNTS.replace("SELECT", "SELECT /*+ LATE('2 hours') */", 1)


def test_late_records_correct_a_closed_window_within_the_bound(derive: Make) -> None:
    hourly = derive(
        sql(LATE_HINT),
        flights=[
            Block(rows=[flight(1, 1.0)], watermark=HOUR),
            Block(rows=[flight(2, 2.0), flight(3, 5.0, origin="LGA")]),
            Block(watermark=3 * HOUR),
            Block(rows=[flight(4, 9.0)]),
        ],
    )
    assert ms(hourly.pull(1)) == -HOUR
    assert hourly.rows() == [(A, 0, "JFK", 1, 1.0)]
    hourly.pull(2)
    corrected = [(FROM, 0, "JFK", 1, 1.0), (TO, 0, "JFK", 2, 3.0), (A, 0, "LGA", 1, 5.0)]
    assert hourly.rows()[1:] == corrected
    assert ms(hourly.pull(3)) == HOUR
    hourly.pull(4)
    assert len(hourly.rows()) == 4


def test_corrections_of_rows_without_their_key_are_retractions_and_appends(derive: Make) -> None:
    query = LATE_HINT.replace("AS event_time, origin,", "AS event_time,")
    hourly = derive(
        sql(query), flights=[Block(rows=[flight(1, 1.0)], watermark=HOUR), Block(rows=[flight(2, 2.0)])]
    )
    hourly.pull()
    assert hourly.rows() == [(A, 0, 1, 1.0), (R, 0, 1, 1.0), (A, 0, 2, 3.0)]


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELECT /*+ LATE('2 days') */ time_hour AS event_time FROM flights", "for GROUP BY window"),
        (LATE_HINT.replace("2 hours", "soon"), "takes a single interval"),
        (LATE_HINT.replace("2 hours", "1 month"), "takes a single interval"),
        (
            "SELECT /*+ LATE('2 days') */ max(time_hour) AS event_time FROM flights GROUP BY origin",
            "for GROUP BY window",
        ),
    ],
)
def test_what_late_records_cannot_correct_is_refused(derive: Make, query: str, says: str) -> None:
    with pytest.raises(InvalidQuery, match=says):
        derive(sql(query), flights=[Block(rows=[flight(1)])]).pull()


def test_late_records_without_a_bound_are_dropped_and_counted(derive: Make) -> None:
    hourly = derive(
        sql(COUNTS), flights=[Block(rows=[flight(1)], watermark=HOUR), Block(rows=[flight(2), flight(HOUR)])]
    )
    progress = Progress()
    (chain,) = hourly.chains
    request = hourly.request([0], [len(chain.blocks)], hourly.folder / "data", hourly.folder / "checkpoint")
    hourly.transforms.execute(request, progress)  # type: ignore[call-arg]
    assert progress.now.late == 1


def test_rows_that_show_a_part_of_their_key_are_not_distinguished_by_it(derive: Make) -> None:
    query = (
        "SELECT /*+ LATE('2 hours') */ window.start AS event_time, k.a AS a, count(*) AS n FROM "
        "(SELECT time_hour, named_struct('a', origin, 'b', flight) AS k FROM flights) GROUP BY window(time_hour, '1 hour'), k"
    )
    blocks = [
        Block(rows=[flight(1), flight(2, number=2), flight(3, number=2)], watermark=HOUR),
        Block(rows=[flight(4)] * 2),
    ]
    hourly = derive(sql(query), flights=blocks)
    hourly.pull()
    assert hourly.rows() == [(A, 0, "JFK", 1), (A, 0, "JFK", 2), (R, 0, "JFK", 1), (A, 0, "JFK", 3)]
