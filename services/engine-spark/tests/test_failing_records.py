"""A query that passes every check and fails on its records names the first one of them, by input and offset."""

from collections.abc import Sequence

import pytest
from odf_testing.engine import (
    FROM,
    HOUR,
    MINUTE,
    TO,
    Block,
    Derivative,
    Make,
    flight,
    reading,
    sql,
)

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import QueryFailed
from odf_engine_spark.spark.progress import Progress
from odf_engine_spark.transform.checkpoint import State
from odf_engine_spark.transform.execute_transform import Transforms
from odf_engine_spark.transform.failing_records import locate_failure
from odf_engine_spark.transform.inputs import Input, read_input

RATIO = "SELECT time_hour AS event_time, 1 / flight AS x FROM flights"
GROUPS = "SELECT max(time_hour) AS event_time, origin, avg(1 / flight) AS x FROM flights GROUP BY origin"
WINDOWS = "SELECT window.start AS event_time, avg(1 / flight) AS x FROM flights GROUP BY window(time_hour, '1 hour')"
JOIN = """
    SELECT f.time_hour AS event_time, 100 / CAST(temp AS INT) AS x FROM flights f JOIN weather w
    ON f.origin = w.origin AND w.time_hour BETWEEN f.time_hour AND f.time_hour + INTERVAL 1 HOUR
"""


class Stages(Progress):
    """Records all stages of a request."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def report(self, stage: str, *, rows: int = 0, total: int = 0) -> None:
        self.seen.append(stage)
        super().report(stage, rows=rows, total=total)


class Watched:
    """Requests whose stages are recorded."""

    def __init__(self, transforms: Transforms) -> None:
        self.transforms = transforms
        self.stages = Stages()

    def execute(self, request: TransformRequest) -> TransformResponseSuccess:
        return self.transforms.execute(request, self.stages)


class ByWire:
    """Requests through the client and the server."""

    def __init__(self, engine: EngineClient) -> None:
        self.engine = engine

    def execute(self, request: TransformRequest) -> TransformResponseSuccess:
        return self.engine.execute_transform(request)


def failure_of(out: Derivative) -> QueryFailed:
    with pytest.raises(QueryFailed) as caught:
        out.pull()
    return caught.value


def offsets(error: QueryFailed) -> list[tuple[int, int]]:
    return [(record.first, record.last) for record in error.records]


def flights(*numbers: int, at: int = 0) -> list[tuple[object, ...]]:
    return [flight(at + place, number=number) for place, number in enumerate(numbers)]


@pytest.mark.parametrize("query", [RATIO, GROUPS])
def test_the_first_record_that_fails_is_named_over_the_wire(
    derive: Make, engine: EngineClient, query: str
) -> None:
    blocks = [Block(rows=flights(4, 2, 5)), Block(rows=flights(1, 0, 3, 0))]
    error = failure_of(derive(sql(query), ByWire(engine), flights=blocks))
    assert offsets(error) == [(4, 4)]
    assert "Division by zero" in str(error)
    assert "line 1" in str(error)
    assert str(error).endswith("It fails on the record of flights at offset 4")


def test_a_record_that_a_window_has_kept_is_named_when_the_window_closes(derive: Make) -> None:
    out = derive(sql(WINDOWS), flights=[Block(rows=flights(1, 0, 2, at=MINUTE))])
    out.pull()
    assert out.rows() == []
    out.chains[0].add(Block(rows=flights(7, at=2 * HOUR), watermark=2 * HOUR))
    error = failure_of(out)
    assert offsets(error) == [(1, 1)]
    assert str(error).endswith("It fails on the record of flights at offset 1")


def test_a_pair_of_records_that_fails_in_a_join_is_named(derive: Make) -> None:
    inputs = {
        "flights": [Block(rows=[flight(0, origin=one) for one in ("JFK", "EWR", "LGA")], watermark=HOUR)],
        "weather": [
            Block(
                rows=[reading(MINUTE, temp, one) for one, temp in (("JFK", 5.0), ("LGA", 0.0), ("EWR", 1.0))],
                watermark=3 * HOUR,
            )
        ],
    }
    error = failure_of(derive(sql(JOIN), **inputs))
    assert offsets(error) == [(2, 2), (1, 1)]
    assert "on the record of flights at offset 2 and the record of weather at offset 1" in str(error)


def test_no_search_separates_the_halves_of_a_correction(derive: Make) -> None:
    rows = [flight(1), (FROM, 1, "AA", 1, "JFK", "LAX", 0.0), (TO, 1, "AA", 0, "JFK", "LAX", 0.0), flight(2)]
    error = failure_of(derive(sql(RATIO), flights=[Block(rows=rows)]))
    assert offsets(error) == [(1, 2)]
    assert "a record of flights between the offsets 1 and 2" in str(error)


def test_a_value_of_the_result_that_cannot_be_stored_names_its_record(derive: Make) -> None:
    query = "SELECT CASE WHEN flight > 0 THEN time_hour END AS event_time FROM flights"
    error = failure_of(derive(sql(query), flights=[Block(rows=flights(1, 1, 0, 1))]))
    assert offsets(error) == [(2, 2)]


def test_nothing_is_searched_for_if_the_check_of_the_result_knows_the_record(
    derive: Make, transforms: Transforms
) -> None:
    query = "SELECT time_hour AS event_time, timestamp_seconds(253402300799 + flight) AS x FROM flights"
    watched = Watched(transforms)
    error = failure_of(derive(sql(query), watched, flights=[Block(rows=flights(0, 0, 1, 0))]))
    assert offsets(error) == [(2, 2)]
    assert "searching" not in watched.stages.seen


def test_an_event_time_before_the_watermark_is_the_fault_of_the_query_and_not_of_a_record(
    derive: Make, engine: EngineClient, transforms: Transforms
) -> None:
    daily = (
        "SELECT window.start AS event_time, count(*) AS n FROM flights GROUP BY window(time_hour, '1 day')"
    )
    watched = Watched(transforms)
    blocks = [Block(rows=flights(1), watermark=5 * HOUR)]
    out = derive(sql(daily.replace("day", "hour")), watched, flights=blocks)
    out.pull()
    assert out.watermark == Timestamp.from_ms(5 * HOUR)
    out.transform = sql(daily)  # no migration, which would refuse it
    out.chains[0].add(Block(rows=flights(2, at=6 * HOUR), watermark=24 * HOUR))
    for via in (watched, ByWire(engine)):
        out.transforms = via
        error = failure_of(out)
        assert "is before the watermark" in str(error)
        assert "window.start" in error.instead
        assert offsets(error) == []
    assert "searching" not in watched.stages.seen


def test_a_search_without_time_left_names_a_range(derive: Make) -> None:
    out = derive(sql(RATIO), flights=[Block(rows=flights(*range(1, 9)))])
    request = out.request([0], [1], out.folder / "data", out.folder / "checkpoint")
    inputs = [read_input(one) for one in request.query_inputs]
    runs: list[int] = []

    def attempt(inputs: Sequence[Input], state: State) -> QueryFailed | None:
        runs.append(len(inputs[0].records))
        return QueryFailed(text="fewer") if runs[-1] > 5 else None

    error = QueryFailed(text="all")
    whole = locate_failure(error, request.query_inputs, inputs, State(), attempt)
    assert (offsets(whole), whole.text) == ([(5, 5)], "fewer\nIt fails on the record of flights at offset 5")
    assert len(runs) <= 4
    late = locate_failure(error, request.query_inputs, inputs, State(), attempt, seconds=0)
    assert late.text == "all\nIt fails on a record of flights between the offsets 0 and 7"


def test_a_value_out_of_range_advises_no_setting_of_spark(derive: Make) -> None:
    query = "SELECT time_hour AS event_time, CAST(flight AS DECIMAL(2,1)) AS x FROM flights"
    text = str(failure_of(derive(sql(query), flights=[Block(rows=flights(1, 100))])))
    assert "100 cannot be represented as Decimal(2, 1). SQLSTATE: 22003" in text
