"""Windowed queries: closing, lateness, retractions, joins, batching."""

import random
from collections import Counter
from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest

from odf_common.errors import InvalidInput, InvalidQuery
from odf_common.metadata.engine import TransformResponseSuccess
from odf_engine_spark.testing import HOUR, HOURLY, MINUTE, Block, Derivative, flight, reading, sql

Make = Callable[..., Derivative]
A, R, FROM, TO = 0, 1, 2, 3
COUNTS = (
    "SELECT window.start AS event_time, origin, count(*) AS n, sum(dep_delay) AS delay FROM flights "
    "GROUP BY window(time_hour, '1 hour'), origin"
)


def ms(answer: TransformResponseSuccess) -> int | None:
    return None if answer.new_watermark is None else answer.new_watermark.ms


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


def test_retractions_and_corrections_are_netted_before_aggregation(derive: Make) -> None:
    rows = [
        flight(1, 1.0), flight(2, 2.0), flight(1, 1.0, R), flight(2, 2.0, FROM), flight(3, 5.0, TO),
        flight(9, 9.0, R), flight(4, None), flight(4, None, R),
    ]  # fmt: skip
    hourly = derive(sql(COUNTS), flights=[Block(rows=rows[:2]), Block(rows=rows[2:], watermark=HOUR)])
    hourly.pull(1)
    hourly.pull(2)
    assert hourly.rows() == [(A, 0, "JFK", 1, 5.0)]


def test_a_correction_moves_a_record_to_another_window(derive: Make) -> None:
    rows = [flight(1, 1.0), flight(2, 3.0), flight(1, 1.0, FROM), flight(HOUR + 1, 1.0, TO)]
    hourly = derive(sql(COUNTS), flights=[Block(rows=rows, watermark=2 * HOUR)])
    hourly.pull()
    assert hourly.rows() == [(A, 0, "JFK", 1, 3.0), (A, HOUR, "JFK", 1, 1.0)]


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
    with pytest.raises(InvalidQuery, match=r"take window\.start"):
        derive(sql(query), flights=[Block(rows=[flight(1)])]).pull()


def test_sessions_told_by_their_start_have_no_watermark(derive: Make) -> None:
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


def _random_blocks(
    source: random.Random, make: Callable[[int], tuple[object, ...]], count: int
) -> list[Block]:
    blocks, watermark = [], 0
    for n in range(count):
        rows = [make(source.randrange(max(0, n - 2) * HOUR // 2, (n + 2) * HOUR // 2)) for _ in range(4)]
        watermark = max(watermark, source.randrange(0, (n + 1) * HOUR // 2))
        blocks.append(Block(rows=rows if source.random() < 0.8 else (), watermark=watermark if n else None))
    blocks.append(Block(watermark=9 * HOUR))
    return blocks


def test_batching_does_not_matter(derive: Make) -> None:
    source = random.Random(11)
    seen: list[tuple[object, ...]] = []

    def any_flight(at: int) -> tuple[object, ...]:
        if seen and source.random() < 0.2:
            return (R, *source.choice(seen)[1:])
        seen.append(flight(at, source.uniform(0, 1), origin=source.choice(["JFK", "LGA"])))
        return seen[-1]

    flights = _random_blocks(source, any_flight, 9)
    weather = _random_blocks(
        source, lambda at: reading(at, source.uniform(0, 9), source.choice(["JFK", "LGA"])), 9
    )
    whole = derive(sql(*HOURLY), flights=flights, weather=weather)
    whole.pull()
    assert len(whole.rows()) > 5
    for _ in range(5):
        cut = derive(sql(*HOURLY), flights=flights, weather=weather)
        steps = [[*sorted(source.choices(range(11), k=3)), 10] for _ in range(2)]
        for until in zip(*steps, strict=True):
            cut.pull(*until)
        assert Counter(cut.rows()) == Counter(whole.rows())
        assert cut.watermark == whole.watermark


def test_the_same_request_gives_the_same_bytes(derive: Make) -> None:
    source = random.Random(3)
    rows = [flight(source.randrange(3 * HOUR), source.uniform(0, 1)) for _ in range(300)]
    runs = [derive(sql(COUNTS), flights=[Block(rows=rows, watermark=2 * HOUR)]) for _ in range(2)]
    for run in runs:
        run.pull()
    for name in ("data-0", "checkpoint-0"):
        assert (runs[0].folder / name).read_bytes() == (runs[1].folder / name).read_bytes()


def test_a_hostile_checkpoint_is_refused(derive: Make) -> None:
    hourly = derive(sql(COUNTS), flights=[Block(rows=[flight(1)]), Block(watermark=HOUR)])
    hourly.pull(1)
    assert hourly.checkpoint is not None
    raw = hourly.checkpoint.read_bytes()
    for broken in (
        b"",
        b"junk",
        raw[:-40],
        raw.replace(b"odf-engine-spark/2", b"odf-engine-spark/9"),
        raw[:200],
    ):
        hourly.checkpoint.write_bytes(broken)
        with pytest.raises(InvalidInput, match="not a checkpoint"):
            hourly.pull(2)


def test_time_before_the_epoch_falls_into_the_window_that_holds_it(derive: Make) -> None:
    hourly = derive(sql(COUNTS), flights=[Block(rows=[flight(-1, 1.0)], watermark=0)])
    hourly.pull()
    assert hourly.rows() == [(A, -HOUR, "JFK", 1, 1.0)]


LATE_HINT = COUNTS.replace("SELECT", "SELECT /*+ LATE('2 hours') */", 1)


def test_late_records_correct_a_closed_window_within_the_bound(derive: Make) -> None:
    hourly = derive(
        sql(LATE_HINT),
        flights=[
            Block(rows=[flight(1, 1.0)], watermark=HOUR),
            Block(rows=[flight(2, 2.0), flight(3, 5.0, origin="LGA")]),
            Block(rows=[flight(1, 1.0, R), flight(2, 2.0, R)], watermark=3 * HOUR),
            Block(rows=[flight(4, 9.0)]),
        ],
    )
    assert ms(hourly.pull(1)) == -HOUR
    assert hourly.rows() == [(A, 0, "JFK", 1, 1.0)]
    hourly.pull(2)
    corrected = [(FROM, 0, "JFK", 1, 1.0), (TO, 0, "JFK", 2, 3.0), (A, 0, "LGA", 1, 5.0)]
    assert hourly.rows()[1:] == corrected
    assert ms(hourly.pull(3)) == HOUR
    assert hourly.rows()[4:] == [(R, 0, "JFK", 2, 3.0)]
    hourly.pull(4)
    assert len(hourly.rows()) == 5


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
        (LATE_HINT.replace("2 hours", "soon"), "takes one interval"),
        (LATE_HINT.replace("2 hours", "1 month"), "takes one interval"),
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
    from odf_engine_spark.progress import Progress

    hourly = derive(
        sql(COUNTS), flights=[Block(rows=[flight(1)], watermark=HOUR), Block(rows=[flight(2), flight(HOUR)])]
    )
    progress = Progress()
    (chain,) = hourly.chains
    request = hourly.request([0], [len(chain.blocks)], hourly.folder / "data", hourly.folder / "checkpoint")
    hourly.transforms.execute(request, progress)  # type: ignore[call-arg]
    assert progress.now.late == 1


def test_a_version_that_was_corrected_was_valid_until_then(derive: Make) -> None:
    query = (
        "SELECT f.time_hour AS event_time, w.temp FROM flights f JOIN weather FOR SYSTEM_TIME AS OF f.time_hour AS w "
        "ON f.origin = w.origin"
    )
    joined = derive(
        sql(query),
        flights=[Block(rows=[flight(15), flight(25), flight(35)], watermark=HOUR)],
        weather=[
            Block(rows=[reading(10, 1.0), reading(10, 1.0, op=FROM), reading(20, 2.0, op=TO)]),
            Block(rows=[reading(30, 3.0), reading(30, 3.0, op=R)], watermark=HOUR),
        ],
    )
    joined.pull()
    assert joined.rows() == [(A, 15, 1.0), (A, 25, 2.0), (A, 35, 2.0)]


def test_one_group_without_a_key(derive: Make) -> None:
    total = derive(
        sql("SELECT max(time_hour) AS event_time, count(*) AS n, avg(dep_delay) AS a FROM flights"),
        flights=[
            Block(rows=[flight(1, 1.0), flight(2, 3.0)]),
            Block(rows=[flight(2, 3.0, R)], watermark=HOUR),
        ],
    )
    assert total.pull().new_watermark is None
    one, two = (1, 1, 1.0), (2, 2, 2.0)
    assert total.rows() == [(A, *one), (FROM, *one), (TO, *two), (FROM, *two), (TO, *one)]


def test_a_join_without_bounds_looks_at_old_rows_only_for_new_partners(
    derive: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from odf_engine_spark.segments import Segment

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


def test_peers_of_a_running_sum_are_equal_in_all_that_orders_them(derive: Make) -> None:
    query = (
        "SELECT time_hour AS event_time, flight, sum(dep_delay) OVER w AS s, count(*) OVER w AS n FROM flights "
        "WINDOW w AS (PARTITION BY origin ORDER BY time_hour, flight DESC)"
    )
    rows = [flight(1, 1.0, number=1), flight(1, 2.0, number=2), flight(1, 4.0, number=2), flight(2, 8.0)]
    running = derive(sql(query), flights=[Block(rows=rows, watermark=HOUR)])
    running.pull()
    assert [row[2:] for row in running.rows()] == [(2, 6.0, 2), (2, 6.0, 2), (1, 7.0, 3), (1, 15.0, 4)]


@pytest.mark.parametrize("table", ["weather", "p"])
def test_of_versions_at_one_time_the_last_to_come_holds(derive: Make, table: str) -> None:
    step = ("p", "SELECT time_hour, origin, temp FROM weather")
    query = f"SELECT f.time_hour AS event_time, w.temp FROM flights f JOIN {table} FOR SYSTEM_TIME AS OF f.time_hour AS w ON f.origin = w.origin"
    weather = [
        reading(10, 50.0),
        reading(10, 50.0, op=FROM),
        reading(10, 20.0, op=TO),
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
    "day", ["date_trunc('day', date_trunc('hour', time_hour))", "CAST(date_trunc('hour', time_hour) AS DATE)"]
)
def test_times_may_be_truncated_again(derive: Make, day: str) -> None:
    query = f"SELECT {day} AS event_time, count(*) AS n FROM flights GROUP BY {day}"
    daily = derive(sql(query), flights=[Block(rows=[flight(1), flight(2 * HOUR)], watermark=24 * HOUR)])
    daily.pull()
    assert [row[2] for row in daily.rows()] == [2]


def test_a_watermark_beyond_all_times_in_a_checkpoint_is_refused(derive: Make) -> None:
    hourly = derive(sql(COUNTS), flights=[Block(rows=[flight(1)], watermark=HOUR), Block(watermark=2 * HOUR)])
    hourly.pull(1)
    assert hourly.checkpoint is not None
    raw = hourly.checkpoint.read_bytes()
    with pa.ipc.open_stream(raw) as stream:
        table = stream.read_all()
    metadata = {**(table.schema.metadata or {}), b"watermark": b"1" + b"0" * 30}
    with pa.ipc.new_stream(hourly.checkpoint, table.schema.with_metadata(metadata)) as stream:
        stream.write_table(table.replace_schema_metadata(metadata))
    with pytest.raises(InvalidInput, match="beyond all times"):
        hourly.pull(2)
