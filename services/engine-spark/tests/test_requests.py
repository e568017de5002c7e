import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import grpc
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from odf_testing.engine import LATE, Block, Make, flight, sql
from odf_testing.engine_contract import EngineContract
from pyspark.accumulators import AccumulatorTCPServer, UpdateRequestHandler
from structlog.testing import capture_logs

from odf_common.adapters.grpc.engine_client import EngineClient
from odf_common.adapters.grpc.server import serve
from odf_common.codec.flatbuffers import decode_message, encode_message
from odf_common.errors import Unavailable
from odf_common.metadata.engine_messages import (
    RawQueryRequest,
    TransformRequest,
    TransformResponseProgress,
    TransformResponseRoot,
    TransformResponseSuccess,
    Watermark,
)
from odf_common.metadata.events import TransformSql
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import EngineProgress, QueryTooSlow
from odf_common.proto.engine import engine_pb2, engine_pb2_grpc
from odf_engine_spark.server import requests as requests_module
from odf_engine_spark.server.grpc_servicer import register
from odf_engine_spark.server.messages import held_watermarks
from odf_engine_spark.server.requests import REQUEST_THREADS, Requests
from odf_engine_spark.spark import session
from odf_engine_spark.spark.job_group import TASK, running_tasks, stop_threads
from odf_engine_spark.spark.jvm import Spark
from odf_engine_spark.spark.progress import RequestCancelled

FLIGHTS = 10_000
PATIENCE = 200.0  # seconds; ending a task takes its turn on a busy machine


def pairs(size: int, table: str, *kept: str) -> str:
    """Return a query that makes `size` times `size` rows of each, and keeps none."""
    columns = ", ".join(kept)
    rows = f"SELECT {columns} explode(sequence(1, {size})) AS a FROM {table}"
    return f"SELECT * FROM (SELECT *, explode(sequence(1, {size})) AS b FROM ({rows})) WHERE a + b < 0"


# Takes minutes with that many flights; a task checks for cancellation between two flights.
LONG = sql(pairs(1000, "flights", "time_hour AS event_time", ""))


@dataclass
class Call:
    """A caller that disconnects on demand."""

    go: Callable[[], None] = field(default=lambda: None)

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.go = callback
        return True


@pytest.fixture
def stub(spark: Spark) -> Iterator[Any]:
    server = serve("127.0.0.1:0", register(spark, is_signed=False))
    channel = grpc.insecure_channel(f"127.0.0.1:{server.port}")
    yield engine_pb2_grpc.EngineStub(channel)
    channel.close()
    server.stop(0)


def asked(derive: Make, folder: Path, transform: TransformSql, rows: int = 1) -> TransformRequest:
    derivative = derive(transform, flights=[Block(rows=[flight(5, 70.0)] * rows, watermark=9)])
    return derivative.request([0], [1], folder / "data", folder / "checkpoint")


def wired(request: TransformRequest) -> engine_pb2.TransformRequest:
    return engine_pb2.TransformRequest(flatbuffer=encode_message(request))


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


def jobs(spark: Spark) -> list[int]:
    return list(spark.session.sparkContext.statusTracker().getActiveJobsIds())


def tasks(spark: Spark) -> int:
    """Return how many threads of the JVM run a task."""
    threads = spark.method("java.lang.Thread.getAllStackTraces")().keySet().toArray()
    return sum(each.getName().startswith(TASK) for each in threads)


def test_progress_is_reported_to_the_caller(derive: Make, engine: EngineClient, tmp_path: Path) -> None:
    heard: list[EngineProgress] = []
    engine.execute_transform(asked(derive, tmp_path, sql(LATE)), heard.append)
    assert heard[0].rows == 0
    assert heard[-1].stage == "writing"


def test_late_records_are_reported_to_the_caller(derive: Make, engine: EngineClient, tmp_path: Path) -> None:
    counted = "SELECT window.start AS event_time, count(*) AS n FROM flights GROUP BY window(time_hour, '10 seconds')"
    blocks = [Block(rows=[flight(5_000)], watermark=20_000), Block(rows=[flight(6_000), flight(25_000)])]
    derivative = derive(sql(counted), flights=blocks)
    heard: list[EngineProgress] = []
    request = derivative.request([0], [2], tmp_path / "data", tmp_path / "checkpoint")
    engine.execute_transform(request, heard.append)
    assert heard[-1].late == 1


def test_a_reader_of_the_first_field_alone_reads_the_same(derive: Make, stub: Any, tmp_path: Path) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="old.proto", package="old", syntax="proto3")
    field = file.message_type.add(name="TransformResponse").field.add(name="flatbuffer", number=1)
    field.label, field.type = field.LABEL_OPTIONAL, field.TYPE_BYTES
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    old = message_factory.GetMessageClass(pool.FindMessageTypeByName("old.TransformResponse"))
    answers = list(stub.ExecuteTransform(wired(asked(derive, tmp_path, sql(LATE)))))
    read: list[Any] = [old.FromString(each.SerializeToString()) for each in answers]
    values = [decode_message(TransformResponseRoot, each.flatbuffer).value for each in read]
    assert answers[-1].progress.stage == "writing"
    assert set(values[:-1]) == {TransformResponseProgress()}
    assert isinstance(values[-1], TransformResponseSuccess)
    assert [encode_message(TransformResponseRoot(value=each)) for each in values] == [
        each.flatbuffer for each in answers
    ]


@pytest.mark.parametrize("way", ["cancel", "deadline"])
def test_a_call_that_no_client_waits_for_leaves_no_job(
    derive: Make, stub: Any, spark: Spark, tmp_path: Path, way: str
) -> None:
    request = wired(asked(derive, tmp_path, LONG, FLIGHTS))
    call = stub.ExecuteTransform(request, timeout=5 if way == "deadline" else None)
    next(call)
    until(lambda: bool(jobs(spark)) and tasks(spark) > 0)
    if way == "cancel":
        call.cancel()
    with pytest.raises(grpc.RpcError):
        list(call)
    until(lambda: not jobs(spark) and not tasks(spark))
    assert not (tmp_path / "data").exists()


def test_an_error_of_the_callback_ends_the_call(
    derive: Make, engine: EngineClient, spark: Spark, tmp_path: Path
) -> None:
    def refuse(_: EngineProgress) -> None:
        if tasks(spark):
            raise QueryTooSlow(text="too slow")

    with pytest.raises(QueryTooSlow):
        engine.execute_transform(asked(derive, tmp_path, LONG, FLIGHTS), refuse)
    until(lambda: not jobs(spark) and not tasks(spark))
    assert not (tmp_path / "data").exists()


def test_a_small_request_does_not_wait_for_large_ones(
    derive: Make, stub: Any, engine: EngineClient, spark: Spark, tmp_path: Path
) -> None:
    request = wired(asked(derive, tmp_path, LONG, FLIGHTS))
    calls = [stub.ExecuteTransform(request) for _ in range(REQUEST_THREADS - 1)]
    until(lambda: tasks(spark) == REQUEST_THREADS - 1)
    (tmp_path / "small").mkdir()
    engine.execute_transform(asked(derive, tmp_path / "small", sql(LATE)))
    assert tasks(spark) == REQUEST_THREADS - 1
    for call in calls:
        call.cancel()
    until(lambda: not jobs(spark) and not tasks(spark))


def test_waiting_transforms_do_not_delay_preprocessing_or_queries(
    derive: Make, stub: Any, engine: EngineClient, spark: Spark, tmp_path: Path
) -> None:
    request = wired(asked(derive, tmp_path, LONG, FLIGHTS))
    calls = [stub.ExecuteTransform(request) for _ in range(REQUEST_THREADS + 1)]
    until(lambda: tasks(spark) == REQUEST_THREADS)
    given, made = tmp_path / "given", tmp_path / "made"
    pq.write_table(pa.table({"id": [1, 2]}), given)
    preprocess = RawQueryRequest(
        input_data_paths=(str(given),),
        transform=sql("SELECT id + 1 AS id FROM input"),
        output_data_path=str(made),
    )
    assert engine.execute_raw_query(preprocess).num_records == 2
    assert engine.query("SELECT 1 AS one", ()).to_pylist() == [{"one": 1}]
    assert tasks(spark) == REQUEST_THREADS
    for call in calls:
        call.cancel()
    until(lambda: not jobs(spark) and not tasks(spark))


def test_a_call_to_a_silent_engine_times_out_and_its_job_ends(
    derive: Make, spark: Spark, tmp_path: Path
) -> None:
    server = serve("127.0.0.1:0", register(spark, is_signed=False, is_well=lambda: False))
    client = EngineClient(f"127.0.0.1:{server.port}", silence=3)
    with pytest.raises(Unavailable, match="no heartbeat for 3 s"):
        client.execute_transform(asked(derive, tmp_path, LONG, FLIGHTS))
    until(lambda: not jobs(spark) and not tasks(spark))
    client.close()
    server.stop(0)


def test_a_cancelled_task_that_continues_is_reported(spark: Spark) -> None:
    query = pairs(6_000, "(SELECT 1)")
    stuck = threading.Event()
    requests = Requests(spark, is_well=lambda: True, on_stuck=stuck.set, grace=0)
    call = Call()
    reports = requests.reports(call, lambda _: spark.collect(spark.frame(spark.parse(query))))
    next(reports)
    until(lambda: tasks(spark) > 0)
    call.go()
    assert stuck.wait(PATIENCE)
    *_, last = reports
    assert last.done is not None
    with pytest.raises(RequestCancelled):
        last.done.result()
    until(lambda: not tasks(spark))


@dataclass
class PoolThread:
    """A thread of Spark's pool, which is named like its task; another thread may take a task once it is stopped."""

    name: str
    other: "PoolThread | None" = None
    stops: int = 0

    def getName(self) -> str:  # noqa: N802 - Java's
        return self.name

    def stop(self) -> None:
        self.stops += 1
        if self.other is not None:
            self.other.name = f"{TASK} 0.0 in stage 9.0 (TID 9)"


@dataclass
class PoolSpark:
    """A JVM that has these threads only."""

    threads: list[PoolThread]

    def method(self, name: str) -> Callable[[], "PoolSpark"]:
        assert name == "java.lang.Thread.getAllStackTraces"
        return lambda: self

    def keySet(self) -> "PoolSpark":  # noqa: N802 - Java's
        return self

    def toArray(self) -> list[PoolThread]:  # noqa: N802 - Java's
        return self.threads


def test_a_thread_that_has_taken_another_task_meanwhile_is_not_stopped() -> None:
    second = PoolThread(f"{TASK} 1.0 in stage 7.0 (TID 2)")
    first = PoolThread(f"{TASK} 0.0 in stage 7.0 (TID 1)", other=second)
    stop_threads(running_tasks(cast("Spark", PoolSpark([first, second])), {7}))
    assert (first.stops, second.stops) == (1, 0)


def test_a_failed_cancellation_is_logged(spark: Spark, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the JVM is gone")

    monkeypatch.setattr(requests_module, "cancel", fail)
    requests = Requests(spark, is_well=lambda: True, on_stuck=lambda: None)
    call, ended = Call(), threading.Event()
    reports = requests.reports(call, lambda _: ended.wait())
    with capture_logs() as logs:
        next(reports)
        call.go()
        until(lambda: any(line["event"] == "a request could not be cancelled" for line in logs))
    ended.set()
    *_, last = reports
    assert last.done is not None


def mark(text: str) -> Watermark:
    return Watermark(system_time=Timestamp(0), event_time=Timestamp.parse(text))


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ("9999-12-31T23:59:59Z", ["2262-04-11T23:47:16.854Z"]),
        ("2262-04-11T23:47:16.855Z", ["2262-04-11T23:47:16.854Z"]),
        ("2262-04-11T23:47:16.854Z", ["2262-04-11T23:47:16.854Z"]),
        ("2020-01-01T00:00:00.000000001Z", ["2020-01-01T00:00:00.000000001Z"]),
        ("1677-09-21T00:12:44Z", ["1677-09-21T00:12:44Z"]),
        ("0001-01-01T00:00:00Z", []),
    ],
)
def test_a_watermark_is_held_or_promises_less(given: str, held: list[str]) -> None:
    found = [str(one.event_time) for one in held_watermarks([mark(given)])]
    assert found == held
    assert all(-(2**63) <= Timestamp.parse(one).ns < 2**63 for one in found)


def test_a_connection_that_is_refused_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(AccumulatorTCPServer, "handle_error", session._log_refusal)
    server = AccumulatorTCPServer(("127.0.0.1", 0), UpdateRequestHandler, "a-token")
    port = int(server.server_address[1])
    serving = threading.Thread(target=server.serve_forever)
    with capture_logs() as entries:
        serving.start()
        for sent in (b"\xff" * 100, b"other-token", b""):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                assert client.recv(1) == b""
        server.shutdown()
        serving.join()
        server.server_close()
    assert [entry["why"] for entry in entries] == ["UnicodeDecodeError", "ValueError", "ValueError"]
    assert capfd.readouterr().err == ""


class TestEngine(EngineContract):
    """Client, wire and server."""
