"""Scratch space for unfinished files: one folder per process, removed after the process has ended.

Several processes share a home. A process's lock is released when it ends, which marks its folder as abandoned.
"""

import fcntl
import os
import threading
from pathlib import Path
from typing import Final

from odf_common.adapters.local.durable import is_same_file

LOCK: Final = ".lock"


class Scratch:
    """Folders under `parent`; the first call removes those of processes that have ended."""

    def __init__(self, parent: Path) -> None:
        """Use `parent`, which need not exist yet."""
        self._parent = parent
        self._own: Path | None = None
        self._handle = -1  # keeps the lock for as long as the process lives
        self._guard = threading.Lock()

    def folder(self) -> Path:
        """Return a new empty folder."""
        import tempfile  # noqa: PLC0415 - commands need only the lock

        with self._guard:
            if self._own is None:
                self._parent.mkdir(parents=True, exist_ok=True)
                self._sweep()
                self._own = self._make_folder()
            self._own.mkdir(exist_ok=True)
            return Path(tempfile.mkdtemp(dir=self._own))

    def _make_folder(self) -> Path:
        """Return this process's folder once its lock is held; retry if another process swept the lock file."""
        while True:
            own = self._parent / f"{os.getpid()}-{os.urandom(6).hex()}"
            handle = locked_by_name(_lock_of(own), os.O_CREAT)
            if handle is not None:
                self._handle = handle
                return own

    def _sweep(self) -> None:
        """Remove the folders of processes that have ended."""
        import shutil  # noqa: PLC0415 - commands need only the lock

        for lock in self._parent.glob(f"*{LOCK}"):
            handle = locked_by_name(lock)
            if handle is None:
                continue
            try:
                folder = lock.with_suffix("")
                shutil.rmtree(folder, ignore_errors=True)
                if not folder.exists():  # a folder without its lock file would never be found again
                    lock.unlink(missing_ok=True)
            finally:
                os.close(handle)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + LOCK)


def locked_by_name(file: Path, flags: int = 0) -> int | None:
    """Lock a file and return its handle; None if it is locked, missing, or was removed in the meantime."""
    try:
        handle = os.open(file, os.O_RDWR | os.O_CLOEXEC | flags, 0o644)
    except FileNotFoundError:
        return None
    is_locked = False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_locked = is_same_file(file, handle)
    except BlockingIOError:
        pass
    finally:
        if not is_locked:  # an error must not keep the lock, either
            os.close(handle)
    return handle if is_locked else None
