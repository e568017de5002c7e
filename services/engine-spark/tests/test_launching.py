"""The JVM ends with its parent process, even if it cannot check whether the parent is still running."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from odf_cli.embedded.node_file import is_running

PATIENCE = 60.0  # seconds
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


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


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
