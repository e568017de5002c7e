"""A cache of immutable objects in a local folder; the least recently used ones are evicted when it is too large.

Several processes share the folder. Paths are passed to programs that open them later: an engine opens the first file of
a transform after the last one has been fetched. Objects that were used within `IN_USE_SECONDS` are therefore kept, even
if the cache exceeds its limit. Beyond `IN_USE_LIMIT` they are evicted as well, so that clients that read much cannot
fill the disk. Files that are already open can still be read then. A reader that opens one later finds it missing, and
fetches it again or retries.
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
    """Cached files by name, which is a relative path; the mtime of a file is the time of its last use."""

    def __init__(self, folder: Path, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        """Use a folder, which need not exist yet; the cache should not exceed `max_bytes`."""
        self._folder = folder.absolute()
        self._max_bytes = max_bytes
        self._clock = clock
        self._unmeasured = max_bytes  # bytes; the first file that is added measures the folder
        self._guard = threading.Lock()

    def find(self, name: str) -> Path | None:
        """Return the path of a cached object and mark it as used; None if the object is not cached."""
        file = self._folder / name
        try:
            now = self._clock()
            if file.stat().st_mtime < now - MARK_SECONDS:
                os.utime(file, (now, now))
        except FileNotFoundError:
            return None
        return file

    def put(self, name: str, content: bytes) -> Path:
        """Add an object to the cache; return its path."""
        file = self._folder / name
        durable.write(file, content)  # an incomplete copy would be trusted after a power failure
        self._count_added(file, len(content))
        return file

    def take(self, name: str, file: Path) -> Path:
        """Move a complete file into the cache; return its new path."""
        target = self._folder / name
        size = file.stat().st_size
        durable.move(file, target)
        self._count_added(target, size)
        return target

    def drop(self, name: str) -> None:
        """Remove a cached object, or a folder of objects."""
        path = self._folder / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)

    def sweep(self, untouched_since: float) -> None:
        """Remove incomplete files of killed processes, last written before `untouched_since` (epoch seconds)."""
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
        """Remove the least recently used objects until the cache is within its limits.

        The object that was just added is kept, because no reader has opened it yet.
        """
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
        """Yield for each cached object the time of its last use, its bytes on disk, and its path."""
        for folder, _, files in os.walk(self._folder):
            for file in files:
                path = f"{folder}/{file}"
                with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                    if not file.startswith("."):
                        stat = Path(path).stat()
                        yield stat.st_mtime, stat.st_blocks * 512, path
