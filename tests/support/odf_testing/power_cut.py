"""Simulates power cuts: file operations are recorded, and a prefix of them is replayed without what was not synced.

A file keeps the content of its last sync. A folder keeps the names of its last sync, or has all of them: a file system
may write names early, each folder independently.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from stat import S_ISDIR
from typing import Final

import pytest

ROOT: Final = 0
AnyPath = str | os.PathLike[str]
Files = Mapping[str, bytes]  # by path below the root


@dataclass(frozen=True, slots=True)
class Synced:
    """A file's bytes are durable."""

    file: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Named:
    """Names in folders have changed, in one step: the new target of each, None for a removed one."""

    names: tuple[tuple[int, str, int | None], ...]


@dataclass(frozen=True, slots=True)
class FolderSynced:
    """A folder's names are durable."""

    folder: int


Operation = Synced | Named | FolderSynced


@dataclass(slots=True)
class Disk:
    """Names and contents after some operations; files and folders are numbers, and the root is a folder."""

    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    durable: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    contents: dict[int, bytes] = field(default_factory=dict)

    def apply(self, operation: Operation) -> None:
        """Apply one more operation."""
        match operation:
            case Synced(file=file, content=content):
                self.contents[file] = content
            case FolderSynced(folder=folder):
                self.durable[folder] = dict(self.folders[folder])
            case Named(names=names):
                for folder, name, target in names:
                    if target is None:
                        self.folders[folder].pop(name, None)
                    else:
                        self.folders[folder][name] = target

    def after_cut(self, early: Callable[[int], bool]) -> dict[str, bytes]:
        """Return the remaining files, if all names in the folders `early` were written."""
        found: dict[str, bytes] = {}

        def walk(folder: int, path: str) -> None:
            names = self.folders[folder] if early(folder) else self.durable[folder]
            for name, target in names.items():
                if target in self.folders:
                    walk(target, f"{path}{name}/")
                else:
                    found[path + name] = self.contents.get(target, b"")

        walk(ROOT, "")
        return found


class Recorder:
    """Records operations on the files below a folder, and executes them."""

    def __init__(self, root: Path) -> None:
        """Start with no operations; `root` is an empty folder."""
        self._root = root
        self._numbers = {root.stat().st_ino: ROOT}
        self._next = count(ROOT + 1)
        self._folders = {ROOT}
        self.operations: list[Operation] = []

    @contextmanager
    def recording(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Record inside the block."""
        real = {
            name: getattr(os, name)
            for name in ("fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir")
        }

        def fsync(handle: int) -> None:
            real["fsync"](handle)
            self._synced(handle)

        def moved(name: str) -> Callable[..., None]:
            def move(source: AnyPath, target: AnyPath) -> None:
                number, old, new = self._number(source), self._place(source), self._place(target)
                replaced = _last_link(target)
                real[name](source, target)
                # Its inode is now free: another file may get it.
                self._numbers.pop(replaced, None)
                gone = () if name == "link" else ((*old, None),)
                self.operations.append(Named(((*new, number), *gone)))

            return move

        def mkdir(path: AnyPath, mode: int = 0o777) -> None:
            real["mkdir"](path, mode)
            self._numbers.pop(Path(path).stat().st_ino, None)
            self.operations.append(Named(((*self._place(path), self._number(path)),)))

        with patch.context() as patched:
            for name in ("replace", "rename", "link"):
                patched.setattr(os, name, moved(name))
            for name in ("unlink", "rmdir"):
                patched.setattr(os, name, self._removing(name, real[name]))
            for function in (fsync, mkdir):
                patched.setattr(os, function.__name__, function)
            yield

    def _removing(self, name: str, real: Callable[..., None]) -> Callable[..., None]:
        """Return a function that removes a file or a folder, and records that."""

        def remove(path: AnyPath, *, dir_fd: int | None = None) -> None:
            found = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
            place = self._place(path) if dir_fd is None else None
            real(path, dir_fd=dir_fd)
            if name == "rmdir" or found.st_nlink == 1:
                # Its inode is now free: another file may get it.
                self._numbers.pop(found.st_ino, None)
            if place is not None:
                self.operations.append(Named(((*place, None),)))

        return remove

    def disks(self) -> Iterator[Disk]:
        """Yield the disk after each operation; it is changed in place."""
        disk = Disk(
            folders={folder: {} for folder in self._folders}, durable={folder: {} for folder in self._folders}
        )
        for operation in self.operations:
            disk.apply(operation)
            yield disk

    def _synced(self, handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        number = self._number(path)
        if number in self._folders:
            self.operations.append(FolderSynced(number))
        else:
            self.operations.append(Synced(number, path.read_bytes()))

    def _place(self, path: AnyPath) -> tuple[int, str]:
        path = Path(path)
        return self._number(path.parent), path.name

    def _number(self, path: AnyPath) -> int:
        found = Path(path).stat()
        number = self._numbers.get(found.st_ino)
        if number is None:
            number = self._numbers[found.st_ino] = next(self._next)
        if S_ISDIR(found.st_mode):
            self._folders.add(number)
        return number


def _last_link(path: AnyPath) -> int:
    """Return the inode of a file without any other name, -1 if there is none."""
    try:
        found = Path(path).stat(follow_symlinks=False)
    except FileNotFoundError:
        return -1
    return found.st_ino if found.st_nlink == 1 else -1
