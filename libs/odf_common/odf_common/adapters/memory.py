"""Memory limits, derived from the memory of the machine or of the container."""

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
    """Return the maximum size of a decoded table from another node, in bytes: an eighth of the memory, up to `most`."""
    return min(most, _memory(limit) // _SHARE)


def _memory(limit: Path) -> int:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no such file, or it says "max"
        memory = min(memory, int(limit.read_text()))
    return memory


class MemoryInUse(Unavailable):
    """Other tables are being decoded, and the memory that is left is too small for this one; it can be read later."""

    MESSAGE = "other data takes the memory for {what}"


class DecodeBudget:
    """Limits the memory of tables that a process decodes at the same time; thread-safe.

    While a table is being decoded, its announced size counts. Afterwards the memory that Arrow has allocated counts,
    until the table is released.
    """

    def __init__(self, most: int, *, wait: float = _WAIT_SECONDS) -> None:
        """Allow up to `most` bytes in total; a table waits up to `wait` seconds for memory."""
        self._most = most
        self._wait = wait
        self._announced = 0
        self._lock = threading.Lock()

    @contextmanager
    def admit(self, size: int) -> Iterator[None]:
        """Reserve `size` bytes of the budget for the `with` block.

        Waits until other tables are released; raises `MemoryInUse` if there is still not enough room.
        """
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
