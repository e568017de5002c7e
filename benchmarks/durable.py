"""The disk's share of a commit: each file is fsynced, then the folder with its new name."""

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path


def durable(home: Path, sizes: Mapping[str, int]) -> float:
    """Write a file of that many bytes to each of these folders, in order; return the duration in seconds.

    The file in `refs` replaces the previous one, like a head.
    """
    begun = time.perf_counter()
    for name, size in sizes.items():
        folder = home / name
        folder.mkdir(exist_ok=True)
        pending = folder / "pending"
        with pending.open("wb", buffering=0) as file:
            file.write(bytes(size))
            os.fsync(file.fileno())
        pending.replace(folder / ("head" if name == "refs" else uuid.uuid4().hex))
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(handle)
        os.close(handle)
    return time.perf_counter() - begun
