"""Archives and blocks of an exchange in a file: an exchange may last for hours, and there may be many."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from tempfile import TemporaryFile
from typing import BinaryIO, Final

from odf_common.adapters.local.faults import guarded, translated
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import BlobStore, scratch_folder

PIECE_BYTES: Final = 256 * 1024


def spool_file(blobs: BlobStore) -> BinaryIO:
    """Open an empty file without a name, which is removed when it is closed; raises `StorageUnavailable`."""
    # The file outlives its folder and its name, so a killed process leaves nothing to clean up.
    with translated(), scratch_folder(blobs) as folder:
        return TemporaryFile(dir=folder)


class SpooledBlocks(Mapping[Multihash, bytes], AbstractContextManager["SpooledBlocks"]):
    """Blocks by hash, in the order in which they came; their bytes are in a file until they are asked for."""

    @guarded
    def __init__(self, file: BinaryIO, blocks: Iterable[tuple[Multihash, bytes, bytes]]) -> None:
        """Write blocks, with their signatures, to a file, which is closed with this; raises `StorageUnavailable`."""
        self._file = file
        self._places: dict[Multihash, tuple[int, int, int]] = {}
        """Where a block begins, its size, and that of the signature, which follows it."""
        try:
            for name, raw, signature in blocks:
                self._places[name] = file.tell(), len(raw), len(signature)
                file.write(raw + signature)
            file.flush()
        except BaseException:
            file.close()
            raise

    @guarded
    def __getitem__(self, name: Multihash) -> bytes:
        """Return the bytes of a block; raises `KeyError`."""
        start, size, _ = self._places[name]
        self._file.seek(start)
        return self._file.read(size)

    @guarded
    def signature(self, name: Multihash) -> bytes | None:
        """Return the signature of a block, None if it has none; raises `KeyError`."""
        start, size, signed = self._places[name]
        self._file.seek(start + size)
        return self._file.read(signed) or None

    def __iter__(self) -> Iterator[Multihash]:
        """Iterate over the hashes."""
        return iter(self._places)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._places)

    def __exit__(self, *_: object) -> None:
        """Remove the bytes."""
        self._file.close()


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield a file from its beginning, in pieces."""
    file.seek(0)
    while piece := file.read(PIECE_BYTES):
        yield piece
