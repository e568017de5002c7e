"""Interfaces of remote datasets (`RemoteDataset` to read from, `Target` to push to), and the format of packs.

A pack is many blocks in one response, newest first. Each is preceded by its length in 4 bytes, big-endian (ADR 0039). A
pack of signatures has the signature of each block instead, with length 0 if the block has none (ADR 0064).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, Final, Protocol

from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import ObjectKind

BLOCK_LIMIT: Final = 64 * 1024 * 1024  # bytes; blocks may hold attachments
CHUNK_BYTES: Final = 1024 * 1024


class Sink(Protocol):
    """The destination for the bytes of an object."""

    def write(self, chunk: bytes, /) -> int:
        """Append bytes."""

    def tell(self) -> int:
        """Return the number of bytes written so far, including those of earlier attempts."""


class RemoteDataset(Protocol):
    """A remote dataset to read from, which is not trusted. Folders and buckets use the default methods."""

    url: str

    def head(self) -> Multihash:
        """Return the head; raises `NotFound` if the dataset does not exist."""

    def is_private(self) -> bool:
        """Return whether access to the dataset is restricted or may be; known after the head was read.

        False for a folder that is not in the home of a node.
        """
        return False

    def block(self, name: Multihash) -> bytes:
        """Return the bytes of a block, which are not checked against its hash; raises `NotFound`."""

    def pack(self, newest: Multihash, after: Multihash | None) -> Iterator[bytes]:
        """Yield the blocks of one response, from `newest` back, newest first, not checked against their hashes.

        The response never contains `after` or older blocks. Yields nothing if the repository has no packs. Raises
        `Unavailable` and `InvalidInput` during iteration.
        """
        del newest, after
        return iter(())

    def stored_blocks(self, newest: Multihash, after: Multihash | None) -> Iterator[bytes]:
        """Yield blocks as `pack` does, with the bytes that are stored, from a server whose `block` re-encodes them.

        Yields nothing if the server has no such method, or if `block` returns the stored bytes.
        """
        del newest, after
        return iter(())

    def signatures(self, blocks: Sequence[Multihash], after: Multihash | None) -> Iterator[bytes]:
        """Yield the signature of each block, unchecked, or `b""` for a block without one; may end early.

        `blocks` are a section of the chain, newest first, and `after` is the block before it. Yields nothing if the
        repository has no signatures. Raises `Unavailable` and `InvalidInput` during iteration.
        """

    def fetch(self, kind: ObjectKind, name: Multihash, out: Sink, limit: int) -> None:
        """Append the bytes of an object to `out`, unchecked. Starts at the position of `out`, to resume a download.

        Raises `NotFound`, `InvalidInput` beyond `limit` bytes in total, and `Unavailable` if the response ends early.
        """


class Target(Protocol):
    """A remote dataset in a folder or a bucket, to push to."""

    url: str
    held_bytes: int
    """The maximum number of bytes of one object that are sent again after an interrupted push."""

    def head(self) -> Multihash | None:
        """Return the head, None if nothing has been pushed yet."""

    def block(self, name: Multihash) -> bytes:
        """Return the bytes of a block, which are not checked against its hash; raises `NotFound`."""

    def has(self, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether an object exists."""

    def blocks(self) -> Iterator[Multihash]:
        """Yield the hashes of the stored blocks; may yield nothing if `put` checks for existing objects cheaply."""

    def put(self, kind: ObjectKind, name: Multihash, content: BinaryIO) -> None:
        """Store an object unless it exists; raises `Damaged` if its bytes do not match its name.

        A signature has its block's hash as its name, so it cannot be checked here; the caller has done so.
        """

    def move_head(self, dataset: DatasetId, *, expected: Multihash | None, new: Multihash) -> None:
        """Move `refs/head`; raises `HeadMoved`, without changes, if the head is not `expected`."""


PACK_MEDIA_TYPE: Final = "application/vnd.odf.block-pack"
PACKS_HEADER: Final = "Odf-Block-Packs"  # of the response to `refs/head`: the server sends packs
PACK_VERSION: Final = "1"
SIGNATURES_MEDIA_TYPE: Final = "application/vnd.odf.signature-pack"
LENGTH_BYTES: Final = 4


class BrokenPack(InvalidInput):
    """A pack has an entry that is cut off or too long."""

    where: str | None = "pack"


def frame_block(raw: bytes) -> bytes:
    """Return a block as an entry of a pack: its length, then its bytes."""
    return len(raw).to_bytes(LENGTH_BYTES, "big") + raw


def blocks_in(chunks: Iterable[bytes], *, most: int) -> Iterator[bytes]:
    """Yield the blocks of a pack that arrives in chunks.

    Raises `BrokenPack` for a block of more than `most` bytes, and for a block that is cut off.
    """
    rest = bytearray()
    for chunk in chunks:
        rest += chunk
        position = 0
        while len(rest) - position >= LENGTH_BYTES:
            start = position + LENGTH_BYTES
            end = start + int.from_bytes(rest[position:start], "big")
            if end - start > most:
                raise BrokenPack(text=f"an entry of {end - start} bytes; at most {most} are taken")
            if end > len(rest):
                break
            yield bytes(rest[start:end])
            position = end
        del rest[:position]
    if rest:
        raise BrokenPack(text="ends within an entry")
