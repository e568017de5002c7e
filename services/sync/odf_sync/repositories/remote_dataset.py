"""Protocols of remote datasets: `RemoteDataset` is read (and not trusted), `Target` is written to; and packs of blocks.

A pack is many blocks in one response, newest first, each after its length in 4 bytes, big-endian (ADR 0039). A pack of
signatures has the signature of each block in its place, of length 0 if the block has none (ADR 0064).
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
    """The destination of an object's bytes."""

    def write(self, chunk: bytes, /) -> int:
        """Append bytes."""

    def tell(self) -> int:
        """Return the number of bytes it has."""


class RemoteDataset(Protocol):
    """One remote dataset, to read from. Stores of files inherit what is the same in all of them."""

    url: str

    def head(self) -> Multihash:
        """Return the head; raises `NotFound` if the dataset does not exist."""

    def is_private(self) -> bool:
        """Return whether not everyone may read the dataset, as far as is known once the head was read.

        False for a folder that is not in the home of a node.
        """
        return False

    def block(self, name: Multihash) -> bytes:
        """Return a block's bytes, unchecked; raises `NotFound`."""

    def pack(self, newest: Multihash, after: Multihash | None) -> Iterator[bytes]:
        """Yield blocks from `newest` back, unchecked, newest first: those that one response contains.

        None if its server has no packs, as a store of files; never `after` or older blocks. Raises `Unavailable` and
        `InvalidInput` during iteration.
        """
        del newest, after
        return iter(())

    def stored_blocks(self, newest: Multihash, after: Multihash | None) -> Iterator[bytes]:
        """Yield blocks as `pack` does, from a server that sends other bytes than it has stored if asked for one block.

        None if it has no other way to send them, or if `block` returns what is stored.
        """
        del newest, after
        return iter(())

    def signatures(self, blocks: Sequence[Multihash], after: Multihash | None) -> Iterator[bytes]:
        """Yield the signature of each block, unchecked, and nothing but b"" for a block without one; may end early.

        `blocks` are a part of the chain, newest first, and `after` is the block before them. None are yielded if the
        repository has none. Raises `Unavailable` and `InvalidInput` during iteration.
        """

    def fetch(self, kind: ObjectKind, name: Multihash, out: Sink, limit: int) -> None:
        """Write an object's bytes, unchecked, to `out`, starting at the position of `out`, which resumes a download.

        Raises `NotFound`, `InvalidInput` beyond `limit` bytes in total, and `Unavailable` if it ends early.
        """


class Target(Protocol):
    """One remote dataset in a store of files, such as a folder or a bucket, to push to."""

    url: str
    held_bytes: int
    """The greatest number of bytes of an object that an interrupted push sends again."""

    def head(self) -> Multihash | None:
        """Return the head; None if nothing was pushed yet."""

    def block(self, name: Multihash) -> bytes:
        """Return a block's bytes, unchecked; raises `NotFound`."""

    def has(self, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether an object exists."""

    def blocks(self) -> Iterator[Multihash]:
        """Yield the names of the blocks that exist."""

    def put(self, kind: ObjectKind, name: Multihash, content: BinaryIO) -> None:
        """Store an object, unless it exists; raises `Damaged` if its bytes do not match its name.

        A signature has the name of its block; the caller has checked it.
        """

    def move_head(self, dataset: DatasetId, *, expected: Multihash | None, new: Multihash) -> None:
        """Move `refs/head`; raises `HeadMoved` if it is not `expected`, and then nothing has changed."""


PACK_MEDIA_TYPE: Final = "application/vnd.odf.block-pack"
PACKS_HEADER: Final = "Odf-Block-Packs"  # of the response to `refs/head`: the server sends packs
PACK_VERSION: Final = "1"
SIGNATURES_MEDIA_TYPE: Final = "application/vnd.odf.signature-pack"
LENGTH_BYTES: Final = 4


class BrokenPack(InvalidInput):
    """A pack ends within an entry, or has one that is too long."""

    where: str | None = "pack"


def frame_block(raw: bytes) -> bytes:
    """Return a block as part of a pack."""
    return len(raw).to_bytes(LENGTH_BYTES, "big") + raw


def blocks_in(chunks: Iterable[bytes], *, most: int) -> Iterator[bytes]:
    """Yield the blocks of a pack that arrives in chunks.

    Raises `BrokenPack` for a block of more than `most` bytes, and for a pack that ends within one.
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
