"""Log files of a node's parts: for their owner alone, and bounded while the parts write to them.

A part inherits its log as an open file and does not cooperate, such as Java and Redis. So a log that is too long is
copied, and then emptied: all parts append, and continue at its beginning. What is written between the end of the copy
and the emptying, some microseconds, is lost. Renaming would lose nothing, but a running part would write to the renamed
file forever; a pipe would stop the parts whenever the supervisor hangs.
"""

import asyncio
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal

import structlog

log = structlog.stdlib.get_logger(__name__)

MODE: Final = 0o600
KEPT_LOGS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """Limits on the size of logs."""

    max_bytes: int = 16 * 1024**2
    """Bytes of one log; twice as many if the disk has no room for a copy."""
    kept: int = KEPT_LOGS
    """Older logs that are kept of each part."""
    check_seconds: float = 2.0
    """Pause between checks of their sizes."""


def open_log(file: Path, mode: Literal["ab", "wb"] = "ab") -> BinaryIO:
    """Open a log for its owner alone."""
    opened: BinaryIO = open(file, mode, opener=lambda path, flags: os.open(path, flags, MODE))  # noqa: SIM115 - `Path.open` takes no opener
    os.fchmod(opened.fileno(), MODE)  # of one that existed
    return opened


def rotate(file: Path, kept: int = KEPT_LOGS) -> None:
    """Rename a log that no part writes to, and the older ones: `kafka.log` → `kafka.log.1` → …."""
    for number in range(kept, 0, -1):
        newer = file if number == 1 else _older(file, number - 1)
        if newer.exists():
            newer.replace(_older(file, number))


def shorten(file: Path, limits: LogLimits) -> bool:
    """Empty a log that is too long, and keep what it had as the newest of the older ones; return whether it was.

    Raises `OSError` if the disk takes no copy; then nothing has changed. One of twice the length is emptied without.
    """
    size = file.stat().st_size
    if size <= limits.max_bytes:
        return False
    with file.open("r+b") as source:
        try:
            _keep(source, file, limits.kept)
        except OSError:
            if size < 2 * limits.max_bytes:
                raise
        source.truncate(0)
    return True


def _keep(source: BinaryIO, file: Path, kept: int) -> None:
    """Copy a log; the renames come first, so that after a crash lines are there twice, and not missing."""
    copy = file.with_name(f"{file.name}.copy")
    try:
        with open_log(copy, "wb") as out:
            shutil.copyfileobj(source, out)
            out.flush()  # a full disk is noticed before anything is renamed
            for number in range(kept, 1, -1):
                if _older(file, number - 1).exists():
                    _older(file, number - 1).replace(_older(file, number))
            copy.replace(_older(file, 1))
            shutil.copyfileobj(source, out)  # what has come meanwhile
    finally:
        copy.unlink(missing_ok=True)


def _older(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.{number}")


async def keep_bounded(folder: Path, limits: LogLimits) -> None:
    """Shorten the logs of all parts and of the supervisor in a folder, until cancelled."""
    failed: set[Path] = set()
    while True:
        await asyncio.sleep(limits.check_seconds)
        await asyncio.to_thread(_shorten_all, folder, limits, failed)


def _shorten_all(folder: Path, limits: LogLimits, failed: set[Path]) -> None:
    """Shorten logs; a failure is logged once, until it succeeds."""
    for file in sorted(folder.glob("*.log")):
        try:
            if shorten(file, limits):
                failed.discard(file)
        except OSError as error:
            if file not in failed:
                log.warning("cannot rotate a log, retrying", file=str(file), why=error.strerror)
            failed.add(file)
