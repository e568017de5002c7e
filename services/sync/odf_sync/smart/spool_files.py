"""Archives and blocks of an exchange in a file: an exchange may last for hours, and there may be many."""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from tempfile import TemporaryFile
from typing import BinaryIO

from odf_common.adapters.local.faults import translate_os_errors, translating_os_errors
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import BlobStore, scratch_folder
from odf_sync.smart.archive import PIECE_BYTES, ArchivedBlock, occurs_twice


def spool_file(blobs: BlobStore) -> BinaryIO:
    """Open an empty file without a name, which is removed when it is closed; raises `StorageUnavailable`."""
    # The file outlives its folder and its name, so a killed process leaves nothing to clean up.
    with translate_os_errors(), scratch_folder(blobs) as folder:
        return TemporaryFile(dir=folder)


class SpooledBlocks(Mapping[Multihash, bytes], AbstractContextManager["SpooledBlocks"]):
    """Blocks by hash, in the order in which they came; their bytes are in a file until they are asked for."""

    @translating_os_errors
    def __init__(self, file: BinaryIO, blocks: Iterable[ArchivedBlock]) -> None:
        """Write blocks to a file, which is closed with this; raises `StorageUnavailable`.

        Raises `InvalidInput` for a block that comes twice.
        """
        self._file = file
        self._numbers: dict[bytes, int] = {}
        """Index of each block by its hash in binary form: a push may have 500,000."""
        self._starts = array("Q", [file.tell()])
        """Offsets at which the blocks begin, and the end of the last one; a block's signature follows it."""
        self._sizes = array("L")
        try:
            for name, pieces, signature in blocks:
                if self._numbers.setdefault(name.raw, len(self._sizes)) != len(self._sizes):
                    raise occurs_twice(name)
                self._sizes.append(sum(map(file.write, pieces)))
                self._starts.append(self._starts[-1] + self._sizes[-1] + file.write(signature))
            file.flush()
        except BaseException:
            file.close()
            raise

    @property
    def largest(self) -> int:
        """Return the bytes of the largest block."""
        return max(self._sizes, default=0)

    def size(self, name: Multihash) -> int:
        """Return the bytes of a block; raises `KeyError`."""
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
        """Iterate over the hashes."""
        return map(Multihash, self._numbers)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._numbers)

    def __exit__(self, *_: object) -> None:
        """Remove the bytes."""
        self._file.close()


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file from its beginning, in pieces."""
    file.seek(0)
    while piece := file.read(PIECE_BYTES):
        yield piece
