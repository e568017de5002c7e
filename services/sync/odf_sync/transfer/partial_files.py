"""Partial files of interrupted transfers, which the next attempt continues, even in another process."""

import contextlib
import errno
import hashlib
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import structlog

from odf_common.adapters.local.durable import is_same_file, try_lock
from odf_common.adapters.local.faults import guarded_methods, translate_os_errors
from odf_common.errors import OdfError, Unavailable
from odf_common.hashing.multihash import Multihash

log = structlog.stdlib.get_logger(__name__)

DOWNLOADED, UPLOADED = "downloads", "uploads"  # folders of the home, for what is not complete
CHUNK_BYTES: Final = 1024 * 1024
KEPT_SECONDS: Final = 7 * 24 * 3600.0  # after the last byte
SWEEP_SECONDS: Final = 3600.0
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
UNBUFFERED: Final = 0  # so that no bytes are left to write when a full disk has refused them


@guarded_methods
class PartialFile:
    """A file that is being appended to, and the hash of its content."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        """Continue a file; its content so far is read for the hash."""
        self.path = path
        self._file = file
        self._digest = hashlib.sha3_256()
        while chunk := file.read(CHUNK_BYTES):
            self._digest.update(chunk)

    def write(self, chunk: bytes, /) -> int:
        """Append bytes.

        If the disk is full, the file is emptied, because others need the space, and `OSError` is raised.
        """
        left = memoryview(chunk)
        while left:  # an unbuffered file may take a part, and say why with the next one
            try:
                written = self._file.write(left)
            except OSError as error:
                if error.errno in FULL:
                    self.clear()
                raise
            self._digest.update(left[:written])
            left = left[written:]
        return len(chunk)

    def tell(self) -> int:
        """Return the size of the file in bytes."""
        return self._file.tell()

    def hash(self) -> Multihash:
        """Return the hash of the content. All written bytes are visible to other readers, as the file is unbuffered."""
        return Multihash.sha3(self._digest.digest())

    def clear(self) -> None:
        """Empty the file."""
        self._file.seek(0)
        self._file.truncate()
        self._digest = hashlib.sha3_256()


@contextmanager
def partial_file(folder: Path, name: object) -> Iterator[PartialFile]:
    """Yield the partial file of an object; while another transfer has it locked, a new file with a unique name.

    The file is removed afterwards if it is empty, or if its name is unique, as no later attempt would find it.
    """
    with _open(folder, str(name), UNBUFFERED) as (path, file):
        yield PartialFile(path, file)


@contextmanager
def own_partial_file(folder: Path, name: object) -> Iterator[PartialFile | None]:
    """Yield the partial file of an object, or None while another transfer has it locked; an empty file is removed."""
    path = folder / str(name)
    with translate_os_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        handle = try_lock(path, os.O_CREAT)
    if handle is None:
        yield None
        return
    with os.fdopen(handle, "r+b", UNBUFFERED) as file, _worth_keeping(path, file):
        yield PartialFile(path, file)


@contextmanager
def kept_blocks(folder: Path, url: str) -> Iterator[BinaryIO]:
    """Yield a file for the blocks from a URL, with the blocks that an interrupted attempt has left in it.

    The file is kept only if this attempt fails with `Unavailable`.
    """
    name = f"blocks-{hashlib.sha3_256(url.encode()).hexdigest()}"
    with _open(folder, name) as (path, file):
        try:
            yield file
        except OdfError as error:
            if not isinstance(error, Unavailable):
                path.unlink(missing_ok=True)
            raise
        except OSError:  # such as of a full disk: others need the space
            path.unlink(missing_ok=True)
            with translate_os_errors(path):
                raise
        path.unlink(missing_ok=True)


@contextmanager
def _open(folder: Path, name: str, buffering: int = -1) -> Iterator[tuple[Path, BinaryIO]]:
    path = folder / name
    with translate_os_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
        handle = try_lock(path, os.O_CREAT)
        is_shared = handle is not None
        if handle is None:
            path = folder / f"{name}.{uuid.uuid4().hex}"
            handle = try_lock(path, os.O_CREAT)
            assert handle is not None, "no other process knows the name"
    with os.fdopen(handle, "r+b", buffering) as file, _worth_keeping(path, file, is_found_again=is_shared):
        yield path, file


@contextmanager
def _worth_keeping(path: Path, file: BinaryIO, *, is_found_again: bool = True) -> Iterator[None]:
    """Remove the file at the end unless it has bytes that a later attempt can find."""
    try:
        yield
    finally:
        file.flush()
        is_empty = not os.fstat(file.fileno()).st_size
        if (is_empty or not is_found_again) and is_same_file(path, file.fileno()):
            path.unlink(missing_ok=True)


def sweep(home: Path) -> None:
    """Remove partial files under `home` that no transfer has written to for `KEPT_SECONDS`."""
    for folder in (DOWNLOADED, UPLOADED):
        with contextlib.suppress(FileNotFoundError):
            for item in sorted((home / folder).iterdir()):
                _remove_old(item)


def keep_swept(home: Path, stop: threading.Event) -> None:
    """Call `sweep` at the start and every hour until `stop` is set, so that abandoned files do not stay forever."""
    while True:
        try:
            sweep(home)
        except OSError as error:
            log.warning("cannot remove abandoned transfers for now", why=error.strerror)
        if stop.wait(SWEEP_SECONDS):
            return


def _remove_old(file: Path) -> None:
    handle = try_lock(file)  # else a transfer would lose a file that it is about to continue
    if handle is None:
        return
    try:
        if os.fstat(handle).st_mtime < time.time() - KEPT_SECONDS:
            file.unlink()
    finally:
        os.close(handle)
