"""Files that belong to a process, which holds a lock on them until it ends: scratch space and staged files.

Several processes share a home. A file without a lock was left behind by a process that has ended.
"""

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import guarded_methods, naming

LOCK: Final = ".lock"


class Scratch:
    """Temporary folders of this process under `parent`; the first call removes those of processes that have ended."""

    def __init__(self, parent: Path) -> None:
        """Use `parent`, which need not exist yet."""
        self._parent = parent
        self._own: Path | None = None
        self._handle = -1  # keeps the lock for as long as the process lives
        self._guard = threading.Lock()

    def folder(self) -> Path:
        """Create and return an empty folder."""
        import tempfile  # noqa: PLC0415 - commands need only the lock

        with self._guard:
            if self._own is None:
                self._parent.mkdir(parents=True, exist_ok=True)
                self._sweep()
                self._own = self._make_folder()
            self._own.mkdir(exist_ok=True)
            return Path(tempfile.mkdtemp(dir=self._own))

    def _make_folder(self) -> Path:
        """Return a path for the folders of this process, and lock it; retry if another process swept the lock file."""
        while True:
            own = self._parent / f"{os.getpid()}-{os.urandom(6).hex()}"
            handle = durable.try_lock(_lock_of(own), os.O_CREAT)
            if handle is not None:
                self._handle = handle
                return own

    def _sweep(self) -> None:
        """Remove the temporary folders of processes that have ended."""
        import shutil  # noqa: PLC0415 - commands need only the lock

        for lock in self._parent.glob(f"*{LOCK}"):
            handle = durable.try_lock(lock)
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


FOLDER: Final = "staging"


@guarded_methods
class Staging:
    """The folder in a home through which commands pass files to the node."""

    def __init__(self, home: Path) -> None:
        """Use the home, which need not exist yet."""
        self._folder = home / FOLDER

    def path(self, name: str) -> Path:
        """Return the path of a staged file."""
        return self._folder / name

    @contextmanager
    def holding(self) -> Iterator["StagedFile"]:
        """Yield a new staged file; after the `with` block it is removed, unless the node has moved it away."""
        staged = self._new()
        try:
            yield staged
        finally:
            staged.close()

    def sweep(self) -> None:
        """Remove the staged files of commands that were killed."""
        try:
            files = sorted(self._folder.iterdir())
        except FileNotFoundError:
            return
        for file in files:
            with contextlib.suppress(OSError):  # gone in the meantime, or not ours to remove
                handle = durable.try_lock(file)
                if handle is not None:
                    try:
                        file.unlink()
                    finally:
                        os.close(handle)

    def _new(self) -> "StagedFile":
        return StagedFile(self._folder)


@guarded_methods
class StagedFile:
    """A file that a command writes, and then passes to the node by its `name`."""

    def __init__(self, folder: Path) -> None:
        """Create and lock a file; retry if another process swept it before it was locked."""
        folder.mkdir(parents=True, exist_ok=True)
        handle: int | None = None
        while handle is None:
            self._file = folder / os.urandom(16).hex()
            handle = durable.try_lock(self._file, os.O_CREAT | os.O_EXCL)
        self._handle = handle

    @property
    def name(self) -> str:
        """Return the name of the file in its folder."""
        return self._file.name

    def write(self, chunks: Iterable[bytes]) -> Iterator[int]:
        """Append chunks to the file; yield its size after each chunk."""
        size = 0
        with naming(self._file):
            for chunk in chunks:
                view = memoryview(chunk)
                while view:
                    view = view[os.write(self._handle, view) :]
                size += len(chunk)
                yield size

    def close(self) -> None:
        """Remove the file, unless the node has moved it away, and release its lock."""
        try:
            self._file.unlink(missing_ok=True)
        finally:
            os.close(self._handle)
