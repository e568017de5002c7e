import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from odf_cli.embedded.node_file import is_running
from odf_engine_spark.server.service import EXIT_JVM_LOST
from odf_engine_spark.server.standby import GO, READY, Worker, await_turn, keep
from odf_engine_spark.spark import heartbeat
from odf_engine_spark.spark.heartbeat import TOLERATED_SILENCE_SECONDS, Heartbeat

PATIENCE = 60.0  # seconds
WORKER = """
import os, socket, sys, time
line = socket.socket(fileno=0)
line.send(b"r")
if line.recv(1) == b"g":
    with open(sys.argv[1], "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(600)
"""
COLD = "import time; time.sleep(600)"
# Busy with children, as a JVM is: one process alone could get so little of a loaded machine that it would seem idle.
BUSY = WORKER.replace(
    "time.sleep(600)", "os.fork(); os.fork(); parent = os.getppid()\n    while os.getppid() == parent: pass"
)
# The engine's own worker over a process that is not a JVM, but ends with its standard input as one does; it records
# the process, and every question that it is asked. Names in capitals are set by the test.
WATCHING = """
import os, subprocess, sys, time
from types import SimpleNamespace
from odf_common.service.environment import IsolatedEnvironment
from odf_common.service.settings import Settings
from odf_engine_spark.server import service
from odf_engine_spark.spark import heartbeat
from odf_engine_spark.spark.jvm import Spark
class Watched(Spark):
    def method(self, name):
        return {"java.lang.System.nanoTime": answer}[name]
def answer():
    with open(sys.argv[1] + ".asked", "a") as file:
        file.write("?")
    time.sleep(THINKS)
def start(master, limits):
    machine = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    with open(f"{sys.argv[1]}.{os.getpid()}", "w") as file:
        file.write(f"{machine.pid}\\n")
    context = SimpleNamespace(_gateway=SimpleNamespace(proc=machine))
    return Watched(SimpleNamespace(sparkContext=context, stop=machine.kill))
service.start, service.HUNG_AFTER_SECONDS, heartbeat.PROBE_INTERVAL_SECONDS = start, HUNG, 0.01
service.build_worker(IsolatedEnvironment(settings=Settings.from_env({"ODF_ENGINE": "127.0.0.1:1"})))
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""


class Keeper:
    """A keeper in a thread, and what its workers wrote."""

    def __init__(self, folder: Path, *texts: str, after: float) -> None:
        self.served = folder / "served"
        self.started: list[Worker] = []
        self.looks = 0
        self.stop = threading.Event()
        self.codes: list[int] = []
        self._texts = iter(texts)
        self._thread = threading.Thread(target=lambda: self.codes.append(self._keep(after)), daemon=True)
        self._thread.start()

    def _keep(self, after: float) -> int:
        return keep(self._start, self.stop, after=after, now=self._now)

    def _now(self) -> float:
        """Return a time that advances by a second with each call."""
        self.looks += 1
        return self.looks

    def _start(self) -> Worker:
        worker = Worker.start((sys.executable, "-c", next(self._texts, WORKER), str(self.served)))
        self.started.append(worker)
        return worker

    def serving(self) -> list[int]:
        """Return the workers that have served, in order."""
        return [int(line) for line in self.served.read_text().splitlines()] if self.served.exists() else []

    def machine_of(self, worker: Worker) -> int:
        """Return the process that stands for a worker's JVM."""
        return int(self.served.with_name(f"served.{worker.process.pid}").read_text())

    def was_asked(self) -> bool:
        """Return whether a worker has asked whether its JVM responds."""
        return self.served.with_name("served.asked").exists()

    def end(self) -> None:
        self.stop.set()
        self._thread.join(PATIENCE)

    def has_ended(self) -> bool:
        return bool(self.codes)


@contextmanager
def keeper(folder: Path, *texts: str, after: float = 0.0) -> Iterator[Keeper]:
    kept = Keeper(folder, *texts, after=after)
    try:
        yield kept
    finally:
        kept.end()


def watching(*, hung: float = 3600.0, thinks: float = 0.0) -> str:
    """Return a worker that ends after `hung` seconds of a silent JVM, which takes `thinks` seconds to answer."""
    return WATCHING.replace("THINKS", str(thinks)).replace("= start, HUNG", f"= start, {hung}")


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def test_the_spare_serves_when_the_first_ends_and_another_spare_is_started(tmp_path: Path) -> None:
    with keeper(tmp_path) as kept:
        until(lambda: len(kept.started) == 2 and kept.started[1].is_ready)
        first, second = kept.started
        assert kept.serving() == [first.process.pid]
        os.kill(first.process.pid, signal.SIGKILL)
        until(lambda: kept.serving() == [first.process.pid, second.process.pid])
        until(lambda: len(kept.started) == 3)
        assert not kept.has_ended()


def test_the_engine_serves_on_while_no_spare_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = Keeper._start, list[str]()

    def fail_later(kept: Keeper) -> Worker:
        if kept.started and len(refused) < 2:
            refused.append("no")
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return start(kept)

    monkeypatch.setattr(Keeper, "_start", fail_later)
    with keeper(tmp_path) as kept:
        until(lambda: len(kept.started) == 2 and kept.started[1].is_ready)
        assert kept.serving() == [kept.started[0].process.pid]
    assert len(refused) == 2


def test_without_a_spare_that_is_warm_the_keeper_ends_as_the_engine_did(tmp_path: Path) -> None:
    with keeper(tmp_path, WORKER, COLD) as kept:
        until(lambda: len(kept.started) == 2)
        os.kill(kept.started[0].process.pid, signal.SIGKILL)
        until(kept.has_ended)
        assert kept.codes == [-signal.SIGKILL]
        assert kept.started[1].process.poll() is not None


def test_a_spare_that_ends_is_replaced(tmp_path: Path) -> None:
    with keeper(tmp_path) as kept:
        until(lambda: len(kept.started) == 2)
        os.kill(kept.started[1].process.pid, signal.SIGKILL)
        until(lambda: len(kept.started) == 3)
        assert kept.started[0].process.poll() is None


def test_a_spare_that_has_lost_its_jvm_ends_and_another_one_serves(tmp_path: Path) -> None:
    with keeper(tmp_path, WORKER, watching()) as kept:
        until(lambda: len(kept.started) == 2 and kept.started[1].is_ready)
        first, lost = kept.started
        os.kill(kept.machine_of(lost), signal.SIGKILL)
        until(lambda: len(kept.started) == 3 and kept.started[2].is_ready)
        assert lost.process.returncode == EXIT_JVM_LOST
        os.kill(first.process.pid, signal.SIGKILL)
        until(lambda: kept.serving() == [first.process.pid, kept.started[2].process.pid])


def test_a_spare_whose_jvm_hangs_ends(tmp_path: Path) -> None:
    with keeper(tmp_path, WORKER, watching(hung=0.0, thinks=600.0)) as kept:
        until(lambda: len(kept.started) == 3)
        assert kept.started[1].process.returncode == EXIT_JVM_LOST


def test_a_spare_polls_its_jvm_while_it_waits_and_then_serves(tmp_path: Path) -> None:
    with keeper(tmp_path, WORKER, watching()) as kept:
        until(lambda: len(kept.started) == 2 and kept.started[1].is_ready and kept.was_asked())
        first, second = kept.started
        os.kill(first.process.pid, signal.SIGKILL)
        until(lambda: kept.serving() == [first.process.pid, second.process.pid])


def test_what_a_worker_does_while_it_waits_stops_when_it_may_serve() -> None:
    keepers, workers = socket.socketpair()
    begun, ended = threading.Event(), threading.Event()

    def watch(stop: threading.Event) -> None:
        begun.set()
        if stop.wait(PATIENCE):
            ended.set()

    with keepers, workers:
        waiting = threading.Thread(target=lambda: await_turn(workers, meanwhile=(watch,)), daemon=True)
        waiting.start()
        assert keepers.recv(1) == READY
        assert begun.wait(PATIENCE)
        assert not ended.is_set()
        keepers.send(GO)
        waiting.join(PATIENCE)
        assert ended.wait(PATIENCE)


@pytest.mark.parametrize("text", [COLD, BUSY])
def test_no_spare_is_started_while_the_first_is_cold_or_busy(tmp_path: Path, text: str) -> None:
    with keeper(tmp_path, text, after=8) as kept:
        until(lambda: kept.looks > 16)
        assert len(kept.started) == 1


def test_ending_the_keeper_ends_all(tmp_path: Path) -> None:
    with keeper(tmp_path) as kept:
        until(lambda: len(kept.started) == 2)
    assert kept.codes == [0]
    assert [worker.process.poll() is not None for worker in kept.started] == [True] * len(kept.started)


AT_WORK = """
import threading
import time
from odf_engine_spark.spark import session
session._warm = lambda _: None  # only the query below matters
spark = session.start("local[1]")
count = lambda: spark.collect(spark.frame(spark.parse("SELECT count(*) FROM range(1000000000000) WHERE id % 7 = sqrt(id)")))
threading.Thread(target=count, daemon=True).start()
while not spark.session.sparkContext.statusTracker().getActiveJobsIds():
    time.sleep(0.05)
print(spark.session.sparkContext._gateway.proc.pid, flush=True)
input()
"""


@contextmanager
def engine(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A process whose JVM runs a query that does not end, and the JVM; its temporary folders are in `folder`."""
    with subprocess.Popen(
        [sys.executable, "-c", AT_WORK],
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        jvm = int(process.stdout.readline())
        try:
            yield process, jvm
        finally:
            process.kill()


def test_a_jvm_that_cannot_check_its_parent_ends_when_that_is_killed(tmp_path: Path) -> None:
    with engine(tmp_path) as (process, jvm):
        os.kill(jvm, signal.SIGSTOP)
        process.kill()
        until(lambda: not is_running(jvm))


def test_a_busy_jvm_ends_with_its_process_and_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "with a blank"
    folder.mkdir()
    with engine(folder) as (process, jvm):
        assert any(file.name.startswith("spark-") for file in folder.iterdir())
        process.communicate("\n")
        assert process.returncode == 0
        assert not is_running(jvm)
    assert [file.name for file in folder.iterdir() if file.name.startswith(("spark-", "blockmgr-"))] == []


class Machine:
    """A JVM that answers while `answers` is set; `asked` is set with each question."""

    def __init__(self) -> None:
        self.answers, self.asked = threading.Event(), threading.Event()
        self.is_there = True
        self.method = {"java.lang.System.nanoTime": self._answer}.__getitem__

    def is_alive(self) -> bool:
        return self.is_there

    def _answer(self) -> int:
        self.asked.set()
        assert self.answers.wait(PATIENCE)
        return 0


def test_a_jvm_that_does_not_respond_is_unhealthy_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "PROBE_INTERVAL_SECONDS", 0.01)
    machine, time, stop = Machine(), [0.0], threading.Event()
    spark: Any = machine
    watched = Heartbeat(spark, now=lambda: time[0])
    asking = threading.Thread(target=watched.run, args=(stop,), daemon=True)
    asking.start()
    assert machine.asked.wait(PATIENCE)
    assert watched.is_well()
    time[0] = TOLERATED_SILENCE_SECONDS + 1
    assert not watched.is_well()
    assert watched.silence == TOLERATED_SILENCE_SECONDS + 1
    machine.asked.clear()
    machine.answers.set()
    assert machine.asked.wait(PATIENCE), "the first question was answered, and the next one asked"
    assert watched.is_well()
    stop.set()
    asking.join(PATIENCE)
    assert not asking.is_alive()


def test_no_worker_polls_a_jvm_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "PROBE_INTERVAL_SECONDS", 0.0)
    machine = Machine()
    machine.is_there = False
    spark: Any = machine
    Heartbeat(spark).run(threading.Event())
    assert not machine.asked.is_set()
