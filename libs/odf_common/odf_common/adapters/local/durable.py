"""Writes that survive a power cut, and the lock that two processes share."""

import contextlib
import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PENDING: Final = ".pending-"


def write(target: Path, content: bytes) -> None:
    """Put a file in place as a whole, over whatever is there."""
    pending = write_pending(target, content)
    pending.replace(target)
    sync_folder(target.parent)


def write_pending(target: Path, content: bytes) -> Path:
    """Write a hidden file beside `target`, durable but for its name, and return it."""
    make_folder(target.parent)
    pending = target.with_name(f"{PENDING}{uuid.uuid4().hex}")
    with pending.open("xb", buffering=0) as file:
        view = memoryview(content)
        while view:
            view = view[file.write(view) or 0 :]
        os.fsync(file.fileno())
    return pending


def remove(file: Path) -> None:
    """Remove a file, durably; nothing happens when it is not there."""
    file.unlink(missing_ok=True)
    sync_folder(file.parent)


def move(source: Path, target: Path) -> None:
    """Move a finished file in; over a border between file systems it is copied."""
    make_folder(target.parent)
    with source.open("rb") as file:
        os.fsync(file.fileno())
    try:
        source.replace(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy(source, target)
    sync_folder(target.parent)


def _copy(source: Path, target: Path) -> None:
    pending = target.with_name(f"{PENDING}{uuid.uuid4().hex}")
    with source.open("rb") as old, pending.open("xb") as new:
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        os.fsync(new.fileno())
    pending.replace(target)
    source.unlink()


def make_folder(folder: Path) -> None:
    """Create a folder with its parents, each durable in the one above."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock that excludes other threads and processes; its file is never removed, or two could hold it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
