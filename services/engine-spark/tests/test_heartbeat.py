"""Health checks of the JVM, with a fake that answers on demand."""

import threading
from typing import Any

import pytest

from odf_engine_spark.spark import heartbeat
from odf_engine_spark.spark.heartbeat import TOLERATED_SILENCE_SECONDS, Heartbeat

PATIENCE = 60.0  # seconds


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
