"""Local files that programs append to: a last line is read once it has ended, and under Append only new lines are.

A copy of the file is changed in place, and keeps the numbers of its lines.
"""

import hashlib
import mmap
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from odf_common.hashing.multihash import Multihash
from odf_ingest.poll.fetch.fetch_step import CHUNK_BYTES, Context, Lines
from odf_ingest.poll.polled_position import ReadFile

NEWLINE: Final = b"\n"
# A file without a newline at its end is complete once it has not changed for this long.
SETTLED_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.2


def is_complete(source: Path, status: os.stat_result, copy: Path, context: Context, label: str) -> bool:
    """Return whether a copy has the last line of its source as a whole; always for formats without lines.

    `status` is the source's when it was copied. Waits until a last line without newline has settled or continues.
    """
    if context.lines is None or _ends_with_newline(copy):
        return True
    while 0 <= time.time() - status.st_mtime < SETTLED_SECONDS:
        context.require_wanted()
        context.report(f"{label}: waiting for the end of its last line")
        time.sleep(LOOK_SECONDS)
        try:
            now = source.stat()
        except OSError:
            return False
        if (now.st_size, now.st_mtime_ns) != (status.st_size, status.st_mtime_ns):
            return False
    return True


def without_last_line(copy: Path, read: ReadFile) -> ReadFile:
    """Cut a copy after its last newline; return what is read of the file then."""
    with copy.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        size = content.rfind(NEWLINE) + 1
    os.truncate(copy, size)
    return ReadFile(
        name=read.name, size=size, modified=read.modified, digest=prefix_digests(copy, (size,))[size]
    )


def has_new_lines(copy: Path, previous: ReadFile) -> bool:
    """Return whether a copy begins with what was read before, and continues with lines of its own."""
    if copy.stat().st_size <= previous.size:
        return False
    if prefix_digests(copy, (previous.size,))[previous.size] != previous.digest:
        return False
    with copy.open("rb") as file:
        file.seek(max(previous.size - 1, 0))
        # Else the last line that was read has become longer.
        return not previous.size or NEWLINE in file.read(2)


def continues_last_line(copy: Path, previous: ReadFile) -> bool:
    """Return whether a copy begins with what was read before, whose last line had no newline and has become longer."""
    if not 0 < previous.size < copy.stat().st_size:
        return False
    with copy.open("rb") as file:
        file.seek(previous.size - 1)
        if NEWLINE in file.read(2):
            return False
    return prefix_digests(copy, (previous.size,))[previous.size] == previous.digest


def prefix_digests(file: Path, sizes: Iterable[int]) -> Mapping[int, str]:
    """Return the hashes of the first bytes of a file, by their number; those of more bytes than it has are left out."""
    digests, digest, done = {}, hashlib.sha3_256(), 0
    length = file.stat().st_size
    with file.open("rb") as content:
        for size in sorted({size for size in sizes if size <= length}):
            while done < size and (chunk := content.read(min(CHUNK_BYTES, size - done))):
                digest.update(chunk)
                done += len(chunk)
            digests[size] = str(Multihash.sha3(digest.digest()))
    return digests


def keep_new_lines(copy: Path, previous: ReadFile, lines: Lines) -> None:
    """Replace what was read before with empty lines, except a header, so that places in errors stay right."""
    if not previous.size:
        return
    new = copy.with_name(f"{copy.name}-new")
    with copy.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        header = _header_end(content, lines.header_quote)
        with new.open("wb") as target:
            target.write(content[:header])
            file.seek(header)
            left = previous.size - header
            while left > 0 and (chunk := file.read(min(CHUNK_BYTES, left))):
                target.write(NEWLINE * chunk.count(NEWLINE))
                left -= len(chunk)
            while chunk := file.read(CHUNK_BYTES):
                target.write(chunk)
    new.replace(copy)


def _header_end(content: mmap.mmap, quote: bytes | None) -> int:
    """Return the size of the first record; a newline in quotes does not end it."""
    if quote is None:
        return 0
    end = content.find(NEWLINE) + 1
    while end and content[:end].count(quote) % 2:
        end = content.find(NEWLINE, end) + 1
    return end


def _ends_with_newline(file: Path) -> bool:
    with file.open("rb") as content:
        if not content.seek(0, os.SEEK_END):
            return True
        content.seek(-1, os.SEEK_END)
        return content.read(1) == NEWLINE
