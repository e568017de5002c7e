"""The memory of the machine, or of the container that this process runs in."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_LIMIT: Final = Path("/sys/fs/cgroup/memory.max")  # of a container
_SHARE: Final = 8  # one part of the memory in so many: tables are copied, and more than one is read at a time


def max_decoded_bytes(most: int, limit: Path = _LIMIT) -> int:
    """Return the size limit (bytes, decoded) of a table from others: an eighth of the memory, at most `most`."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no such file, or it says "max"
        memory = min(memory, int(limit.read_text()))
    return min(most, memory // _SHARE)
