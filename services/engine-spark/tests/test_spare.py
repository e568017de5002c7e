"""The keeper of two engines, over workers that are warm at once and write down that they serve."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from odf_engine_spark.spare import Worker, keep

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


class Keeper:
    """A keeper in a thread, and what its workers wrote."""

    def __init__(self, folder: Path, *texts: str, after: float) -> None:
        self.served = folder / "served"
        self.started: list[Worker] = []
        self.looks = 0
        self.stop = threading.Event()
        self.codes: list[int] = []
        self._texts = iter(texts)
        self._thread = threading.Thread(target=lambda: self.codes.append(self._keep(after)))
        self._thread.start()

    def _keep(self, after: float) -> int:
        return keep(self._start, self.stop, after=after, now=self._now)

    def _now(self) -> float:
        """Return a time that goes on by a second with each look."""
        self.looks += 1
        return self.looks

    def _start(self) -> Worker:
        worker = Worker.start((sys.executable, "-c", next(self._texts, WORKER), str(self.served)))
        self.started.append(worker)
        return worker

    def serving(self) -> list[int]:
        """Return who has served, the last one last."""
        return [int(line) for line in self.served.read_text().splitlines()] if self.served.exists() else []

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


@pytest.mark.parametrize("text", [COLD, WORKER.replace("time.sleep(600)", "while True: pass")])
def test_no_spare_is_started_while_the_first_is_cold_or_busy(tmp_path: Path, text: str) -> None:
    with keeper(tmp_path, text, after=8) as kept:
        until(lambda: kept.looks > 30)
        assert len(kept.started) == 1


def test_whoever_ends_the_keeper_ends_all(tmp_path: Path) -> None:
    with keeper(tmp_path) as kept:
        until(lambda: len(kept.started) == 2)
    assert kept.codes == [0]
    assert [worker.process.poll() is not None for worker in kept.started] == [True] * len(kept.started)
