import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from odf_testing.killed_process import freeze

from odf_common.adapters.local import durable
from odf_common.adapters.local.process_files import FOLDER, Scratch, Staging
from odf_common.errors import StorageUnavailable

HOLD = """
import sys, time
from pathlib import Path
from odf_common.adapters.local.process_files import Scratch
scratch = Scratch(Path(sys.argv[1]))
(scratch.folder() / "slice.parquet").write_bytes(b"x")
print("ready", flush=True)
time.sleep(60)
"""


def a_holder(parent: Path) -> subprocess.Popen[bytes]:
    made = subprocess.Popen([sys.executable, "-c", HOLD, str(parent)], stdout=subprocess.PIPE)
    assert made.stdout is not None
    assert made.stdout.readline() == b"ready\n"
    return made


def files(parent: Path) -> list[Path]:
    return sorted(parent.rglob("slice.parquet"))


def test_files_of_a_killed_process_are_removed_and_those_of_a_running_one_are_kept(tmp_path: Path) -> None:
    dead, alive = a_holder(tmp_path), a_holder(tmp_path)
    try:
        assert len(files(tmp_path)) == 2
        dead.kill()
        dead.wait()
        own = Scratch(tmp_path).folder()
        assert own.is_dir()
        (left,) = files(tmp_path)
        assert str(alive.pid) in str(left)
    finally:
        for one in (dead, alive):
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()


def test_folders_are_new_and_of_one_process_together(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "scratch")
    first, second = scratch.folder(), scratch.folder()
    assert first != second
    assert first.parent == second.parent
    assert [*first.iterdir(), *second.iterdir()] == []


def test_other_adjacent_folders_are_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "tmp" / "ingest").mkdir(parents=True)
    Scratch(tmp_path).folder()
    assert (tmp_path / "tmp" / "ingest").is_dir()


def test_a_store_in_one_process_does_not_sweep_that_of_another_store(tmp_path: Path) -> None:
    first = Scratch(tmp_path).folder()
    time.sleep(0.01)
    Scratch(tmp_path).folder()
    assert first.is_dir()


def test_files_that_cannot_be_removed_now_are_found_again_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "1-dead.lock").touch()
    stubborn = tmp_path / "1-dead"
    stubborn.touch()  # no folder, so removing it as one fails
    Scratch(tmp_path).folder()
    assert stubborn.exists()
    stubborn.unlink()
    stubborn.mkdir()
    Scratch(tmp_path).folder()
    assert not stubborn.exists()
    assert not (tmp_path / "1-dead.lock").exists()


def test_a_lock_is_released_if_its_file_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "1-dead.lock"
    lock.touch()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(Path, "unlink", fail)
        with pytest.raises(OSError, match="Input/output"):
            Scratch(tmp_path).folder()
    Scratch(tmp_path).folder()
    assert not lock.exists()


@pytest.fixture
def swept_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another process removes the first file just before it is locked; no file of it stays open."""
    flock, is_swept = fcntl.flock, list[bool]()

    def late(handle: int, operation: int) -> None:
        if not is_swept:
            is_swept.append(True)
            Path(f"/proc/self/fd/{handle}").readlink().unlink()
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    yield
    assert is_swept
    open_files = [str(handle.resolve()) for handle in Path("/proc/self/fd").iterdir()]
    assert not [one for one in open_files if one.startswith(str(tmp_path)) and one.endswith("(deleted)")]


@pytest.mark.usefixtures("swept_once")
def test_a_folder_whose_lock_was_swept_before_it_was_held_is_not_used(tmp_path: Path) -> None:
    folder = Scratch(tmp_path).folder()
    (lock,) = tmp_path.glob("*.lock")
    assert folder.parent == lock.with_suffix("")
    Scratch(tmp_path).folder()
    assert folder.is_dir(), "it is held"


@pytest.mark.usefixtures("swept_once")
def test_a_staged_file_that_was_swept_before_it_was_held_is_not_used(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    with staging.holding() as staged:
        staging.sweep()
        assert list(staged.write([b"records"])) == [7]
        assert staging.path(staged.name).read_bytes() == b"records"


def test_a_lock_that_cannot_be_checked_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bool:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "is_same_file", fail)
        with pytest.raises(OSError, match="memory"):
            durable.try_lock(tmp_path / "lock", os.O_CREAT)
    handle = durable.try_lock(tmp_path / "lock", os.O_CREAT)
    assert handle is not None
    os.close(handle)


HOLD_STAGED = """
import sys, time
from pathlib import Path
from odf_common.adapters.local.process_files import Staging
with Staging(Path(sys.argv[1])).holding() as staged:
    list(staged.write([b"records"]))
    print(staged.name, flush=True)
    time.sleep(60)
"""


def a_command(home: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Return a process that holds a file, and the file's name."""
    made = subprocess.Popen([sys.executable, "-c", HOLD_STAGED, str(home)], stdout=subprocess.PIPE)
    assert made.stdout is not None
    return made, made.stdout.readline().decode().strip()


def names(home: Path) -> set[str]:
    return {file.name for file in (home / FOLDER).iterdir()}


def end(command: subprocess.Popen[bytes]) -> None:
    command.kill()
    command.communicate()


def test_files_of_killed_commands_are_removed_and_those_of_running_and_stopped_ones_are_kept(
    tmp_path: Path,
) -> None:
    (dead, _), (stopped, stays), (alive, lives) = (a_command(tmp_path) for _ in range(3))
    try:
        end(dead)
        freeze(stopped)
        Staging(tmp_path).sweep()
        assert names(tmp_path) == {stays, lives}
    finally:
        for one in (stopped, alive):
            end(one)
    Staging(tmp_path).sweep()
    assert names(tmp_path) == set()


def test_a_file_is_removed_when_its_command_ends_whether_the_node_has_taken_it_or_not(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    for is_taken in (False, True):
        with staging.holding() as staged:
            assert list(staged.write([b"one", b"two"])) == [3, 6]
            assert staging.path(staged.name).read_bytes() == b"onetwo"
            if is_taken:
                staging.path(staged.name).rename(tmp_path / "taken")
        assert names(tmp_path) == set()
    assert (tmp_path / "taken").read_bytes() == b"onetwo"


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Staging(tmp_path).holding() as staged:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(StorageUnavailable, match=r"the disk is full .*: staging/"):
            list(staged.write([b"records"]))
    assert names(tmp_path) == set()


def test_a_sweep_without_any_folder_does_nothing(tmp_path: Path) -> None:
    Staging(tmp_path / "none").sweep()
    assert list(tmp_path.iterdir()) == []


HOLD_LOCK = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Another process that holds the lock and does nothing."""
    command = [sys.executable, "-c", HOLD_LOCK, str(tmp_path / "lock")]
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
