import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from odf_common.adapters.local import durable

HOLD = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that holds the lock and does nothing."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process


def test_waiting_for_a_lock_that_another_process_keeps_times_out_and_its_holder_is_named(
    tmp_path: Path, holder: "subprocess.Popen[bytes]"
) -> None:
    with pytest.raises(durable.LockHeld) as caught, durable.lock_file(tmp_path / "lock", wait_seconds=0.05):
        pass

    assert caught.value.holder == holder.pid
    assert str(caught.value) == f"lock lock cannot be reached: process {holder.pid} has held it for 0.05 s"
    assert f"ps -p {holder.pid}" in caught.value.advice()


def test_a_lock_is_acquired_as_soon_as_its_holder_has_ended(
    tmp_path: Path, holder: "subprocess.Popen[bytes]"
) -> None:
    ending = threading.Timer(0.05, holder.kill)
    ending.start()
    with durable.lock_file(tmp_path / "lock", wait_seconds=30):
        assert holder.wait(5) != 0
    ending.join()


def test_threads_exclude_each_other(tmp_path: Path) -> None:
    with (
        durable.lock_file(tmp_path / "lock"),
        pytest.raises(durable.LockHeld),
        durable.lock_file(tmp_path / "lock", wait_seconds=0),
    ):
        pass
