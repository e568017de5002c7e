import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from odf_common.adapters.local import durable
from odf_common.adapters.local.process_files import Scratch, Staging

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
