import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pytest
from odf_testing.engine import (
    COUNTS,
    FROM,
    HOUR,
    HOURLY,
    LATE,
    MINUTE,
    TO,
    A,
    Block,
    Derivative,
    Make,
    R,
    flight,
    reading,
    sql,
)

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.errors import InvalidQuery
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.ports.engine import QueryFailed, QueryOutOfMemory
from odf_engine_spark.plan.segments import _chunks


@dataclass(frozen=True, slots=True)
class ByWire:
    engine: EngineClient

    def execute(self, request: TransformRequest) -> TransformResponseSuccess:
        return self.engine.execute_transform(request)


def operations(derivative: Derivative) -> list[object]:
    return [row[0] for row in derivative.rows()]


def test_late_flights_keep_order_and_get_system_columns(derive: Make) -> None:
    late = derive(
        sql(LATE), flights=[Block(rows=[flight(5, 70.0), flight(3, 10.0), flight(1, 60.0)], watermark=4)]
    )
    answer = late.pull()
    assert late.rows() == [(A, 5, "AA", 1, "JFK", "LAX", 70.0), (A, 1, "AA", 1, "JFK", "LAX", 60.0)]
    assert answer.new_offset_interval is not None
    assert (answer.new_offset_interval.start, answer.new_offset_interval.end) == (0, 1)
    assert answer.new_watermark is not None
    assert answer.new_watermark.ms == 4
    table = late.tables[0]
    assert table.column_names[:4] == ["offset", "op", "system_time", "event_time"]
    assert table.schema.field("offset").type == pa.uint64()
    assert not table.schema.field("event_time").nullable
    assert table.column("offset").to_pylist() == [0, 1]


def test_nothing_new_writes_an_empty_slice_with_the_schema_and_keeps_the_watermark(derive: Make) -> None:
    late = derive(sql(LATE), flights=[Block(rows=[flight(5, 70.0)], watermark=4), Block(watermark=9)])
    late.pull(1)
    answer = late.pull(2)
    assert answer.new_offset_interval is None
    assert answer.new_watermark is not None
    assert answer.new_watermark.ms == 9
    assert late.tables[1].schema == late.tables[0].schema


def test_a_correction_that_passes_the_filter_whole_remains_one(derive: Make) -> None:
    late = derive(
        sql(LATE), flights=[Block(rows=[flight(5, 70.0, FROM), flight(5, 80.0, TO), flight(5, 90.0, R)])]
    )
    late.pull()
    assert operations(late) == [FROM, TO, R]


def test_half_a_correction_becomes_a_retraction_or_an_append(derive: Make) -> None:
    rows = [flight(5, 70.0, FROM), flight(5, 10.0, TO), flight(5, 1.0, FROM), flight(5, 99.0, TO)]
    late = derive(sql(LATE), flights=[Block(rows=rows)])
    late.pull()
    assert operations(late) == [R, A]


def test_exploded_corrections_become_retractions_and_appends(derive: Make) -> None:
    query = "SELECT time_hour AS event_time, n FROM flights LATERAL VIEW explode(sequence(1, flight)) t AS n"
    rows = [flight(5, op=FROM, number=2), flight(5, op=TO, number=1), flight(6, number=2)]
    exploded = derive(sql(query), flights=[Block(rows=rows)])
    exploded.pull()
    assert exploded.rows() == [(R, 5, 1), (R, 5, 2), (A, 5, 1), (A, 6, 1), (A, 6, 2)]


def test_union_all_orders_by_input_then_offset_then_branch(derive: Make) -> None:
    query = (
        "SELECT time_hour AS event_time, origin, 'w' AS kind FROM weather UNION ALL "
        "SELECT time_hour AS event_time, origin, 'f' AS kind FROM flights UNION ALL "
        "SELECT time_hour AS event_time, dest AS origin, 'd' AS kind FROM flights"
    )
    both = derive(
        sql(query),
        flights=[Block(rows=[flight(1), flight(2)], watermark=7)],
        weather=[Block(rows=[(0, 3, "LGA", 1.0)], watermark=5)],
    )
    answer = both.pull()
    assert [(row[1], row[3]) for row in both.rows()] == [(1, "f"), (1, "d"), (2, "f"), (2, "d"), (3, "w")]
    assert answer.new_watermark is not None
    assert answer.new_watermark.ms == 5


def test_the_watermark_waits_for_every_input(derive: Make) -> None:
    query = (
        "SELECT time_hour AS event_time FROM flights UNION ALL SELECT time_hour AS event_time FROM weather"
    )
    both = derive(sql(query), flights=[Block(rows=[flight(1)], watermark=7)], weather=[Block()])
    assert both.pull().new_watermark is None


def test_steps_with_and_stars_see_data_columns_and_drop_system_columns(derive: Make) -> None:
    transform = sql(
        ("late", "WITH x AS (SELECT * FROM flights) SELECT * FROM x WHERE dep_delay > 1"),
        "SELECT late.*, time_hour AS event_time FROM late UNION ALL SELECT *, time_hour FROM late",
    )
    stars = derive(transform, flights=[Block(rows=[flight(5, 2.0, R), flight(6, 0.5)])])
    stars.pull()
    assert stars.tables[0].column_names == [
        "offset", "op", "system_time", "event_time", "time_hour", "carrier", "flight", "origin", "dest", "dep_delay",
    ]  # fmt: skip
    assert operations(stars) == [R, R]


def test_a_null_event_time_is_refused(derive: Make) -> None:
    query = "SELECT CASE WHEN flight = 1 THEN NULL ELSE time_hour END AS event_time FROM flights"
    nulls = derive(sql(query), flights=[Block(rows=[flight(5)])])
    with pytest.raises(InvalidQuery, match="no event time"):
        nulls.pull()


def test_dates_are_event_times_and_timestamps_are_stored_as_spark_has_them(derive: Make) -> None:
    query = "SELECT CAST(time_hour AS DATE) AS event_time, time_hour AS at, flight + 1L AS n FROM flights"
    dates = derive(sql(query), flights=[Block(rows=[flight(25 * HOUR)])])
    dates.pull()
    schema = dates.tables[0].schema
    assert schema.field("event_time").type == pa.date32()
    assert schema.field("at").type == pa.timestamp("us", "UTC")
    assert schema.field("n").type == pa.int64()


def test_any_grouping_of_blocks_gives_the_same_records(derive: Make) -> None:
    source = random.Random(7)
    blocks = [
        Block(
            rows=[
                flight(source.randrange(100), source.uniform(0, 120), source.choice([A, R])) for _ in range(5)
            ],
            watermark=n * 10,
        )
        for n in range(8)
    ]
    whole = derive(sql(LATE), flights=blocks)
    whole.pull()
    for _ in range(4):
        cut = derive(sql(LATE), flights=blocks)
        for until in sorted({*source.sample(range(1, 8), 3), 8}):
            cut.pull(until)
        assert cut.rows() == whole.rows()
        assert cut.watermark == whole.watermark


def test_large_requests_pass_in_chunks_with_one_order(derive: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odf_engine_spark.plan.segments.RECORDS_PER_RUN", 3)
    rows = [flight(n, 70.0, FROM if n % 2 else TO) for n in range(1, 11)]
    late = derive(sql(LATE), flights=[Block(rows=rows)])
    late.pull()
    assert operations(late) == [FROM, TO] * 5


def test_no_chunk_cuts_a_correction() -> None:
    import numpy as np

    assert _chunks(np.array([A, FROM, TO, A]), 2) == [(0, 3), (3, 4)]


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ("SELECT 1 / (flight - 1) AS x, time_hour AS event_time FROM flights", QueryFailed),
        ("SELECT CASE WHEN flight = 0 THEN time_hour END AS event_time FROM flights", QueryFailed),
        ("SELECT CAST(origin AS INT) AS x, time_hour AS event_time FROM flights", QueryFailed),
        (
            "SELECT repeat(left(origin, 1), 2000000000) AS x, time_hour AS event_time FROM flights",
            QueryOutOfMemory,
        ),
        ("SELECT repeat(origin, 2000000000) AS x, time_hour AS event_time FROM flights", QueryFailed),
        ("SELECT rand() AS x, time_hour AS event_time FROM flights", InvalidQuery),
        ("SELECT reflect('java.lang.System', 'gc') AS x, time_hour AS event_time FROM flights", InvalidQuery),
        ("SELEC time_hour AS event_time FROM flights", InvalidQuery),
    ],
)
def test_callers_know_a_refused_query_from_one_that_fails_on_records(
    derive: Make, engine: EngineClient, query: str, kind: type[InvalidQuery]
) -> None:
    out = derive(sql(query), ByWire(engine), flights=[Block(rows=[flight(5)])])
    with pytest.raises(InvalidQuery) as caught:
        out.pull()
    assert type(caught.value) is kind
    assert caught.value.code == "InvalidQuery"


def test_transforms_run_over_the_wire(derive: Make, engine: EngineClient) -> None:
    late = derive(sql(LATE), ByWire(engine), flights=[Block(rows=[flight(5, 70.0)], watermark=4)])
    assert late.pull().new_offset_interval is not None
    bad = derive(
        sql("SELECT 1/0 AS x, time_hour AS event_time FROM flights"),
        ByWire(engine),
        flights=[Block(rows=[flight(5)])],
    )
    with pytest.raises(InvalidQuery, match="Division by zero") as caught:
        bad.pull()
    assert "line 1, position 8" in str(caught.value)
    assert "org.apache" not in str(caught.value)
    assert "ansi" not in str(caught.value)


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
    flights = _random_blocks(
        source, lambda at: flight(at, source.uniform(0, 1), origin=source.choice(["JFK", "LGA"])), 9
    )
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


@pytest.mark.parametrize("function", ["percentile(dep_delay, 0.5)", "max(flight)", "max(dest)"])
def test_floats_of_many_groups_are_summed_in_the_order_of_records(derive: Make, function: str) -> None:
    source = random.Random(3)
    query = COUNTS.replace("count(*)", function).replace("1 hour", "20 minutes")
    blocks = []
    for n in range(4):
        times = [source.randrange(max(0, n - 2) * 10 * MINUTE, (n + 1) * 10 * MINUTE) for _ in range(1500)]
        rows = [flight(at, source.uniform(0, 1), origin=str(source.randrange(300))) for at in times]
        blocks.append(Block(rows=rows, watermark=max(0, n - 2) * 10 * MINUTE))
    blocks.append(Block(watermark=9 * HOUR))
    whole, stepwise = (derive(sql(query), flights=blocks) for _ in range(2))
    whole.pull()
    for until in range(1, 6):
        stepwise.pull(until)
    assert stepwise.rows() == whole.rows()
