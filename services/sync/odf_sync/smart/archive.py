"""The archive that blocks travel in: a gzipped GNU tar, one file per block, oldest first (wire-facts §8.3).

To a node that announces it, a block comes after its signature, the file `signatures/<block hash>` (ADR 0064).
Archives from other nodes are hostile: what is unpacked is limited, and no name of a file reaches the file system.
"""

import gzip
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from typing import BinaryIO, Final

from odf_common.codec.signature import SIZE_LIMIT
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import ObjectKind

COMPRESSION_LEVEL: Final = 6
BLOCKS_BYTES_LIMIT: Final = 128 * 1024**2  # of all blocks of an archive, which one message has to hold
# Of the compressed archive: the headers of small blocks are as long as the blocks.
ARCHIVE_BYTES_LIMIT: Final = 2 * BLOCKS_BYTES_LIMIT
# Of all blocks of a push, which are kept in a file; each counts as at least as many bytes as a block takes in memory.
PUSHED_BYTES_LIMIT: Final = 512 * 1024**2
PUSHED_COUNTED_BYTES: Final = 512
# A block counts as at least this many bytes: in memory it takes more, however short it is.
COUNTED_BYTES: Final = 128
WHERE: Final = "archive of blocks"
EXTENDED: Final = (tarfile.XHDTYPE, tarfile.XGLTYPE)
_BROKEN: Final = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, OverflowError)
_SIGNATURE: Final = f"{ObjectKind.SIGNATURE}/"  # before the hash of a block
ReadSignature = Callable[[Multihash], bytes | None]


def no_signature(_: Multihash) -> None:
    """Return None, as for a block without a signature."""


def write_archive(
    blocks: Iterable[tuple[Multihash, bytes]], out: BinaryIO, signature: ReadSignature = no_signature
) -> None:
    """Write the archive of the blocks and of their signatures; equal ones give equal bytes."""
    with (
        # Without time and file name, so that equal blocks give equal bytes.
        gzip.GzipFile(
            fileobj=out, mode="wb", mtime=0, compresslevel=COMPRESSION_LEVEL, filename=""
        ) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as tar,
    ):
        for name, raw in blocks:
            signed = signature(name)
            if signed is not None:
                _add(tar, f"{_SIGNATURE}{name}", signed)
            _add(tar, str(name), raw)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = 0
    tar.addfile(entry, BytesIO(content))


def read_archive(
    archive: BinaryIO, *, count: int, limit: int = BLOCKS_BYTES_LIMIT
) -> Iterator[tuple[Multihash, bytes]]:
    """Yield the names and bytes of the blocks, the bytes unchecked.

    Raises `InvalidInput` unless there are `count`, each once, of at most `limit` bytes in all, and nothing else.
    """
    for name, raw, signature in read_signed_archive(archive, count=count, limit=limit):
        if signature:
            raise InvalidInput(text=f"{name} has a signature, which was not asked for", where=WHERE)
        yield name, raw


def read_signed_archive(
    archive: BinaryIO, *, count: int, limit: int = BLOCKS_BYTES_LIMIT, counted: int = COUNTED_BYTES
) -> Iterator[tuple[Multihash, bytes, bytes]]:
    """Yield the names and bytes of the blocks and their signatures, empty where there is none, all unchecked.

    Each counts as at least `counted` bytes. Raises `InvalidInput` as `read_archive` does, for a block of more than
    `BLOCKS_BYTES_LIMIT`, and for a signature that does not precede its block, or is too long.
    """
    # Only the names are kept: the blocks are passed on one at a time.
    names: set[Multihash] = set()
    size = 0
    for entry, raw, signature in _after_signatures(_files(archive, limit)):
        size += max(len(raw), counted)
        if len(names) == count:
            raise InvalidInput(text=f"more than the {count} blocks announced", where=WHERE)
        if size > limit:
            raise _too_large(limit)
        try:
            name = Multihash.parse(entry)
        except InvalidInput as error:
            raise InvalidInput(text=f"{entry[:80]!r} is not a hash", where=WHERE) from error
        if name in names:
            raise InvalidInput(text=f"{name} occurs twice", where=WHERE)
        names.add(name)
        yield name, raw, signature
    if len(names) != count:
        raise InvalidInput(text=f"{len(names)} blocks, but {count} announced", where=WHERE)


def _after_signatures(files: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield the files that are not signatures, each with the signature that comes before it, or nothing."""
    signed, signature = "", b""
    for entry, raw in files:
        if entry.startswith(_SIGNATURE) and not signed:
            if not 0 < len(raw) <= SIZE_LIMIT:
                raise InvalidInput(text=f"{entry[:80]!r} has {len(raw)} bytes", where=WHERE)
            signed, signature = entry, raw
            continue
        if signed not in ("", f"{_SIGNATURE}{entry}"):
            raise _misplaced(signed)
        yield entry, raw, signature
        signed, signature = "", b""
    if signed:
        raise _misplaced(signed)


def _files(archive: BinaryIO, limit: int) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents; `tarfile` itself would read headers of any size into memory.

    Extended headers (pax), such as Python writes for times with fractions, are skipped; they count as blocks do.
    """
    skipped = 0
    try:
        with gzip.GzipFile(fileobj=archive, mode="rb") as packed:
            while any(header := packed.read(tarfile.BLOCKSIZE)):
                entry = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
                is_extended = entry.type in EXTENDED
                if not is_extended and entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
                    raise InvalidInput(text=f"{entry.name[:80]!r} is not a plain file", where=WHERE)
                # Before anything of that size is read.
                if not 0 <= entry.size <= min(limit - skipped, BLOCKS_BYTES_LIMIT):
                    raise _too_large(limit)
                raw = packed.read(entry.size)
                if len(raw) < entry.size:
                    raise InvalidInput(text=f"cut off in {entry.name[:80]!r}", where=WHERE)
                packed.read(-entry.size % tarfile.BLOCKSIZE)
                if is_extended:
                    skipped += tarfile.BLOCKSIZE + entry.size
                else:
                    yield entry.name, raw
            packed.read(tarfile.RECORDSIZE)  # to the end, where the checksum is
    except _BROKEN as error:
        raise InvalidInput(text=f"not a gzipped tar: {str(error)[:200]}", where=WHERE) from error


def _misplaced(signature: str) -> InvalidInput:
    return InvalidInput(text=f"{signature[:80]!r} does not precede its block", where=WHERE)


def _too_large(limit: int) -> InvalidInput:
    return InvalidInput(text=f"more than {limit} bytes of blocks", where=WHERE)
