"""A small separate file system at a folder, so that a disk can be full."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

PIECES: Final = (65_536, 4_096, 1)  # bytes: the rest is filled too


@contextmanager
def small_disk(folder: Path, *, size: str) -> Iterator[None]:
    """Mount a new file system at a folder that does not exist, for which the tests need to be root."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "odf-test", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        # In some containers not even root may.
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        # Lazily: a test may still hold a lock there.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Allocate all free space; returns the file that occupies it."""
    file = folder / "filler"
    with file.open("wb", buffering=0) as filler:
        for size in PIECES:
            with suppress(OSError):
                while True:
                    filler.write(bytes(size))
    assert shutil.disk_usage(folder).free == 0
    return file


def leave_free(folder: Path, size: int) -> None:
    """Change the size of the file system at a folder, so that about this many bytes are free."""
    used = shutil.disk_usage(folder).used
    subprocess.run(["mount", "-o", f"remount,size={used + size}", str(folder)], check=True)
