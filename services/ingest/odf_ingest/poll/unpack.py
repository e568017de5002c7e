"""Prepare steps: what was fetched → a file that can be read (spec: PrepStep).

`Decompress` unpacks a compressed file, or one file of an archive. `Gzip` is any compressed stream: gzip, and bzip2, xz
and zstd, which are recognised by their first bytes. A tar archive inside is recognised too, and one of its files is
taken. Archives are untrusted: nothing is extracted by its name, the content goes to one file of our own, so no path or
link of an archive is followed.
"""

import bz2
import fnmatch
import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import singledispatch
from pathlib import Path
from typing import Final, Protocol, Self

import pyarrow as pa

from odf_common.errors import InvalidInput
from odf_common.metadata.fetching import CompressionFormat, PrepStep, PrepStepDecompress, PrepStepPipe
from odf_ingest.poll.fetch import Context, FetchedFile, FetchedMessages
from odf_ingest.poll.fetch.container import PATH, Command
from odf_ingest.poll.fetch.fetch_step import CHUNK_BYTES
from odf_ingest.poll.poll_errors import PrepareUnsupported, TooLarge


@singledispatch
def unpack(step: PrepStep, file: Path, target: Path, context: Context) -> None:
    """Write the result of the step to `target`; raises `InvalidInput` for a file that does not fit it."""
    raise PrepareUnsupported(step=type(step).__name__.removeprefix("PrepStep"))


@unpack.register
def pipe(step: PrepStepPipe, file: Path, target: Path, context: Context) -> None:
    """Write the output of a command of this machine for the file; raises `CommandFailed`."""
    if not step.command:
        raise InvalidInput(where="prepare.command", text="is empty")
    environ = {"PATH": PATH, "HOME": str(context.folder), "LANG": "C.UTF-8"}
    with file.open("rb") as source:
        Command(line=step.command, label=step.command[0], environ=environ).run(source, target, context)


def prepare_fetched(
    steps: Sequence[PrepStep], fetched: FetchedFile | FetchedMessages, context: Context
) -> FetchedFile | FetchedMessages:
    """Return the fetched batch, with its file after the steps; messages have none.

    Raises `InvalidInput` with its place.
    """
    if isinstance(fetched, FetchedMessages):
        return fetched
    file = fetched.file
    for number, step in enumerate(steps):
        context.report(f"{fetched.label}: {type(step).__name__.removeprefix('PrepStep')}")
        target = context.folder / f"prepared-{number % 2}"
        with naming(fetched):
            unpack(step, file, target, context)
        file.unlink()
        file = target
    return replace(fetched, file=file)


@contextmanager
def naming(fetched: FetchedFile | FetchedMessages) -> Iterator[None]:
    """Prefix errors of a file's content with its place."""
    try:
        yield
    except InvalidInput as error:
        if error.text is None:
            raise
        where = f"{fetched.label}, {error.where}" if error.where else fetched.label
        raise error.with_facts(where=where) from error


WHERE: Final = "prepare"
MAX_ARCHIVE_ENTRIES: Final = 100_000  # of an archive
MAX_RATIO: Final = 1_100  # of unpacked to packed bytes; deflate reaches 1,032
RATIO_CHECKED_FROM_BYTES: Final = 64 << 20  # of unpacked content
MAX_XZ_MEMORY_BYTES: Final = 256 << 20  # that an xz stream may ask for
SHOWN_NAMES: Final = 10  # in an error
ENCRYPTED: Final = 0x1
TAR_MAGIC: Final = b"ustar"  # of POSIX and GNU archives
TAR_MAGIC_OFFSET: Final = 257
_BROKEN: Final = (
    EOFError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
    lzma.LZMAError,
    pa.ArrowException,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)


class _Content(Protocol):
    """A readable stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; empty at the end."""


def _gzip(file: Path) -> AbstractContextManager[_Content]:
    return gzip.open(file)


def _bzip2(file: Path) -> AbstractContextManager[_Content]:
    return bz2.open(file)


def _zstd(file: Path) -> AbstractContextManager[_Content]:
    stream: AbstractContextManager[_Content] = pa.input_stream(file, compression="zstd")
    return stream


@unpack.register
def decompress(step: PrepStepDecompress, file: Path, target: Path, context: Context) -> None:
    """Write the decompressed content, or the one file that `subPath` names."""
    try:
        if step.format is CompressionFormat.Zip:
            _from_zip(step, file, target, context)
        else:
            with _open(file) as stream:
                _copy(stream, target, file.stat().st_size, context)
            if step.sub_path is not None or _is_tar(target):
                _from_tar(step, target, context)
    except _BROKEN as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise  # our own file, such as on a full disk
        text = f"cannot be unpacked as {step.format.name}: {str(error) or 'it is cut off'}"
        raise InvalidInput(where=WHERE, text=text) from error


def _open(file: Path) -> AbstractContextManager[_Content]:
    with file.open("rb") as raw:
        first = raw.read(8)
    for magic, opener in OPENERS.items():
        if first.startswith(magic):
            return opener(file)
    kind = "a zip archive" if first.startswith(b"PK") else "neither gzip, bzip2, xz nor zstd"
    raise InvalidInput(
        where=WHERE, text=f"what was fetched is {kind}; correct `format`, or leave the step out"
    )


def _from_zip(step: PrepStepDecompress, file: Path, target: Path, context: Context) -> None:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        _require_few(len(entries))
        files = {entry.filename: entry for entry in entries if not entry.is_dir()}
        entry = files[_choose(files, step.sub_path)]
        mode = entry.external_attr >> 16
        if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            raise InvalidInput(
                where=WHERE, text=f"{entry.filename!r} is not a regular file, but a link or device"
            )
        if entry.flag_bits & ENCRYPTED:
            raise InvalidInput(where=WHERE, text=f"{entry.filename!r} is encrypted")
        with archive.open(entry) as stream:
            _copy(stream, target, max(entry.compress_size, 1), context)


def _is_tar(file: Path) -> bool:
    with file.open("rb") as raw:
        raw.seek(TAR_MAGIC_OFFSET)
        return raw.read(len(TAR_MAGIC)) == TAR_MAGIC


def _from_tar(step: PrepStepDecompress, target: Path, context: Context) -> None:
    """Replace a tar archive by one of its files."""
    plain = target.replace(target.with_suffix(".tar"))
    try:
        with tarfile.open(plain, "r:") as archive:
            members: dict[str, tarfile.TarInfo] = {}
            for count, member in enumerate(archive, 1):
                _require_few(count)
                if not member.isdir():
                    members[member.name.removeprefix("./")] = member
            entry = members[_choose(members, step.sub_path)]
            stream_of_entry = archive.extractfile(entry) if entry.isreg() else None
            if stream_of_entry is None:
                text = f"{entry.name!r} is not a regular file, but a link or device"
                raise InvalidInput(where=WHERE, text=text)
            with stream_of_entry as content:
                _copy(content, target, max(entry.size, 1), context)
    finally:
        plain.unlink(missing_ok=True)


def _require_few(count: int) -> None:
    if count > MAX_ARCHIVE_ENTRIES:
        raise InvalidInput(where=WHERE, text=f"the archive has more than {MAX_ARCHIVE_ENTRIES} entries")


def _choose(names: Iterable[str], sub_path: str | None) -> str:
    """Return the one name that `subPath` means; raises `InvalidInput` unless there is exactly one."""
    files = sorted(name for name in names if not name.startswith("__MACOSX/"))
    if sub_path is not None and sub_path in files:
        return sub_path
    chosen = files if sub_path is None else [name for name in files if _matches(name, sub_path)]
    if len(chosen) == 1:
        return chosen[0]
    examples = ", ".join(repr(name) for name in (chosen or files)[:SHOWN_NAMES])
    more = ", …" if len(chosen or files) > SHOWN_NAMES else ""
    what = "has no file" if not files else f"has {examples}{more}"
    if sub_path is None:
        raise InvalidInput(where=WHERE, text=f"the archive {what}; choose one with `subPath`")
    how = "no file" if not chosen else f"{len(chosen)} files"
    raise InvalidInput(where=f"{WHERE}.subPath", text=f"{sub_path!r} matches {how}; the archive {what}")


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or (
        pattern.startswith("**/") and fnmatch.fnmatchcase(name, pattern.removeprefix("**/"))
    )


def _copy(stream: _Content, target: Path, packed: int, context: Context) -> None:
    """Copy a stream of `packed` bytes; raises `TooLarge` if it grows more than honest data does, too."""
    size = 0
    limit = context.limits.size
    with target.open("wb") as out:
        while chunk := stream.read(CHUNK_BYTES):
            context.require_wanted()
            size += len(chunk)
            if size > limit:
                raise TooLarge(what="what was unpacked", limit=limit)
            if size > RATIO_CHECKED_FROM_BYTES and size > packed * MAX_RATIO:
                text = f"{packed} bytes unpack to more than {MAX_RATIO} times as many: a decompression bomb"
                raise InvalidInput(where=WHERE, text=text)
            out.write(chunk)


class _Xz:
    """The content of an xz file, whose streams have a limit of memory."""

    def __init__(self, file: Path) -> None:
        self._raw = file.open("rb")
        self._stream = lzma.LZMADecompressor(memlimit=MAX_XZ_MEMORY_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; empty at the end of the last stream."""
        while True:
            if self._stream.eof:
                rest = (self._stream.unused_data or self._raw.read(CHUNK_BYTES)).lstrip(b"\x00")
                if not rest:
                    return b""
                self._stream = lzma.LZMADecompressor(memlimit=MAX_XZ_MEMORY_BYTES)
            elif self._stream.needs_input:
                rest = self._raw.read(CHUNK_BYTES)
                if not rest:
                    raise EOFError
            else:
                rest = b""
            content = self._stream.decompress(rest, size)
            if content:
                return content


OPENERS: Final[Mapping[bytes, Callable[[Path], AbstractContextManager[_Content]]]] = {
    b"\x1f\x8b": _gzip,
    b"BZh": _bzip2,
    b"\xfd7zXZ\x00": _Xz,
    b"\x28\xb5\x2f\xfd": _zstd,
}
"""Functions that open compressed files, by the first bytes of the format."""
