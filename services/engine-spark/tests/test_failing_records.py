import errno
import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from odf_testing.engine import COUNTS, FROM, HOUR, MINUTE, TO, Block, Derivative, Make, flight, reading, sql
from pyspark.errors import PySparkException
from structlog.testing import capture_logs

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.errors import InvalidInput, StorageUnavailable, explain
from odf_common.metadata.engine_messages import TransformRequest, TransformResponseSuccess
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import QueryFailed
from odf_engine_spark.server.grpc_servicer import _response
from odf_engine_spark.spark.error_messages import FAULTS, query_fault
from odf_engine_spark.spark.jvm import Spark
from odf_engine_spark.spark.progress import Progress
from odf_engine_spark.transform.checkpoint import State, read_state
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


def test_a_hostile_checkpoint_is_refused(derive: Make) -> None:
    hourly = derive(sql(COUNTS), flights=[Block(rows=[flight(1)]), Block(watermark=HOUR)])
    hourly.pull(1)
    assert hourly.checkpoint is not None
    raw = hourly.checkpoint.read_bytes()
    for broken in (
        b"",
        b"junk",
        raw[:-40],
        raw.replace(b"odf-engine-spark/3", b"odf-engine-spark/9"),
        raw[:200],
    ):
        hourly.checkpoint.write_bytes(broken)
        with pytest.raises(InvalidInput, match="not a checkpoint"):
            hourly.pull(2)


def test_each_request_logs_its_records_and_the_size_of_its_checkpoint(derive: Make) -> None:
    hourly = derive(sql(COUNTS), flights=[Block(rows=[flight(1)]), Block(watermark=HOUR)])
    with capture_logs() as logs:
        hourly.pull(1)
        assert hourly.checkpoint is not None
        size = hourly.checkpoint.stat().st_size
        hourly.pull(2)
    prepared = [one["event"] for one in logs if "prepared" in one["event"]]
    assert prepared[-1] == "prepared transform reused"
    first, second = [one for one in logs if one["event"] == "transform executed"]
    assert (first["inputs"], first["records"], first["checkpoint_bytes"]) == ({"flights": 1}, 0, size)
    assert (second["inputs"], second["records"]) == ({"flights": 0}, 1)


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
    with pytest.raises(InvalidInput, match="out of range"):
        hourly.pull(2)


PASSING = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.ENOMEM)


def never(*_: object) -> None:
    raise AssertionError("it is no result")


@pytest.mark.parametrize("number", PASSING)
def test_a_request_that_meets_an_error_of_the_disk_has_no_result(number: int) -> None:
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(StorageUnavailable):
        _response("transform", fail, Progress(), invalid=never, failed=never)


def test_a_full_disk_of_spark_is_named_where_users_find_it() -> None:
    with pytest.raises(StorageUnavailable) as caught:
        query_fault(PySparkException("java.io.IOException: No space left on device"))
    said = explain(caught.value)
    assert "the disk of the engine's temporary files cannot be reached: No space left on device" in said
    assert "$ODF_HOME" in said


@pytest.mark.parametrize("number", PASSING)
def test_a_checkpoint_that_cannot_be_read_now_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(_: Path) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(StorageUnavailable):
        read_state(tmp_path / "checkpoint")


@contextmanager
def no_more_files() -> Iterator[None]:
    """Let this process open no file; its JVM still can."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_ = os.dup(0)
    os.close(next_)
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_query_whose_rows_no_socket_can_be_opened_for_fails_at_once_and_works_later(spark: Spark) -> None:
    frame = spark.frame(spark.parse("SELECT 1 AS x"))
    rows = spark.collect(frame)
    with no_more_files(), pytest.raises(OSError, match="Too many open files"):
        spark.collect(frame)
    assert spark.collect(frame) == rows


@pytest.mark.parametrize(
    "query",
    [
        "SELECT sum(size(sequence(1, 1000000000 + id))) FROM range(3)",
        "SELECT repeat('x', 2000000000) FROM range(1)",
    ],
)
def test_a_query_that_runs_out_of_memory_fails_alone(spark: Spark, query: str) -> None:
    greedy, other = spark.new_session(), spark.new_session()
    plan = greedy.frame(greedy.parse(query))
    with pytest.raises(FAULTS, match="OutOfMemoryError"):
        greedy.collect(plan)
    assert spark.is_alive()
    assert other.collect(other.frame(other.parse("SELECT count(*) AS n FROM range(9)"))).to_pylist() == [
        {"n": 9}
    ]
