"""Blocks of a repository: fetched once, many in one response where the repository can, and kept in a file.

A chain may be longer than memory, so only the position of each block in that file is held. The file is a pack: what
an attempt that was interrupted has left in it is not fetched again, by its hash.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import BinaryIO, Final, overload

from odf_common.chain.walk import read_link
from odf_common.codec.flatbuffers import DecodedBlock, block_hash
from odf_common.errors import InvalidInput, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_sync.repositories import RemoteDataset
from odf_sync.repositories.pack_format import LENGTH_BYTES, blocks_in, frame_block
from odf_sync.repositories.remote_dataset import BLOCK_LIMIT, CHUNK_BYTES

BYTES_LIMIT: Final = 16 * 1024**3  # of all blocks; a chain with more is refused
COUNT_LIMIT: Final = 10_000_000  # blocks, of which each takes about 300 bytes of memory; the same


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteBlock:
    """A block from the repository; its bytes match its hash."""

    hash: Multihash
    raw: bytes
    decoded: DecodedBlock


class BlockSpool:
    """The blocks that were fetched from a repository so far."""

    def __init__(
        self, there: RemoteDataset, *, after: Multihash | None, file: BinaryIO | None = None
    ) -> None:
        """Keep blocks in `file`, in memory by default; no block from `after` back is likely to be asked for."""
        self._there = there
        self._after = after
        self._file = BytesIO() if file is None else file
        self._size = 0
        self._places: dict[Multihash, tuple[int, int]] = {}  # first byte and length
        self._asked: dict[Multihash, None] = {}  # in that order
        self._find()
        self._pack: Iterator[bytes] = iter(())
        self._may_have_packs = self._may_have_stored = True

    def read(self, name: Multihash) -> bytes:
        """Return a block's bytes, which need not match its name; raises the errors of the repository."""
        if name not in self._places:
            self._keep(name, self._fetch(name))
        self._asked.setdefault(name)
        start, length = self._places[name]
        self._file.seek(start)
        return self._file.read(length)

    def fetched_names(self, count: int) -> tuple[Multihash, ...]:
        """Return the names of the blocks that were asked for first, in that order."""
        return tuple(self._asked)[:count]

    def close(self) -> None:
        """End a response that is not read to its end; the connection of one that is can be used again."""
        with suppress(Unavailable, InvalidInput):
            next(self._pack, None)  # reads the end of a response of which all blocks were taken
        self._pack = iter(())

    def _find(self) -> None:
        """Take in what the file has; one that was interrupted ends within a block."""
        self._file.seek(0)
        chunks = iter(partial(self._file.read, CHUNK_BYTES), b"")
        with suppress(InvalidInput):
            for raw in blocks_in(chunks, most=BLOCK_LIMIT):
                self._note(block_hash(raw), raw)
        self._file.truncate(self._size)

    def _note(self, name: Multihash, raw: bytes) -> None:
        self._places[name] = (self._size + LENGTH_BYTES, len(raw))
        self._size += LENGTH_BYTES + len(raw)

    def _keep(self, name: Multihash, raw: bytes) -> None:
        if self._size - LENGTH_BYTES * len(self._places) + len(raw) > BYTES_LIMIT:
            text = f"the chain has more than {BYTES_LIMIT} bytes of blocks"
            raise InvalidInput(text=text, where=self._there.url)
        if len(self._places) >= COUNT_LIMIT:
            raise InvalidInput(text=f"the chain has more than {COUNT_LIMIT} blocks", where=self._there.url)
        self._file.seek(self._size)
        self._file.write(frame_block(raw))
        self._note(name, raw)

    def _fetch(self, name: Multihash) -> bytes:
        """Return the next block of the pack if that is the one, else of a new pack, else the single block."""
        raw = self._next_of_pack(name)
        if raw is None and self._may_have_packs:
            self._pack = self._there.pack(name, self._after)
            raw = self._next_of_pack(name)
            self._may_have_packs = raw is not None
        return self._single(name) if raw is None else raw

    def _single(self, name: Multihash) -> bytes:
        """Return a block that was asked for alone; if its bytes are others, those that the repository has stored."""
        raw = self._there.block(name)
        if block_hash(raw) != name and self._may_have_stored:
            self._pack = self._there.stored_blocks(name, self._after)
            stored = self._next_of_pack(name)
            self._may_have_stored = stored is not None
            return raw if stored is None else stored
        return raw

    def _next_of_pack(self, name: Multihash) -> bytes | None:
        try:
            raw = next(self._pack, None)
        except (Unavailable, InvalidInput):  # what is missing is asked for again, and fails by its name
            return None
        return raw if raw is not None and block_hash(raw) == name else None


class RemoteBlocks(Sequence[RemoteBlock]):
    """Blocks of a spool by name; each is decoded when it is taken."""

    def __init__(self, spool: BlockSpool, names: Sequence[Multihash]) -> None:
        """Hold the names, oldest first."""
        self._spool = spool
        self.names = tuple(names)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> RemoteBlock: ...

    @overload
    def __getitem__(self, index: slice) -> "RemoteBlocks": ...

    def __getitem__(self, index: int | slice) -> "RemoteBlock | RemoteBlocks":
        """Return a block, or some; raises `ChainBroken` if it cannot be read."""
        if isinstance(index, slice):
            return RemoteBlocks(self._spool, self.names[index])
        name, decoded, raw = read_link(self._spool.read, self.names[index])
        return RemoteBlock(hash=name, raw=raw, decoded=decoded)

    def raw(self) -> Iterator[tuple[Multihash, bytes]]:
        """Yield names and bytes, without decoding."""
        for name in self.names:
            yield name, self._spool.read(name)
