"""Damage as disks and peers do it: flipped bytes, lost files, heads that lead nowhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def flip(file: Path, position: int | None = None) -> None:
    """Flip one bit of one byte; the middle one unless told which."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 1
    overwrite(file, bytes(content))


def overwrite(file: Path, content: bytes) -> None:
    """Replace a file's bytes in place, also where it is write-protected."""
    file.chmod(0o644)
    file.write_bytes(content)


@contextmanager
def flipped(file: Path, position: int | None = None) -> Iterator[None]:
    """Have one bit flipped while the block runs."""
    before, mode = file.read_bytes(), file.stat().st_mode
    flip(file, position)
    try:
        yield
    finally:
        overwrite(file, before)
        file.chmod(mode)
