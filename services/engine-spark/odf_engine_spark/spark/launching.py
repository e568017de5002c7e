"""Starting Spark's JVM so that it dies with this process, whatever it does at that moment.

By itself it exits when its standard input ends. One that collects garbage looks there many seconds later, one that
was stopped never: so the kernel is asked to end it. PySpark has no place to say how its JVM is to be started.
"""

import atexit
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from pyspark import java_gateway

from odf_common.embedded.managed_process import launched

GRACE: Final = 5.0  # seconds for the JVM to remove its folders when the process ends by itself


@contextmanager
def bound_to_us() -> Iterator[None]:
    """Have a JVM that is started while the block runs die with this process.

    It dies with the thread that starts it, too: that has to be one that lives as long as the process.
    """
    spark: Any = java_gateway  # which has the name from `subprocess`
    plainly = spark.Popen

    def start(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":  # noqa: ANN401 - passed on
        process: subprocess.Popen[bytes] = plainly(launched(tuple(command)), **options)
        atexit.register(_end, process)
        return process

    spark.Popen = start
    try:
        yield
    finally:
        spark.Popen = plainly


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Let the JVM end by itself, since it leaves its folders behind otherwise."""
    if process.stdin is not None:
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
