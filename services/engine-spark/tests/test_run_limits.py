"""Limits on the run of an ad-hoc query: time, its result, memory; and callers that go away."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.adapters.grpc.server import serve
from odf_common.errors import InvalidQuery
from odf_common.ports.engine import QueryNotWanted, QueryOutOfMemory, QueryTable
from odf_common.proto.engine import engine_pb2, engine_pb2_grpc
from odf_engine_spark.server.grpc_servicer import register
from odf_engine_spark.server.requests import MemoryRetry, Requests
from odf_engine_spark.spark.error_messages import FAULTS, query_fault
from odf_engine_spark.spark.jvm import Spark
from odf_engine_spark.spark.progress import Progress, RequestCancelled
from odf_engine_spark.spark.query_limits import MIB, QueryLimits
from odf_engine_spark.transform.adhoc import run_query

PATIENCE = 60.0  # seconds
ENDLESS = "SELECT count(*) FROM range(100000000000)"
STOPPED_AFTER = 3.0  # seconds
SLOW = "levenshtein(repeat('ab', 200000), repeat('ba', 200000))"  # takes minutes, and looks at no interrupt
AT_PLANNING = {  # Spark evaluates these when it analyses or optimises a query
    "select": f"SELECT {SLOW} AS x",
    "inline table": f"SELECT * FROM VALUES ({SLOW}) AS t(x)",
    "limit": f"SELECT * FROM range(5) LIMIT {SLOW}",
    "range": f"SELECT * FROM range({SLOW})",
    "argument": f"SELECT schema_of_json(CAST({SLOW} AS STRING)) AS x",
    "special date": f"SELECT CAST(CAST({SLOW} AS STRING) AS DATE) AS x",
    "where": f"SELECT * FROM range(5) WHERE {SLOW} = id",
    "lambda over an inline table": "SELECT aggregate(sequence(1, 100000), 0, (a, e) -> a + size(sequence(e, e + n))) "
    "FROM VALUES (1000000) AS t(n)",
    "task": "SELECT aggregate(sequence(1, 100000), 0, (a, e) -> a + size(sequence(e, e + 1000000))) FROM range(1)",
}
# Without an end to it, the JVM would collect garbage for minutes.
SLOWLY_FILLED = "transform(sequence(0, 30000000), x -> named_struct('a', x, 'b', cast(x AS string)))"
CROSS_JOIN = "SELECT a.id, b.id AS other FROM range(502000) AS a CROSS JOIN range(502000) AS b"


@contextmanager
def serving(spark: Spark, limits: QueryLimits) -> Iterator[EngineClient]:
    server = serve("127.0.0.1:0", register(replace(spark, limits=limits), is_signed=False))
    client = EngineClient(f"127.0.0.1:{server.port}")
    try:
        yield client
    finally:
        client.close()
        server.stop(0)


def jobs(spark: Spark) -> list[int]:
    return list(spark.session.sparkContext.statusTracker().getActiveJobsIds())


def planning(spark: Spark) -> list[str]:
    """Return the stacks of the JVM that evaluate a constant of a plan."""
    threads = spark.method("java.lang.Thread.getAllStackTraces")().keySet().toArray()
    text_of = spark.method("scala.runtime.ScalaRunTime.stringOf")
    texts = [str(text_of(thread.getStackTrace())) for thread in threads if thread.getName()[:7] == "Thread-"]
    return [text for text in texts if "levenshteinDistance" in text]


@dataclass
class Caller:
    """A caller that goes away on demand."""

    go_away: Callable[[], None] = field(default=lambda: None)

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.go_away = callback
        return True


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("limits", "query", "text"),
    [
        (
            QueryLimits(run_seconds=1),
            ENDLESS,
            r"did not finish within 1 s \(ODF_QUERY_TIMEOUT_MS\): read fewer",
        ),
        (
            QueryLimits(result_bytes=1 << 20),
            CROSS_JOIN,
            r"the result has more than 1 MiB \(ODF_QUERY_MAX_BYTES\): select fewer columns",
        ),
        (
            QueryLimits(result_rows=99_999),
            "SELECT id FROM range(100000)",
            "the result has more than 99,999 rows: aggregate, or use LIMIT",
        ),
        (
            QueryLimits(disk_share=1e-6),
            CROSS_JOIN,
            r"the temporary files of queries have taken \d+ MiB, 0% of the free disk: read fewer records",
        ),
    ],
    ids=["time", "bytes", "rows", "disk"],
)
def test_a_run_beyond_a_limit_ends_and_names_it(
    spark: Spark, limits: QueryLimits, query: str, text: str
) -> None:
    with serving(spark, limits) as engine, pytest.raises(InvalidQuery, match=text):
        engine.query(query, ())
    until(lambda: not jobs(spark))


def test_the_limit_of_bytes_holds_while_files_vanish(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    glob = Path.glob

    def with_a_removed_one(folder: Path, pattern: str) -> list[Path]:
        return [*glob(folder, pattern), folder / "blockmgr-0" / "00" / "rdd_0_0"]

    monkeypatch.setattr(Path, "glob", with_a_removed_one)
    with (
        serving(spark, QueryLimits(result_bytes=MIB)) as engine,
        pytest.raises(InvalidQuery, match="than 1 MiB"),
    ):
        engine.query(CROSS_JOIN, ())
    until(lambda: not jobs(spark))


@pytest.mark.parametrize(
    "shape", ["SELECT count(*) FROM {}", "SELECT 1 AS x WHERE 3 IN (SELECT count(*) FROM {})"]
)
def test_a_plan_of_too_many_tasks_is_refused_before_it_runs(spark: Spark, shape: str) -> None:
    union = f"({' UNION ALL '.join(['SELECT id FROM range(1)'] * 30)})"
    query = shape.format(f"{union} AS a CROSS JOIN {union} AS b CROSS JOIN {union} AS c")
    with pytest.raises(
        InvalidQuery, match="would run as 27,000 tasks, more than 10,000: a join that is not on"
    ):
        run_query(spark, query, ())
    limits = QueryLimits(tasks=900)
    query = shape.format(f"{union} AS a CROSS JOIN {union} AS b")
    assert len(run_query(replace(spark, limits=limits), query, ()).read_all()) < 2
    with pytest.raises(InvalidQuery, match="900 tasks, more than 899"):
        run_query(replace(spark, limits=replace(limits, tasks=899)), query, ())


@pytest.mark.parametrize(
    "query",
    [
        *(
            f"SELECT /*+ {hint} */ * FROM range(10)"
            for hint in ("REPARTITION(9)", "REPARTITION(9, id)", "COALESCE(9)", "REPARTITION_BY_RANGE(9, id)")
        ),
        "SELECT * FROM range(10) DISTRIBUTE BY id",
        "SELECT * FROM range(10) CLUSTER BY id",
    ],
)
def test_no_query_chooses_its_partitions(spark: Spark, query: str) -> None:
    with pytest.raises(InvalidQuery, match=r"cannot be used in a query|only SELECT queries are allowed"):
        run_query(spark, query, ())


@pytest.mark.parametrize("query", AT_PLANNING.values(), ids=AT_PLANNING)
def test_what_is_evaluated_before_the_run_ends_at_the_time_limit(spark: Spark, query: str) -> None:
    stuck = threading.Event()
    limited = replace(spark, limits=QueryLimits(run_seconds=1))
    requests = Requests(limited, is_well=lambda: True, on_stuck=stuck.set, grace=STOPPED_AFTER)
    with pytest.raises(InvalidQuery, match=r"did not finish within 1 s \(ODF_QUERY_TIMEOUT_MS\)"):
        requests.result(Caller(), lambda progress: run_query(limited, query, (), progress))
    assert not stuck.is_set()
    # Its thread serves others.
    answer = requests.result(Caller(), lambda progress: run_query(spark, "SELECT 1 AS one", (), progress))
    assert answer.read_all().to_pylist() == [{"one": 1}]


def test_constants_that_take_minutes_delay_no_other_query(spark: Spark) -> None:
    with serving(spark, QueryLimits(run_seconds=2)) as engine, ThreadPoolExecutor() as callers:
        slow = [callers.submit(engine.query, query, ()) for query in list(AT_PLANNING.values())[:3]]
        until(lambda: len(planning(spark)) == len(slow))
        assert engine.query("SELECT 1 AS one", ()).to_pylist() == [{"one": 1}]
        for query in slow:
            with pytest.raises(InvalidQuery, match="did not finish within 2 s"):
                query.result(PATIENCE)
    until(lambda: not planning(spark))


def test_planning_that_no_caller_waits_for_ends(spark: Spark) -> None:
    caller = Caller()
    requests = Requests(spark, is_well=lambda: True, on_stuck=lambda: None, grace=STOPPED_AFTER)
    reports = requests.reports(caller, lambda progress: run_query(spark, f"SELECT {SLOW} AS x", (), progress))
    next(reports)
    until(lambda: bool(planning(spark)))
    caller.go_away()
    *_, last = reports
    assert last.done is not None
    with pytest.raises(RequestCancelled):
        last.done.result()


def test_a_result_at_its_limits_is_returned_whole(spark: Spark) -> None:
    with serving(spark, QueryLimits(result_rows=100_000, result_bytes=2 << 20)) as engine:
        assert engine.query("SELECT id FROM range(100000)", ())["id"].to_pylist() == list(range(100_000))


@pytest.mark.parametrize(
    "query", ["SELECT 1000000 - id AS offset FROM range(1000000)", "SELECT * FROM backwards"]
)
def test_a_result_out_of_order_is_sorted_by_offset_outside_of_this_process(
    spark: Spark, tmp_path: Path, query: str
) -> None:
    file = tmp_path / "slice"
    offsets = pa.array(range(1_000_000, 0, -1), pa.uint64())
    pq.write_table(pa.table({"offset": offsets}), file)
    table = QueryTable(name="backwards", schema=pq.read_schema(file), data_paths=(str(file),))
    del offsets
    used = pa.total_allocated_bytes()
    with run_query(spark, query, (table,)) as reader:
        assert pa.total_allocated_bytes() - used < 2 << 20  # bytes
        rows = reader.read_all().column("offset")
    assert rows.equals(pa.chunked_array([range(1, 1_000_001)]))


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT * FROM VALUES (2, 'a'), (NULL, 'b'), (1, 'c') AS t(offset, x)", ["c", "a", "b"]),
        ("SELECT * FROM VALUES (2.5, 'a'), (1.5, 'b') AS t(OFFSET, x)", ["b", "a"]),
        ("SELECT * FROM VALUES (2, 1, 'a'), (1, 2, 'b') AS t(offset, offset, x)", ["a", "b"]),
        ("SELECT * FROM VALUES (array(2), 'a'), (array(1), 'b') AS t(offset, x)", ["a", "b"]),
        ("SELECT * FROM VALUES (1, 'a'), (2, 'b') AS t(offset, x) ORDER BY x DESC", ["b", "a"]),
        ("SELECT * FROM (VALUES (2, 'a'), (1, 'b'), (0, 'c') AS t(offset, x)) LIMIT 2", ["b", "a"]),
    ],
)
def test_only_numbers_named_offset_sort_a_result_without_order(
    engine: EngineClient, query: str, rows: list[str]
) -> None:
    assert engine.query(query, ())["x"].to_pylist() == rows


def test_results_leave_no_file(engine: EngineClient, spark: Spark) -> None:
    folder = Path(str(spark.session.sparkContext.getConf().get("spark.local.dir")))
    assert engine.query("SELECT id FROM range(100000)", ()).num_rows == 100_000
    until(lambda: not list(folder.glob("blockmgr-*/*/rdd_*")))


def test_results_have_no_row_or_all_kinds_of_columns(engine: EngineClient) -> None:
    assert engine.query("SELECT id, 'a' AS s FROM range(0)", ()).to_pylist() == []
    row = (
        "SELECT true AS b, 1Y AS y, 1.5BD AS d, 2.5D AS f, X'00ff' AS x, DATE '2026-01-31' AS day, "
        "TIMESTAMP '2026-01-31 12:00:00' AS at, array(1, NULL) AS l, map('k', 'v') AS m, "
        "named_struct('p', 1, 'q', array('r')) AS s, NULL AS n"
    )
    (found,) = engine.query(f"{row} UNION ALL {row} LIMIT 1", ()).to_pylist()
    assert (found["b"], found["y"], found["f"], found["x"]) == (True, 1, 2.5, b"\x00\xff")
    assert (str(found["d"]), str(found["day"]), found["at"].isoformat()) == (
        "1.5",
        "2026-01-31",
        "2026-01-31T12:00:00+00:00",
    )
    assert (found["l"], found["m"], found["s"], found["n"]) == (
        [1, None],
        [("k", "v")],
        {"p": 1, "q": ["r"]},
        None,
    )


def test_a_constant_that_is_nested_too_deeply_is_the_querys_fault(spark: Spark) -> None:
    with pytest.raises(InvalidQuery, match=r"a function cannot compute a value: Document nesting depth"):
        run_query(spark, "SELECT schema_of_json(repeat('[', 100000)) AS x", ())


@pytest.mark.parametrize(
    "query",
    [
        "SELECT repeat('x', 2000000000) AS x",
        "SELECT length(repeat(CAST(id AS STRING), 2000000000)) AS x FROM range(1)",
        "SELECT size(collect_list(repeat('x', 100000) || id)) AS n FROM range(100000)",
        f"SELECT size({SLOWLY_FILLED}) AS n",
        f"SELECT size({SLOWLY_FILLED.replace('0, ', 'id, ')}) AS n FROM range(1)",
    ],
)
def test_a_query_without_memory_says_so_and_others_continue(engine: EngineClient, query: str) -> None:
    faults: list[Exception] = []
    ended = threading.Event()
    answers = 0

    def ask() -> None:
        nonlocal answers
        while not ended.is_set():
            try:
                assert engine.query("SELECT max(id) AS x FROM range(1000)", ()).to_pylist() == [{"x": 999}]
                answers += 1
            except Exception as error:  # noqa: BLE001 - the test asserts that there is none
                faults.append(error)

    others = [threading.Thread(target=ask) for _ in range(2)]
    for other in others:
        other.start()
    try:
        with pytest.raises(InvalidQuery, match="the query needs too much memory: read fewer records"):
            engine.query(query, ())
    finally:
        ended.set()
        for other in others:
            other.join()
    assert faults == []
    assert answers > 0


@pytest.mark.parametrize("way", ["cancel", "deadline"])
def test_a_query_that_no_caller_waits_for_ends(spark: Spark, way: str) -> None:
    with serving(spark, QueryLimits()) as engine:
        stub: Any = engine_pb2_grpc.EngineStub(engine._channel)
        call = stub.Query(engine_pb2.QueryRequest(sql=ENDLESS), timeout=3 if way == "deadline" else None)
        next(call)
        until(lambda: bool(jobs(spark)))
        if way == "cancel":
            call.cancel()
        with pytest.raises(grpc.RpcError):
            list(call)
        until(lambda: not jobs(spark))


def test_a_query_that_is_no_longer_wanted_ends(engine: EngineClient, spark: Spark) -> None:
    with pytest.raises(QueryNotWanted):
        list(engine.query_stream(ENDLESS, (), is_wanted=lambda: not jobs(spark)))
    until(lambda: not jobs(spark))


def test_a_slow_reader_of_a_result_keeps_the_engine_for_others(spark: Spark) -> None:
    server = serve("127.0.0.1:0", register(spark, is_signed=False))
    client = EngineClient(f"127.0.0.1:{server.port}", quiet=2)
    try:
        chunks = client.query_stream("SELECT id FROM range(2000000)", ())
        first = next(chunks)
        time.sleep(4)  # longer than the engine may be silent
        assert not client.is_silent
        assert client.query("SELECT 1 AS one", ()).to_pylist() == [{"one": 1}]
        with pa.ipc.open_stream(b"".join((first, *chunks))) as stream:
            assert stream.read_all().num_rows == 2_000_000
    finally:
        client.close()
        server.stop(0)


def test_a_step_of_a_transform_with_too_many_rows_is_refused_instead_of_waited_for(spark: Spark) -> None:
    greedy = spark.new_session()
    rows = greedy.frame(greedy.parse("SELECT id, id + 1 AS b, id + 2 AS c, id + 3 AS d FROM range(15000000)"))
    with pytest.raises(FAULTS) as caught:
        greedy.collect(rows)
    assert "its result has more than 448 MiB for the records of one run" in str(query_fault(caught.value))


def test_work_that_runs_out_of_memory_next_to_others_runs_once_more() -> None:
    memory, ended, calls = MemoryRetry(), threading.Event(), list[int]()

    def greedy(calls_until_success: int) -> str:
        calls.append(1)
        if len(calls) < calls_until_success:
            raise QueryOutOfMemory
        return "done"

    with pytest.raises(QueryOutOfMemory):
        memory.run(lambda: greedy(2), Progress())
    assert len(calls) == 1, "it ran alone"
    other = threading.Thread(target=lambda: memory.run(ended.wait, Progress()))
    other.start()
    until(lambda: memory.running == 1)
    assert memory.run(lambda: greedy(3), Progress()) == "done"
    with pytest.raises(QueryOutOfMemory):
        memory.run(lambda: greedy(6), Progress())
    assert len(calls) == 5, "once more, and no more"
    ended.set()
    other.join()
    assert memory.running == 0
