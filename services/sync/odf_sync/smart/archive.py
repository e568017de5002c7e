"""The archive that blocks travel in: a gzipped GNU tar, one file per block, oldest first (wire-facts §8.3).

Archives from other nodes are hostile: what is unpacked is limited, and no name of a file reaches the file system.
"""

import gzip
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from io import BytesIO
from typing import BinaryIO, Final

from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash

LEVEL: Final = 6
BLOCKS_BYTES_LIMIT: Final = 128 * 1024**2  # of all blocks of an archive, which one message has to hold
ARCHIVE_BYTES_LIMIT: Final = (
    2 * BLOCKS_BYTES_LIMIT
)  # compressed; headers of small blocks are as long as blocks
WHERE: Final = "archive of blocks"
EXTENDED: Final = (tarfile.XHDTYPE, tarfile.XGLTYPE)
_BROKEN: Final = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, OverflowError)


def write_archive(blocks: Iterable[tuple[Multihash, bytes]], out: BinaryIO) -> None:
    """Write the archive of the blocks; equal blocks give equal bytes."""
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=0, compresslevel=LEVEL, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as tar,
    ):
        for name, raw in blocks:
            entry = tarfile.TarInfo(str(name))
            entry.size = len(raw)
            entry.mode = 0
            tar.addfile(entry, BytesIO(raw))


def read_archive(
    archive: BinaryIO, *, count: int, limit: int = BLOCKS_BYTES_LIMIT
) -> Iterator[tuple[Multihash, bytes]]:
    """Yield the names and bytes of the blocks, the bytes unchecked.

    Raises `InvalidInput` unless there are `count`, each once, of at most `limit` bytes in all.
    """
    found: set[Multihash] = set()
    size = 0
    for entry, raw in _files(archive, limit):
        size += len(raw)
        if len(found) == count:
            raise InvalidInput(text=f"more than the {count} blocks announced", where=WHERE)
        if size > limit:
            raise _too_large(limit)
        try:
            name = Multihash.parse(entry)
        except InvalidInput as error:
            raise InvalidInput(text=f"{entry[:80]!r} is not a hash", where=WHERE) from error
        if name in found:
            raise InvalidInput(text=f"{name} is there twice", where=WHERE)
        found.add(name)
        yield name, raw
    if len(found) != count:
        raise InvalidInput(text=f"{len(found)} blocks, but {count} announced", where=WHERE)


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
                if not 0 <= entry.size <= limit - skipped:
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


def _too_large(limit: int) -> InvalidInput:
    return InvalidInput(text=f"more than {limit} bytes of blocks", where=WHERE)
