"""Checks whether the JVM responds, as its process may be running but hang."""

import threading
import time
from collections.abc import Callable
from typing import Final

from odf_engine_spark.spark.jvm import Spark

# Each probe costs both processes some processor time, also while nothing runs.
PROBE_INTERVAL_SECONDS: Final = 2.0
TOLERATED_SILENCE_SECONDS: Final = 5.0  # without a response


class Heartbeat:
    """Probes the JVM periodically, by reading its clock."""

    def __init__(self, spark: Spark, now: Callable[[], float] = time.monotonic) -> None:
        """Count the JVM as responsive at first."""
        self._spark = spark
        self._now = now
        self._heard = now()

    @property
    def silence(self) -> float:
        """Return the seconds since the JVM last responded."""
        return self._now() - self._heard

    def is_well(self) -> bool:
        """Return whether the JVM has responded recently."""
        return self.silence < TOLERATED_SILENCE_SECONDS

    def run(self, stop: threading.Event) -> None:
        """Probe the JVM until `stop` is set or the JVM has exited."""
        while not stop.wait(PROBE_INTERVAL_SECONDS) and self._spark.is_alive():
            self._spark.method("java.lang.System.nanoTime")()
            self._heard = self._now()
