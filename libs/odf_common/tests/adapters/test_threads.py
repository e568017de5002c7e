"""Pools of threads and servers while the system starts no other thread for the process."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from odf_common.adapters.grpc.client import channel
from odf_common.adapters.grpc.server import serve
from odf_common.adapters.local.faults import translating_os_errors, waiting_helps
from odf_common.adapters.threads import SteadyThreadPool
from odf_common.data.slices import read_slice
from odf_common.errors import ThreadRefused
from odf_common.service.consumer.pools import ElasticPool, SerialQueue

NO_THREAD = "can't start new thread"  # as Python says it
WAIT_SECONDS = 10


@contextmanager
def without_threads(monkeypatch: pytest.MonkeyPatch, times: int = 1000) -> Iterator[None]:
    """Let the next starts of threads fail."""
    start, left = threading.Thread.start, iter(range(times))

    def fail(thread: threading.Thread) -> None:
        if next(left, None) is None:
            start(thread)
        else:
            raise RuntimeError(NO_THREAD)

    with monkeypatch.context() as failing:
        failing.setattr(threading.Thread, "start", fail)
        yield


@pytest.mark.parametrize("border", [waiting_helps(), translating_os_errors])
def test_a_thread_that_is_refused_is_an_error_for_which_waiting_helps(
    border: Callable[..., Callable[[], None]],
) -> None:
    @border
    def work() -> None:
        raise RuntimeError(NO_THREAD)

    with pytest.raises(ThreadRefused, match="no other thread"):
        work()


def test_a_slice_for_which_arrow_gets_no_thread_is_not_corrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise pa.ArrowException(
            "Unknown error: Failed to launch worker thread: Resource temporarily unavailable"
        )

    file = tmp_path / "slice"
    pq.write_table(pa.table({"offset": [1]}), file)
    monkeypatch.setattr(pq.ParquetFile, "read", fail)
    with pytest.raises(ThreadRefused), waiting_helps():
        read_slice(file)


def test_other_errors_stay_bugs() -> None:
    with pytest.raises(RuntimeError, match="the cause"), waiting_helps():
        raise RuntimeError("the cause")


def test_a_pool_works_on_with_the_threads_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    with SteadyThreadPool(4, "test") as pool, without_threads(monkeypatch):
        assert [task.result(WAIT_SECONDS) for task in [pool.submit(abs, -1) for _ in range(3)]] == [1, 1, 1]


@pytest.mark.parametrize("queue", [lambda pool: pool, SerialQueue])
def test_an_elastic_pool_starts_its_thread_a_little_later(
    monkeypatch: pytest.MonkeyPatch, queue: Callable[[Executor], Executor]
) -> None:
    pool = ElasticPool(1, name="test")
    with without_threads(monkeypatch, times=2):
        assert queue(pool).submit(lambda: "done").result(WAIT_SECONDS) == "done"


@pytest.mark.parametrize("queue", [lambda pool: pool, SerialQueue])
def test_an_elastic_pool_works_after_it_had_no_thread(
    monkeypatch: pytest.MonkeyPatch, queue: Callable[[Executor], Executor]
) -> None:
    tasks = queue(ElasticPool(1, name="test"))
    with without_threads(monkeypatch), pytest.raises(RuntimeError, match=NO_THREAD):
        tasks.submit(lambda: "lost")
    assert tasks.submit(lambda: "done").result(WAIT_SECONDS) == "done"


# In a process of its own, as a channel that got no thread cannot be closed.
CALLS_WITHOUT_A_THREAD = f"""
import os, sys, threading
from grpc_health.v1 import health_pb2, health_pb2_grpc
from odf_common.adapters.grpc.client import channel
from odf_common.adapters.grpc.peer_credentials import PeerSecret
from odf_common.adapters.grpc.server import serve

def fail(thread):
    raise RuntimeError("{NO_THREAD}")

def call():
    request = health_pb2.HealthCheckRequest()
    if sys.argv[1] == "future":
        return health.Check.future(request, timeout={WAIT_SECONDS}).result({WAIT_SECONDS})
    return next(health.Watch(request, timeout={WAIT_SECONDS}))

secret = PeerSecret(text="a secret") if sys.argv[2] == "secret" else None
server = serve("127.0.0.1:0", lambda _: (), credentials=secret)
health = health_pb2_grpc.HealthStub(channel(f"127.0.0.1:{{server.port}}", secret))
start, threading.Thread.start = threading.Thread.start, fail
try:
    call()
except RuntimeError as error:
    print(error, flush=True)
threading.Thread.start = start
call()
print("answered", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("way", ["future", "stream"])
@pytest.mark.parametrize("secret", ["none", "secret"])
def test_calls_are_answered_after_one_that_got_no_thread(way: str, secret: str) -> None:
    command = [sys.executable, "-c", CALLS_WITHOUT_A_THREAD, way, secret]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=3 * WAIT_SECONDS, check=True)
    assert done.stdout.decode().splitlines() == [NO_THREAD, "answered"]


def test_a_server_answers_after_it_could_start_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve("127.0.0.1:0", lambda _: ())
    with channel(f"127.0.0.1:{server.port}") as open_channel:
        health = health_pb2_grpc.HealthStub(open_channel)
        with without_threads(monkeypatch):
            health.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_SECONDS)
        health.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_SECONDS)
    server.stop(0)
