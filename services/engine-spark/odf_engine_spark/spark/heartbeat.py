"""Whether the JVM answers: it may be there and yet hang."""

import threading
import time
from collections.abc import Callable
from typing import Final

from odf_engine_spark.spark.jvm import Spark

SECONDS: Final = 1.0  # between questions
WELL: Final = 5.0  # seconds without an answer that mean nothing


class Pulse:
    """Asks the JVM for its time, again and again."""

    def __init__(self, spark: Spark, now: Callable[[], float] = time.monotonic) -> None:
        """Begin with an answer."""
        self._spark = spark
        self._now = now
        self._heard = now()

    @property
    def silence(self) -> float:
        """Return the seconds since the last answer."""
        return self._now() - self._heard

    def is_well(self) -> bool:
        """Tell whether the JVM has answered of late."""
        return self.silence < WELL

    def run(self, stop: threading.Event) -> None:
        """Ask until told to stop, or until the JVM has ended."""
        while not stop.wait(SECONDS) and self._spark.is_alive():
            self._spark.jvm.java.lang.System.nanoTime()
            self._heard = self._now()
