"""Temporary files of tests are kept in memory: what tests write and sync on a disk costs them a fifth of their time."""

import os
import shutil
import tempfile
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")
_PREFIX: Final = "odf-tests-"  # and the process of pytest
_LAST: Final = -1_000  # after that of multiprocessing, which removes its folder in this one
_ROOM: Final = 4 * 2**30  # bytes; a whole run takes less than half of that


def has_room(folder: Path) -> bool:
    """Return whether tests can use a file system: it has room, and programs and libraries on it may run."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    free = found.f_bavail * found.f_frsize
    return free >= _ROOM and not found.f_flag & os.ST_NOEXEC and os.access(folder, os.W_OK | os.X_OK)


def pytest_cmdline_main() -> None:
    """Keep the temporary files of this process and its children in memory, unless TMPDIR names a folder.

    They are removed at the end. Files of failed tests are to be looked at with a TMPDIR on a disk.
    """
    if "TMPDIR" in os.environ or not has_room(_MEMORY):
        return
    _remove_abandoned()
    folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_MEMORY)
    os.environ["TMPDIR"], tempfile.tempdir = folder, None
    Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=_LAST)


def _remove_abandoned() -> None:
    """Remove the folders of runs that were killed."""
    for folder in _MEMORY.glob(f"{_PREFIX}*"):
        if not Path("/proc", folder.name.split("-")[2]).exists():
            shutil.rmtree(folder, ignore_errors=True)
