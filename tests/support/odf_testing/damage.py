"""Damage as caused by disks and peers: flipped bits, lost files, heads that point nowhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def flip(file: Path, position: int | None = None) -> None:
    """Flip one bit of one byte, by default of the middle one."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 1
    overwrite(file, bytes(content))


def overwrite(file: Path, content: bytes) -> None:
    """Replace a file's bytes in place, even if it is write-protected."""
    file.chmod(0o644)
    file.write_bytes(content)


@contextmanager
def flipped(file: Path, position: int | None = None) -> Iterator[None]:
    """Have one bit flipped inside the block."""
    before, mode = file.read_bytes(), file.stat().st_mode
    flip(file, position)
    try:
        yield
    finally:
        overwrite(file, before)
        file.chmod(mode)
