"""Temporary files of tests are in memory, since many tests write, sync and remove small files and wait for the disk."""

import fcntl
import os
import shutil
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final

from odf_cli.embedded.parts.tcp_ports import claims_folder

_MEMORY: Final = Path("/dev/shm")
_PREFIX: Final = "odf-tests-"
_LAST: Final = -1_000  # after that of multiprocessing, which removes its folder in this one
_ROOM: Final = 4 * 2**30  # bytes; a whole run takes less than a quarter of that


def has_room(folder: Path) -> bool:
    """Return whether tests can use a file system in memory.

    It has room, as has the memory itself, and programs and libraries on it may run.
    """
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    free = min(found.f_bavail * found.f_frsize, _available_memory() // 2)
    return free >= _ROOM and not found.f_flag & os.ST_NOEXEC and os.access(folder, os.W_OK | os.X_OK)


def pytest_cmdline_main() -> None:
    """Keep the temporary files of this process and its children in memory, unless TMPDIR names a folder.

    They are removed at the end, or by the next run if this one is killed. Files of failed tests are to be looked at with a
    TMPDIR on a disk.
    """
    if os.environ.get("TMPDIR") or not has_room(_MEMORY):
        return
    remove_abandoned(_MEMORY)
    claims = claims_folder()
    claims.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_MEMORY))
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)  # until the process ends
    os.environ["TMPDIR"], tempfile.tempdir = str(folder), None
    claims_folder().symlink_to(claims)  # other runs and nodes see which ports these tests use
    Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=_LAST)


def remove_abandoned(memory: Path) -> None:
    """Remove the folders of runs that were killed: their processes hold no lock."""
    for folder in memory.glob(f"{_PREFIX}*"):
        try:
            opened = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:  # of someone else, or just removed
            continue
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(opened)


def _available_memory() -> int:
    """Return the bytes that can be used without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return int(found) * 1024
