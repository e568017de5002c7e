"""Starts Spark's JVM so that it is killed with this process, and with only the environment variables that it needs.

By itself, the JVM exits when its standard input is closed. It notices that many seconds later during a garbage
collection, and never while it is stopped (SIGSTOP). So the kernel is asked to kill it. PySpark has no option for this,
so its `Popen` is replaced.
"""

import atexit
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from pyspark import java_gateway

from odf_common.service.die_with_parent import with_parent_death_signal
from odf_common.service.environments import program_environment

# By PySpark: no Spark Connect, and the file in which the JVM leaves the port and the secret of its gateway.
_FROM_PYSPARK: Final = ("SPARK_CONNECT_MODE", "_PYSPARK_DRIVER_CONN_INFO_PATH")
JVM_EXIT_SECONDS: Final = 5.0  # for the JVM to remove its folders when the process exits normally


@contextmanager
def bound_to_us(variables: Mapping[str, str]) -> Iterator[None]:
    """Start JVMs inside the `with` block with few environment variables and `variables`, and bound to this process.

    The kernel kills such a JVM with this process, and also with the thread that starts it. So that thread must live as
    long as the process.
    """
    spark: Any = java_gateway  # it imported the name from `subprocess`
    plainly = spark.Popen

    def start(command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> "subprocess.Popen[bytes]":  # noqa: ANN401 - passed on
        own = {name: env[name] for name in _FROM_PYSPARK if name in env}
        environment = {**program_environment(env), **own, **variables}
        process: subprocess.Popen[bytes] = plainly(
            with_parent_death_signal(tuple(command)), env=environment, **options
        )
        atexit.register(_end, process)
        return process

    spark.Popen = start
    try:
        yield
    finally:
        spark.Popen = plainly


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Let the JVM exit normally, because a killed JVM leaves its folders behind."""
    if process.stdin is not None:
        process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(JVM_EXIT_SECONDS)
