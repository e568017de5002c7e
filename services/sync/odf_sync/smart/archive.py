"""Ranges of blocks, and their archive: a gzipped GNU tar, one file per block, oldest first (wire-facts §8.3).

If the receiving node announces that it takes signatures, the signature of a block precedes the block, as the file
`signatures/<block hash>` (ADR 0064). Archives from other nodes are not trusted: the unpacked size is limited, and no
file name from an archive is used in the file system. Unpacked blocks are kept in a file and not in memory, because an
exchange may last for hours and many may run at a time.
"""

import gzip
import tarfile
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO
from itertools import groupby
from tempfile import TemporaryFile
from typing import BinaryIO, Final

from odf_common.adapters.local.faults import translate_os_errors, translating_os_errors
from odf_common.chain.compare_chains import Ahead, Equal, compare
from odf_common.chain.walk import Link, ReadBlock, blocks_between
from odf_common.codec.signature import SIZE_LIMIT
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DataEvent, MetadataEvent
from odf_common.ports.store import BlobStore, ObjectKind, scratch_folder
from odf_sync.smart.messages import ObjectFile, ObjectType, TransferPlan

COMPRESSION_LEVEL: Final = 6
BLOCKS_BYTES_LIMIT: Final = 128 * 1024**2  # of all blocks of an archive, which one message has to hold
# Of the compressed archive: the headers of small blocks are as long as the blocks.
ARCHIVE_BYTES_LIMIT: Final = 2 * BLOCKS_BYTES_LIMIT
# Of one block: manifests and events of commands have no more. Decoded, it takes several times that in memory.
ARCHIVED_BLOCK_LIMIT: Final = 16 * 1024**2
# Of all blocks of a push, which are kept in a file; each counts as at least as many bytes as it takes in memory.
PUSHED_BYTES_LIMIT: Final = 512 * 1024**2
PUSHED_COUNTED_BYTES: Final = 1024
# A block counts as at least this many bytes: in memory it takes more, however short it is.
COUNTED_BYTES: Final = 128
# Of extended headers for each block: other programs write some 1.5 KiB.
EXTENDED_BYTES: Final = 4096
PIECE_BYTES: Final = 256 * 1024
WHERE: Final = "archive of blocks"
EXTENDED: Final = (tarfile.XHDTYPE, tarfile.XGLTYPE)
_BROKEN: Final = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, OverflowError)
_SIGNATURE: Final = f"{ObjectKind.SIGNATURE}/"  # before the hash of a block
ReadSignature = Callable[[Multihash], bytes | None]
ArchivedBlock = tuple[Multihash, Iterable[bytes], bytes]
"""The hash of a block, its bytes in pieces, and its signature, which is empty if the block has none."""


def no_signature(_: Multihash) -> None:
    """Return None: a `ReadSignature` for blocks without signatures."""


def write_archive(
    blocks: Iterable[tuple[Multihash, bytes]], out: BinaryIO, signature: ReadSignature = no_signature
) -> None:
    """Write an archive of the blocks and their signatures to `out`. Equal blocks and signatures give equal bytes."""
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


def require_countable(plan: TransferPlan, *, limit: int, counted: int) -> None:
    """Raise `InvalidInput` if the announced blocks have more than `limit` bytes in total.

    Each block counts as at least `counted` bytes, however short it is.
    """
    size = max(plan.bytes_in_raw_blocks, counted * plan.num_blocks)
    if size > limit:
        text = (
            f"{plan.num_blocks} blocks of {plan.bytes_in_raw_blocks} bytes announced, which count as {size}"
        )
        raise InvalidInput(text=f"{text}; at most {limit} are taken", where="transfer_plan")


def read_archive(
    archive: BinaryIO, *, count: int, limit: int = BLOCKS_BYTES_LIMIT
) -> Iterator[tuple[Multihash, bytes]]:
    """Yield the hash and the bytes of each block; the bytes are not checked against the hash.

    Raises `InvalidInput` unless the archive has exactly `count` different blocks, of at most `limit` bytes in total,
    and no other files.
    """
    names: set[Multihash] = set()
    for name, pieces, signature in read_signed_archive(archive, count=count, limit=limit):
        if signature:
            raise InvalidInput(text=f"{name} has a signature, which was not asked for", where=WHERE)
        if name in names:
            raise duplicate_block(name)
        names.add(name)
        yield name, b"".join(pieces)


def read_signed_archive(archive: BinaryIO, *, count: int, limit: int) -> Iterator[ArchivedBlock]:
    """Yield the hash, bytes and signature of each block; nothing is checked against the hash.

    The bytes come in pieces, which must be read before the next block is requested. The signature is empty if a block
    has none. Raises `InvalidInput` unless the archive has exactly `count` blocks, of at most `limit` bytes in total,
    and no other files; or if a signature is too long or does not precede its block. Duplicate blocks are left to the
    caller.
    """
    size = found = 0
    for file, signature in _pair_with_signatures(_files(archive, count)):
        size, found = size + file.size, found + 1
        # By the header, before anything of it is unpacked.
        if found > count:
            raise InvalidInput(text=f"more than the {count} blocks announced", where=WHERE)
        if size > limit:
            raise InvalidInput(
                text=f"at least {size} bytes of blocks, but at most {limit} announced", where=WHERE
            )
        if file.size > ARCHIVED_BLOCK_LIMIT:
            text = f"a block of {file.size} bytes; at most {ARCHIVED_BLOCK_LIMIT} are taken"
            raise InvalidInput(text=text, where=WHERE)
        try:
            name = Multihash.parse(file.name)
        except InvalidInput as error:
            raise InvalidInput(text=f"{file.name[:80]!r} is not a hash", where=WHERE) from error
        yield name, file.pieces, signature
    if found != count:
        raise InvalidInput(text=f"{found} blocks, but {count} announced", where=WHERE)


def duplicate_block(name: Multihash) -> InvalidInput:
    """Return the error for a block that occurs twice in an archive."""
    return InvalidInput(text=f"{name} occurs twice", where=WHERE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    name: str
    size: int
    pieces: Iterator[bytes]


def _pair_with_signatures(files: Iterable[_File]) -> Iterator[tuple[_File, bytes]]:
    """Yield the files that are not signatures, each with the signature that precedes it, or with empty bytes."""
    pending, signature = "", b""  # the name and content of a signature whose block comes next
    for file in files:
        if file.name.startswith(_SIGNATURE) and not pending:
            if not 0 < file.size <= SIZE_LIMIT:
                raise InvalidInput(text=f"{file.name[:80]!r} has {file.size} bytes", where=WHERE)
            pending, signature = file.name, b"".join(file.pieces)
            continue
        if pending not in ("", f"{_SIGNATURE}{file.name}"):
            raise _misplaced_signature(pending)
        yield file, signature
        pending, signature = "", b""
    if pending:
        raise _misplaced_signature(pending)


def _files(archive: BinaryIO, count: int) -> Iterator[_File]:
    """Yield the files of the archive without unpacking their content.

    `tarfile` itself would read headers of any size into memory. Extended headers (pax), such as Python writes for
    timestamps with fractions of a second, are skipped, up to `EXTENDED_BYTES` per block.
    """
    skipped, most_skipped = 0, EXTENDED_BYTES * (count + 1)
    try:
        with gzip.GzipFile(fileobj=archive, mode="rb") as packed:
            while any(header := packed.read(tarfile.BLOCKSIZE)):
                entry = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
                is_extended = entry.type in EXTENDED
                if not is_extended and entry.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
                    raise InvalidInput(text=f"{entry.name[:80]!r} is not a plain file", where=WHERE)
                if entry.size < 0:
                    raise InvalidInput(text=f"{entry.name[:80]!r} has {entry.size} bytes", where=WHERE)
                skipped += tarfile.BLOCKSIZE + entry.size if is_extended else 0
                if skipped > most_skipped:
                    text = f"extended headers of {skipped} bytes; {count} blocks may have {most_skipped}"
                    raise InvalidInput(text=text, where=WHERE)
                pieces = _pieces(packed, entry)
                if not is_extended:
                    yield _File(name=entry.name, size=entry.size, pieces=pieces)
                for _ in pieces:
                    pass
                packed.read(-entry.size % tarfile.BLOCKSIZE)
            packed.read(tarfile.RECORDSIZE)  # to the end, where the checksum is
    except _BROKEN as error:
        raise InvalidInput(text=f"not a gzipped tar: {str(error)[:200]}", where=WHERE) from error


def _pieces(packed: gzip.GzipFile, entry: tarfile.TarInfo) -> Iterator[bytes]:
    """Yield the bytes of an entry in pieces of up to `PIECE_BYTES`."""
    left = entry.size
    try:
        while left:
            piece = packed.read(min(left, PIECE_BYTES))
            if not piece:
                raise InvalidInput(text=f"cut off in {entry.name[:80]!r}", where=WHERE)
            left -= len(piece)
            yield piece
    except _BROKEN as error:  # in the hands of the one who takes the pieces
        raise InvalidInput(text=f"not a gzipped tar: {str(error)[:200]}", where=WHERE) from error


def _misplaced_signature(signature: str) -> InvalidInput:
    return InvalidInput(text=f"{signature[:80]!r} does not precede its block", where=WHERE)


HEADER_BYTES: Final = 128  # of each block's header in an archive, with padding; compressed, it has 50 to 100
HasBlock = Callable[[Multihash], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The blocks after `after` up to and including `head`; if `after` is None, from the first block of the chain."""

    after: Multihash | None
    head: Multihash

    def links(self, read: ReadBlock) -> Iterator[Link]:
        """Yield the blocks, oldest first; raises `ChainBroken`."""
        return blocks_between(read, self.head, self.after)


def is_ancestor(read: ReadBlock, has: HasBlock, block: Multihash, head: Multihash) -> bool:
    """Return whether `block` is `head` or one of its ancestors."""
    # Without `has` a walk to an unknown block would fail as if the chain were damaged.
    return has(block) and isinstance(compare(read, head, read, block), Ahead | Equal)


def plan_of(read: ReadBlock, blocks: Range) -> TransferPlan:
    """Return the number of blocks, objects and records in a range, and the bytes of its blocks and objects."""
    count = _Count()
    for _ in count.through(blocks.links(read)):
        pass
    return count.plan()


def pack(blocks: Iterable[Link], out: BinaryIO, signature: ReadSignature = no_signature) -> TransferPlan:
    """Write an archive of the blocks to `out`, and return the totals of what it contains.

    Blocks are read one at a time.
    """
    count = _Count()
    write_archive(count.through(blocks), out, signature)
    return count.plan()


def in_parts(blocks: Iterable[Link], most: int) -> Iterator[Iterator[Link]]:
    """Split the blocks into parts of at most `most` bytes, tar headers included; a larger block is a part of its own.

    A part must be read before the next one is requested. The archive of a part is no longer than the part, even if its
    blocks do not compress.
    """
    number = size = 0

    def part_of(link: Link) -> int:
        nonlocal number, size
        counted = HEADER_BYTES + len(link[2])
        size += counted
        if size > most:
            number, size = number + 1, counted
        return number

    return (part for _, part in groupby(blocks, part_of))


def objects_of(event: MetadataEvent) -> Iterator[ObjectFile]:
    """Yield the data slice and the checkpoint that an event refers to."""
    if not isinstance(event, DataEvent):
        return
    for kind, obj in (
        (ObjectType.DATA_SLICE, event.new_data),
        (ObjectType.CHECKPOINT, event.new_checkpoint),
    ):
        if obj is not None:
            yield ObjectFile(object_type=kind, physical_hash=obj.physical_hash, size=obj.size)


@dataclass(slots=True)
class _Count:
    blocks: int = 0
    objects: int = 0
    records: int = 0
    block_bytes: int = 0
    object_bytes: int = 0

    def through(self, links: Iterable[Link]) -> Iterator[tuple[Multihash, bytes]]:
        for name, decoded, raw in links:
            event = decoded.block.event
            objects = tuple(objects_of(event))
            self.blocks += 1
            self.objects += len(objects)
            self.block_bytes += len(raw)
            self.object_bytes += sum(obj.size for obj in objects)
            if isinstance(event, DataEvent) and event.new_data is not None:
                interval = event.new_data.offset_interval
                self.records += interval.records
            yield name, raw

    def plan(self) -> TransferPlan:
        return TransferPlan(
            num_blocks=self.blocks,
            num_objects=self.objects,
            num_records=self.records,
            bytes_in_raw_blocks=self.block_bytes,
            bytes_in_raw_objects=self.object_bytes,
        )


def spool_file(blobs: BlobStore) -> BinaryIO:
    """Open an empty, unnamed temporary file, which is removed when it is closed; raises `StorageUnavailable`."""
    # The file outlives its folder and its name, so a killed process leaves nothing to clean up.
    with translate_os_errors(), scratch_folder(blobs) as folder:
        return TemporaryFile(dir=folder)


class SpooledBlocks(Mapping[Multihash, bytes], AbstractContextManager["SpooledBlocks"]):
    """Blocks by hash, in the order in which they were received.

    Their bytes are in a temporary file until they are read.
    """

    @translating_os_errors
    def __init__(self, file: BinaryIO, blocks: Iterable[ArchivedBlock]) -> None:
        """Write the blocks to `file`, which is closed when this object is; raises `StorageUnavailable`.

        Raises `InvalidInput` if a block occurs twice.
        """
        self._file = file
        self._numbers: dict[bytes, int] = {}
        """The index of each block by its binary hash, which is smaller than a `Multihash`: a push may have 500,000."""
        self._starts = array("Q", [file.tell()])
        """The offset of each block in the file, and the end of the last one. A block is followed by its signature."""
        self._sizes = array("L")
        try:
            for name, pieces, signature in blocks:
                if self._numbers.setdefault(name.raw, len(self._sizes)) != len(self._sizes):
                    raise duplicate_block(name)
                self._sizes.append(sum(map(file.write, pieces)))
                self._starts.append(self._starts[-1] + self._sizes[-1] + file.write(signature))
            file.flush()
        except BaseException:
            file.close()
            raise

    @property
    def largest(self) -> int:
        """Return the size of the largest block in bytes, 0 without blocks."""
        return max(self._sizes, default=0)

    def size(self, name: Multihash) -> int:
        """Return the size of a block in bytes; raises `KeyError`."""
        return self._sizes[self._numbers[name.raw]]

    @translating_os_errors
    def __getitem__(self, name: Multihash) -> bytes:
        """Return the bytes of a block; raises `KeyError`."""
        number = self._numbers[name.raw]
        self._file.seek(self._starts[number])
        return self._file.read(self._sizes[number])

    @translating_os_errors
    def signature(self, name: Multihash) -> bytes | None:
        """Return the signature of a block, None if it has none; raises `KeyError`."""
        number = self._numbers[name.raw]
        start = self._starts[number] + self._sizes[number]
        self._file.seek(start)
        return self._file.read(self._starts[number + 1] - start) or None

    def __iter__(self) -> Iterator[Multihash]:
        """Iterate over the hashes of the blocks, in the order in which they were received."""
        return map(Multihash, self._numbers)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._numbers)

    def __exit__(self, *_: object) -> None:
        """Close the file, which removes it."""
        self._file.close()


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the content of a file from its beginning, in pieces of up to `PIECE_BYTES`."""
    file.seek(0)
    while piece := file.read(PIECE_BYTES):
        yield piece
