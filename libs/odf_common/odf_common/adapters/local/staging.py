"""Files that commands pass to the node by name; each is locked by its command while that is running."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from odf_common.adapters.local.faults import guarded_methods, naming
from odf_common.adapters.local.scratch import locked_by_name

FOLDER: Final = "staging"


@guarded_methods
class Staging:
    """The folder of a home with these files."""

    def __init__(self, home: Path) -> None:
        """Use a home, which need not exist yet."""
        self._folder = home / FOLDER

    def path(self, name: str) -> Path:
        """Return the path of a file."""
        return self._folder / name

    @contextmanager
    def holding(self) -> Iterator["StagedFile"]:
        """Yield a new file; it is removed afterwards unless the node has taken it."""
        staged = self._new()
        try:
            yield staged
        finally:
            staged.close()

    def sweep(self) -> None:
        """Remove the files of commands that were killed."""
        try:
            files = sorted(self._folder.iterdir())
        except FileNotFoundError:
            return
        for file in files:
            with contextlib.suppress(OSError):  # gone in the meantime, or not ours to remove
                handle = locked_by_name(file)
                if handle is not None:
                    try:
                        file.unlink()
                    finally:
                        os.close(handle)

    def _new(self) -> "StagedFile":
        return StagedFile(self._folder)


@guarded_methods
class StagedFile:
    """A file that is passed to the node by its `name` once it is written."""

    def __init__(self, folder: Path) -> None:
        """Create and lock a file; retry if another process swept it before it was locked."""
        folder.mkdir(parents=True, exist_ok=True)
        handle: int | None = None
        while handle is None:
            self._file = folder / os.urandom(16).hex()
            handle = locked_by_name(self._file, os.O_CREAT | os.O_EXCL)
        self._handle = handle

    @property
    def name(self) -> str:
        """Return its name in the folder."""
        return self._file.name

    def write(self, chunks: Iterable[bytes]) -> Iterator[int]:
        """Append bytes; yield the size after each chunk."""
        size = 0
        with naming(self._file):
            for chunk in chunks:
                view = memoryview(chunk)
                while view:
                    view = view[os.write(self._handle, view) :]
                size += len(chunk)
                yield size

    def close(self) -> None:
        """Remove it, unless the node has taken it, and unlock it."""
        try:
            self._file.unlink(missing_ok=True)
        finally:
            os.close(self._handle)
