import fcntl
import os
from pathlib import Path

import pytest
from odf_testing import temporary_files
from odf_testing.temporary_files import has_room, pytest_cmdline_main, remove_abandoned


def test_a_file_system_has_room_if_it_has_bytes_for_a_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary_files, "_ROOM", 0)
    assert has_room(tmp_path)
    assert not has_room(tmp_path / "missing")
    monkeypatch.setattr(temporary_files, "_ROOM", 2**63)
    assert not has_room(tmp_path)


def test_a_folder_that_the_environment_names_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    pytest_cmdline_main()
    assert os.environ["TMPDIR"] == "/var/tmp"


def test_folders_of_runs_that_were_killed_are_removed(tmp_path: Path) -> None:
    abandoned, running, other = (tmp_path / name for name in ("odf-tests-a", "odf-tests-b", "other"))
    for folder in (abandoned, running, other):
        (folder / "kafka").mkdir(parents=True)
    held = os.open(running, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    remove_abandoned(tmp_path)
    os.close(held)
    assert sorted(tmp_path.iterdir()) == [running, other]
