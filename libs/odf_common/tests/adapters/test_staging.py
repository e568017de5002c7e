import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from odf_testing.frozen_process import freeze

from odf_common.adapters.local.process_files import FOLDER, Staging
from odf_common.errors import StorageUnavailable

HOLD = """
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
    made = subprocess.Popen([sys.executable, "-c", HOLD, str(home)], stdout=subprocess.PIPE)
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
