"""FilesGlob: local files that match a pattern, each one block (spec: FetchStep::FilesGlob).

A file is new if the chain does not name it, whatever its place in the order. A file that was read and then changed is
read again, except with `cache: Forever`; under the merge strategy Append, which would double its records, only new
lines are read, even of a file that has another name since.

Local files: copied first, so that what is hashed is what is read, and limited in size.

Local files that programs append to: a last line is read once it has ended, and under Append only new lines are.

A copy of the file is changed in place, and keeps the numbers of its lines.
"""

import glob
import hashlib
import mmap
import os
import re
import stat
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import structlog

from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.fetching import FetchStepFilesGlob, SourceOrdering
from odf_common.metadata.scalars import Timestamp
from odf_ingest.poll.fetch.fetch_step import CHUNK_BYTES, Context, FetchedFile, Lines, fetch
from odf_ingest.poll.poll_errors import (
    FileForbidden,
    FileReplaced,
    FileUnreadable,
    LastLineContinued,
    NothingAtSource,
    TooLarge,
)
from odf_ingest.poll.polled_position import PollPosition, ReadFile


def copy_file(source: Path, target: Path, context: Context, label: str) -> tuple[Multihash, os.stat_result]:
    """Copy a regular file; return the hash of its bytes, and its size and times as of the start."""
    require_permitted(source, context, label)
    digest, size = hashlib.sha3_256(), 0
    try:
        # A named pipe must not block the poll until it has a writer.
        with os.fdopen(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as old:
            status = os.fstat(old.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise NothingAtSource(what=f"a regular file at {label}")
            with target.open("wb") as new:
                while chunk := old.read(CHUNK_BYTES):
                    context.require_wanted()
                    size += len(chunk)
                    if size > context.limits.size:
                        raise TooLarge(what=label, limit=context.limits.size)
                    digest.update(chunk)
                    new.write(chunk)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NothingAtSource(what=label) from error
    except OSError as error:
        raise FileUnreadable(what=label, why=error.strerror) from error
    return Multihash.sha3(digest.digest()), status


def require_permitted(source: Path, context: Context, label: str) -> None:
    """Raise `FileForbidden` for a file among the node's keys."""
    secrets = context.limits.secrets
    if secrets is not None and source.resolve().is_relative_to(secrets.resolve()):
        raise FileForbidden(text=f"{label} is among the keys of this node, which no source may read")


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


log = structlog.stdlib.get_logger(__name__)

MAX_FILES: Final = 1_000_000  # that match one pattern
_MAGIC: Final = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Match:
    path: Path
    name: str  # below the pattern's fixed folder
    size: int
    modified: int  # nanoseconds since the epoch
    event_time: Timestamp


@fetch.register
def files_glob(step: FetchStepFilesGlob, context: Context) -> Generator[FetchedFile]:
    """Iterate over the new files that match now; a changed one may have a fault."""
    found = list(_matches(step, context))
    new = [file for file in found if _may_be_new(file, context)]
    gone = _missing_files(found, context) if new and context.is_append else []
    copy = context.folder / "fetched"
    for number, match in enumerate(_sort(new, step), 1):
        context.report(f"file {number} of {len(new)}: {match.name}")
        fetched = _fetch_match(match, copy, context, gone)
        if fetched is not None:
            yield fetched
        copy.unlink(missing_ok=True)


def _fetch_match(match: _Match, copy: Path, context: Context, gone: list[ReadFile]) -> FetchedFile | None:
    """Copy a file, or its new lines; None if there is nothing new, or nothing yet."""
    digest, status = copy_file(match.path, copy, context, match.name)
    read = ReadFile(
        name=match.name, size=copy.stat().st_size, modified=status.st_mtime_ns, digest=str(digest)
    )
    previous = context.position.files.get(match.name)
    if previous is not None and previous.digest == read.digest:
        return None
    renamed = _continue_renamed(copy, read, gone, context)
    if renamed is not None and renamed.digest == read.digest:
        return replace(_file(match, copy, read), is_empty=True)
    continued = renamed or (previous if context.is_continued else None)
    if continued is not None and not (context.lines and has_new_lines(copy, continued)):
        return replace(_file(match, copy, read), fault=FileReplaced(what=match.name, dataset=context.name))
    if context.is_ledger and context.lines and previous is not None and continues_last_line(copy, previous):
        return replace(
            _file(match, copy, read), fault=LastLineContinued(what=match.name, dataset=context.name)
        )
    if not read.size and not context.takes_whole_batches:
        return None  # it has just been created, or a program has left it so: no format has records in it
    if not is_complete(match.path, status, copy, context, match.name):
        log.info("the last line of a file is not complete", file=match.name)
        # A snapshot without its last rows would retract them.
        if context.takes_whole_batches:
            return None
        read = without_last_line(copy, read)
        if not read.size or read.digest in [file.digest for file in (previous, renamed) if file is not None]:
            return None
    if continued is not None and context.lines is not None:
        keep_new_lines(copy, continued, context.lines)
    return _file(match, copy, read)


def _missing_files(found: Sequence[_Match], context: Context) -> list[ReadFile]:
    """Return the files that were read, and whose content no unchanged file has; of one with several names the last."""
    unchanged = {(match.name, match.size, match.modified) for match in found}
    files = context.position.files.values()
    kept = {file.digest for file in files if (file.name, file.size, file.modified) in unchanged}
    gone = (file for file in files if file.digest and file.digest not in kept)
    return list({file.digest: file for file in gone}.values())


def _continue_renamed(copy: Path, read: ReadFile, gone: list[ReadFile], context: Context) -> ReadFile | None:
    """Return the file that a copy was before it got another name, and new lines; it is gone no more."""
    digests = prefix_digests(copy, (file.size for file in gone))
    for file in sorted(gone, key=lambda file: -file.size):
        is_same = file.name != read.name and digests.get(file.size) == file.digest
        if is_same and (file.size == read.size or (context.lines and has_new_lines(copy, file))):
            gone.remove(file)
            log.info("a renamed file is not read again", file=read.name, before=file.name)
            context.report(f"{read.name}: was {file.name}, and is not read again")
            return file
    return None


def _file(match: _Match, copy: Path, read: ReadFile) -> FetchedFile:
    return FetchedFile(
        label=match.name,
        file=copy,
        event_time=match.event_time,
        state=read.state(),
        is_read=lambda position: _is_read(read, position),
    )


def _is_read(read: ReadFile, position: PollPosition) -> bool:
    previous = position.files.get(read.name)
    return previous is not None and previous.digest == read.digest


def _may_be_new(match: _Match, context: Context) -> bool:
    """Return whether a file is to be read: by its name, size and time."""
    previous = context.position.files.get(match.name)
    if previous is None:
        return True
    if not previous.digest or (previous.size, previous.modified) == (match.size, match.modified):
        return False
    return context.is_reread or context.is_continued


def _sort(matches: list[_Match], step: FetchStepFilesGlob) -> list[_Match]:
    """Order by event time, then name; by name alone if the step says so, or has no event time."""
    default = SourceOrdering.ByName if step.event_time is None else SourceOrdering.ByEventTime
    if (default if step.order is None else step.order) is SourceOrdering.ByName:
        return sorted(matches, key=lambda file: file.name)
    return sorted(matches, key=lambda file: (file.event_time.ns, file.name))


def _matches(step: FetchStepFilesGlob, context: Context) -> Iterator[_Match]:
    root = fixed_folder(step.path)
    if not root.is_dir():
        raise NothingAtSource(what=f"the folder {root}")
    for count, name in enumerate(glob.iglob(step.path, recursive=True), 1):  # noqa: PTH207 - lazy, and with `**` for links
        context.require_wanted()
        if count > MAX_FILES:
            raise InvalidInput(where="fetch.path", text=f"more than {MAX_FILES} files match {step.path}")
        try:
            status = os.stat(name)  # noqa: PTH116 - `name` may have any bytes
        except OSError:  # removed in the meantime, or a broken link
            continue
        if not stat.S_ISREG(status.st_mode):
            continue
        path = Path(name)
        modified = Timestamp(status.st_mtime_ns)
        yield _Match(
            path=path,
            name=_text(path.relative_to(root).as_posix()),
            size=status.st_size,
            modified=status.st_mtime_ns,
            event_time=context.event_time(step.event_time, path.as_posix(), modified),
        )


def fixed_folder(pattern: str) -> Path:
    """Return the folder before a pattern's first wildcard; raises `InvalidInput` for a relative pattern."""
    path = Path(pattern)
    if not path.is_absolute() or ".." in path.parts:
        text = f"expected an absolute path without .., such as /data/orders-*.csv, got {pattern!r}"
        raise InvalidInput(where="fetch.path", text=text)
    fixed: list[str] = []
    for part in path.parts[:-1]:
        if _MAGIC.search(part):
            break
        fixed.append(part)
    return Path(*fixed)


def _text(name: str) -> str:
    """Return a file name as a string that can be stored; bytes that are not UTF-8 are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
