"""A process of the node creates files for its user only, except what it shares."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from odf_common.adapters.local import durable
from odf_common.adapters.local.secrets import close_home, keep_private

NOBODY = 65534


def modes_in_process(umask: int, work: Callable[[], None], *paths: Path) -> list[int]:
    """Do the work in another process with a umask, and return the modes of files."""
    child = os.fork()
    if child == 0:
        os.umask(umask)
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    return [stat.S_IMODE(path.stat().st_mode) for path in paths]


def test_files_and_folders_are_private_from_then_on(tmp_path: Path) -> None:
    file, folder = tmp_path / "a" / "file", tmp_path / "a"

    def work() -> None:
        assert durable.keep_files_private() == durable.keep_files_private() == 0o022
        durable.write(file, b"x")

    assert modes_in_process(0o022, work, file, folder) == [0o600, 0o700]


def test_what_is_shared_has_the_modes_of_the_first_umask(tmp_path: Path) -> None:
    file, folder, parent = tmp_path / "a" / "b" / "file", tmp_path / "a" / "b", tmp_path / "a"

    def work() -> None:
        durable.keep_files_private()
        durable.make_folder(folder, is_shared=True)
        file.touch()
        durable.share(file, durable.READABLE)

    assert modes_in_process(0o027, work, file, folder, parent) == [0o640, 0o750, 0o750]


def test_without_it_modes_are_those_of_the_umask(tmp_path: Path) -> None:
    file = tmp_path / "file"

    def work() -> None:
        durable.write(file, b"x")
        durable.share(file, durable.READABLE)

    assert modes_in_process(0o022, work, file) == [0o644]


def test_a_command_keeps_private_what_it_creates_in_a_home_of_its_own_user(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for home in (own, other):
        home.mkdir()
    os.chown(other, NOBODY, NOBODY)

    def work() -> None:
        for home in (other, own):
            keep_private(home)
            durable.write(home / "file", b"x")

    assert modes_in_process(0o022, work, own / "file", other / "file") == [0o600, 0o644]


def test_the_entries_of_an_existing_home_are_closed(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    outside.touch(0o644)
    (home / "datasets" / "deep").mkdir(parents=True)
    (home / "keys").mkdir(0o700)
    (home / "node-id").touch()
    (home / "shared").mkdir()  # a folder that datasets are pushed to
    (home / "link").symlink_to(outside)
    for path, mode in (
        (home, 0o755),
        (home / "datasets", 0o755),
        (home / "shared", 0o755),
        (home / "node-id", 0o644),
    ):
        path.chmod(mode)
    (home / "datasets" / "deep").chmod(0o755)
    outside.chmod(0o644)
    close_home(home)
    found = {
        name: stat.S_IMODE((home / name).stat().st_mode)
        for name in ("datasets", "keys", "node-id", "datasets/deep", "shared")
    }
    kept = {"datasets/deep": 0o755, "shared": 0o755}
    assert found == {"datasets": 0o700, "keys": 0o700, "node-id": 0o600, **kept}
    assert [stat.S_IMODE(path.stat().st_mode) for path in (home, outside)] == [0o755, 0o644]
    close_home(tmp_path / "no home")
