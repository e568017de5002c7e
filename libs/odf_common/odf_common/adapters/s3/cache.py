"""A cache of immutable objects in a local folder; the least recently used are removed when it is too large.

Several processes share the folder. Paths are passed to programs that open them later (an engine opens the first file
of a transform when the last has been fetched), so objects used within `IN_USE_SECONDS` are kept, even if the cache then
exceeds its limit. Beyond `IN_USE_LIMIT` they are removed as well: clients that read much must not fill the disk. Files
that are open can still be read then; those who open one later find it missing, and fetch it again or retry.
"""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import guarded_methods

IN_USE_SECONDS: Final = 900.0
MARK_SECONDS: Final = 60.0  # a file is marked as used at most this often
LOW_WATER_SHARE: Final = 0.9  # of the limit; eviction stops there
IN_USE_LIMIT: Final = 1.5  # times the limit; eviction of copies in use begins and stops there
SCANS_PER_LIMIT: Final = 20  # the folder is measured each time this process has added a 20th of the limit
LOCK: Final = ".lock"


@guarded_methods
class ObjectCache:
    """Files by name, where a name is a relative path; the file's mtime is when it was last used."""

    def __init__(self, folder: Path, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        """Use a folder, which need not exist yet."""
        self._folder = folder.absolute()
        self._max_bytes = max_bytes
        self._clock = clock
        self._unmeasured = max_bytes  # bytes; the first file that is added measures the folder
        self._guard = threading.Lock()

    def find(self, name: str) -> Path | None:
        """Return a cached object, marked as used; None if it is not cached."""
        file = self._folder / name
        try:
            now = self._clock()
            if file.stat().st_mtime < now - MARK_SECONDS:
                os.utime(file, (now, now))
        except FileNotFoundError:
            return None
        return file

    def put(self, name: str, content: bytes) -> Path:
        """Store bytes; return the copy."""
        file = self._folder / name
        durable.write(file, content)  # an incomplete copy would be trusted after a power failure
        self._count_added(file, len(content))
        return file

    def take(self, name: str, file: Path) -> Path:
        """Move a finished file in; return where it is now."""
        target = self._folder / name
        size = file.stat().st_size
        durable.move(file, target)
        self._count_added(target, size)
        return target

    def drop(self, name: str) -> None:
        """Remove one copy, or a folder of them."""
        path = self._folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def sweep(self, untouched_since: float) -> None:
        """Remove unfinished copies of killed processes that were last touched before a time (epoch seconds)."""
        for folder, _, _ in os.walk(self._folder):
            durable.sweep(Path(folder), untouched_since)

    def _count_added(self, file: Path, size: int) -> None:
        now = self._clock()
        os.utime(file, (now, now))
        with self._guard:
            self._unmeasured += size
            is_due = self._unmeasured * SCANS_PER_LIMIT >= self._max_bytes
            self._unmeasured = 0 if is_due else self._unmeasured
        if is_due:
            with (
                contextlib.suppress(durable.LockHeld),
                durable.lock_file(self._folder / LOCK, wait_seconds=0),
            ):
                self._evict(file)

    def _evict(self, added: Path) -> None:
        """Remove the longest unused copies until the rest fits, but not the one just added: no reader has opened it."""
        copies = sorted(self._copies())
        total = sum(size for _, size, _ in copies)
        if total <= self._max_bytes:
            return
        for used, size, path in copies:
            is_in_use = used > self._clock() - IN_USE_SECONDS
            if total <= self._max_bytes * (IN_USE_LIMIT if is_in_use else LOW_WATER_SHARE):
                return
            with contextlib.suppress(FileNotFoundError):
                if (
                    Path(path) != added and Path(path).stat().st_mtime == used
                ):  # not used since it was measured
                    Path(path).unlink()
                    total -= size

    def _copies(self) -> Iterator[tuple[float, int, str]]:
        """Yield when each copy was last used, its bytes on disk, and its path."""
        for folder, _, files in os.walk(self._folder):
            for file in files:
                path = f"{folder}/{file}"
                with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                    if not file.startswith("."):
                        stat = Path(path).stat()
                        yield stat.st_mtime, stat.st_blocks * 512, path
