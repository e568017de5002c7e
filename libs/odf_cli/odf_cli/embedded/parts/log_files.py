"""Log files of a node's parts: readable by their owner only, and limited in size while the parts write to them.

A part, such as Java or Redis, inherits its log as an open file and cannot be asked to reopen it. So a log that is too
long is copied, and then truncated: all parts open it for appending, so they continue at its beginning. Lines written in
the microseconds between the copy and the truncation are lost. After a rename, a part would write to the renamed file
forever. A pipe would block the parts whenever the supervisor hangs.
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
    """The size in bytes above which a log is rotated; twice as many if the disk has no room for the copy."""
    kept: int = KEPT_LOGS
    """The number of older logs that are kept for each part."""
    check_seconds: float = 2.0
    """The interval between checks of the sizes."""


def open_log(file: Path, mode: Literal["ab", "wb"] = "ab") -> BinaryIO:
    """Open a log file that only its owner can read."""
    opened: BinaryIO = open(file, mode, opener=lambda path, flags: os.open(path, flags, MODE))  # noqa: SIM115 - `Path.open` takes no opener
    os.fchmod(opened.fileno(), MODE)  # of one that existed
    return opened


def rotate(file: Path, kept: int = KEPT_LOGS) -> None:
    """Rename the log of a part that is not running, and its older logs: `kafka.log` to `kafka.log.1`, and so on."""
    for number in range(kept, 0, -1):
        newer = file if number == 1 else _older(file, number - 1)
        if newer.exists():
            newer.replace(_older(file, number))


def shorten(file: Path, limits: LogLimits) -> bool:
    """Copy a log that is too long to `….1`, rename older logs, and truncate it; returns whether the log was too long.

    Raises `OSError`, without changes, if there is no disk space for the copy. A log of twice the limit is truncated
    without a copy.
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
    """Copy a log to `….1`, and rename older logs.

    The log is truncated after that, so that a crash may duplicate lines, but loses none.
    """
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
    """Rotate all logs in a folder that get too long, until cancelled."""
    failed: set[Path] = set()
    while True:
        await asyncio.sleep(limits.check_seconds)
        await asyncio.to_thread(_shorten_all, folder, limits, failed)


def _shorten_all(folder: Path, limits: LogLimits, failed: set[Path]) -> None:
    """Rotate the logs that are too long; the failure of a log is reported once until a rotation succeeds."""
    for file in sorted(folder.glob("*.log")):
        try:
            if shorten(file, limits):
                failed.discard(file)
        except OSError as error:
            if file not in failed:
                log.warning("cannot rotate a log, retrying", file=str(file), why=error.strerror)
            failed.add(file)
