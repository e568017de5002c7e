"""Starts Spark's JVM so that it dies with this process, whatever it is doing.

On its own, the JVM exits when its standard input closes. During a garbage collection it notices that many seconds
later, and while stopped (SIGSTOP) never: so the kernel is asked to kill it. PySpark has no option for the launcher.
"""

import atexit
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from pyspark import java_gateway

from odf_common.embedded.parts.managed_process import launched

JVM_EXIT_SECONDS: Final = 5.0  # for the JVM to remove its folders when the process exits normally


@contextmanager
def bound_to_us() -> Iterator[None]:
    """Make a JVM that is started inside the block die with this process.

    It also dies with the thread that starts it, which must therefore live as long as the process.
    """
    spark: Any = java_gateway  # it imported the name from `subprocess`
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
    """Let the JVM exit normally: killed, it leaves its folders behind."""
    if process.stdin is not None:
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(JVM_EXIT_SECONDS)
