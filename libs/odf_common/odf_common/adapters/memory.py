"""The memory of the machine, or of the container that this process runs in."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa

from odf_common.errors import Unavailable

_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")  # of a container
_SHARE: Final = 8  # one part of the memory in so many: tables are copied, and more than one is read at a time
_WAIT_SECONDS: Final = 10.0  # of a table, for others to be committed
_LOOK_SECONDS: Final = 0.1


def max_decoded_bytes(most: int, limit: Path = _LIMIT) -> int:
    """Return the size limit (bytes, decoded) of a table from others: an eighth of the memory, at most `most`."""
    return min(most, _memory(limit) // _SHARE)


def _memory(limit: Path) -> int:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no such file, or it says "max"
        memory = min(memory, int(limit.read_text()))
    return memory


class MemoryInUse(Unavailable):
    """Other data is being read, and takes the memory that a table needs; it is read later."""

    MESSAGE = "other data takes the memory for {what}"


class DecodeBudget:
    """Bounds the tables that a process decodes at the same time; thread-safe.

    A table counts with its announced size while it is decoded, and as Arrow's memory until it is released.
    """

    def __init__(self, most: int, *, wait: float = _WAIT_SECONDS) -> None:
        """Admit tables of up to `most` bytes together; one waits up to `wait` seconds for the others."""
        self._most = most
        self._wait = wait
        self._announced = 0
        self._lock = threading.Lock()

    @contextmanager
    def admit(self, size: int) -> Iterator[None]:
        """Count a table as decoded while the block runs; raises `Unavailable` while others take the memory."""
        until = time.monotonic() + self._wait
        while not self._is_admitted(size):
            if time.monotonic() > until:
                raise MemoryInUse(what=f"{size / 1024**2:,.0f} MiB")
            time.sleep(_LOOK_SECONDS)
        try:
            yield
        finally:
            with self._lock:
                self._announced -= size

    def _is_admitted(self, size: int) -> bool:
        with self._lock:
            has_room: bool = pa.total_allocated_bytes() + self._announced + size <= self._most
            self._announced += size if has_room else 0
        return has_room
