"""What the disk alone wants for a commit: each file's bytes made durable, then the folder with its new name."""

import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path


def durable(home: Path, sizes: Mapping[str, int]) -> float:
    """Write a file of so many bytes in each of these folders, in their order; returns the seconds it took.

    The file in `refs` takes the place of the one before, as a head does.
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
