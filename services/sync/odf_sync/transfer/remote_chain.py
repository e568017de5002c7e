"""A repository's chain: the blocks that are missing locally (wire-facts §8.2), and how they are fetched.

Blocks are fetched once, many in one response where the repository can, and kept in a file. A chain may be longer than
memory, so only the position of each block in that file is held. The file is a pack: what an interrupted attempt has
left in it is not fetched again, by its hash.

Signatures are copied with their blocks: each is checked before it is stored or sent (ADR 0064). A valid one proves no
more on the copy than at its source: that a key has signed. A block without one is fine.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import BinaryIO, Final

from odf_common.chain.compare_chains import Ahead, Behind, Comparison, Diverged, Equal, common_block, compare
from odf_common.chain.rules import admit
from odf_common.chain.state import ChainState
from odf_common.chain.walk import ReadBlock, read_link
from odf_common.codec.flatbuffers import DecodedBlock, block_hash
from odf_common.dataset.node_datasets import NodeDatasets, StoredDataset
from odf_common.dataset.signature_check import SignatureStatus, check_signature, stored_signature
from odf_common.errors import Conflict, InvalidInput, Unavailable, VerificationFailed, count_of
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import ObjectKind
from odf_sync.repositories import RemoteDataset
from odf_sync.repositories.remote_dataset import (
    BLOCK_LIMIT,
    CHUNK_BYTES,
    LENGTH_BYTES,
    BrokenPack,
    blocks_in,
    frame_block,
)
from odf_sync.smart.archive import ReadSignature, no_signature

# In a row that bring nothing, or too slowly; each has the retries of its connection.
MAX_FRUITLESS_ATTEMPTS: Final = 2


class SignatureRefused(VerificationFailed):
    """The signature of a block is not valid for it."""

    MESSAGE = "block {block} has an invalid signature in {repository}: {why}"
    ADVICE = "have the file signatures/<block> there removed, or pull from another repository"

    block: str
    repository: str
    why: str


def require_valid(block: Multihash, signature: bytes, repository: str) -> None:
    """Raise `SignatureRefused` unless a signature from a repository is valid for a block."""
    checked = check_signature(block, signature)
    if checked.status is not SignatureStatus.VALID:
        claimed = f", claimed by {checked.signer}" if checked.signer else ""
        raise SignatureRefused(block=str(block), repository=repository, why=f"{checked.fault}{claimed}")


def own_signatures(datasets: NodeDatasets, dataset: DatasetId, alias: str) -> ReadSignature:
    """Return a function that reads signatures of this node's blocks; it raises `SignatureRefused` for a damaged one."""
    if next(datasets.blobs.names(dataset, ObjectKind.SIGNATURE), None) is None:
        return no_signature  # not looked for block by block, which in a bucket takes a request each
    stored = StoredDataset(dataset, datasets.blobs, datasets.refs)

    def read(block: Multihash) -> bytes | None:
        signature = stored_signature(stored, block)
        if signature is not None:
            require_valid(block, signature, alias)
        return signature

    return read


def fetched_signatures(
    there: RemoteDataset, blocks: Sequence[Multihash], after: Multihash | None
) -> Iterator[tuple[Multihash, bytes]]:
    """Yield the valid signatures that a repository has of blocks, which are a part of its chain, newest first.

    `after` is the block before them. A lost connection is followed by another one, as long as signatures arrive. Raises
    `SignatureRefused`, `Unavailable`, and `InvalidInput` for a redirect that is not followed.
    """
    done, fruitless = 0, 0
    while done < len(blocks):
        before = done
        try:
            for block, signature in zip(blocks[done:], there.signatures(blocks[done:], after), strict=False):
                if signature:
                    require_valid(block, signature, there.url)
                    yield block, signature
                done += 1
        except BrokenPack as error:
            raise SignatureRefused(block=str(blocks[done]), repository=there.url, why=str(error)) from error
        except Unavailable:
            fruitless = 0 if done > before else fruitless + 1
            if fruitless == MAX_FRUITLESS_ATTEMPTS:
                raise
        else:
            if done == before:  # it has no more
                return


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


class RemoteBlocks:
    """Blocks of a spool by name, oldest first; each is decoded when it is taken."""

    def __init__(self, spool: BlockSpool, names: Sequence[Multihash]) -> None:
        self._spool = spool
        self.names = tuple(names)

    def __iter__(self) -> Iterator[RemoteBlock]:
        """Iterate over the blocks; raises `ChainBroken` if one cannot be read."""
        for name in self.names:
            _, decoded, raw = read_link(self._spool.read, name)
            yield RemoteBlock(hash=name, raw=raw, decoded=decoded)

    def raw(self) -> Iterator[tuple[Multihash, bytes]]:
        """Yield names and bytes, without decoding."""
        for name in self.names:
            yield name, self._spool.read(name)


class ChainsDiverged(Conflict):
    """Both chains have blocks of their own after a common one; neither can follow the other."""

    ADVICE = (
        "look at the other chain with `odf pull URL --as NAME@REF`; `odf pull URL --force` replaces the "
        "local one with it"
    )

    repository: str
    common_block: str | None
    blocks_here: int
    blocks_there: int

    def __str__(self) -> str:
        """Return the number of blocks that only one of the chains has, for each, and the last common block."""
        here, there = count_of(self.blocks_here, "block"), count_of(self.blocks_there, "block")
        if self.common_block is None:
            none = "has no block in common with the local one"
            return f"the chain at {self.repository} {none}: {there} there, {here} here"
        return (
            f"the chain at {self.repository} and the local one have diverged: {there} there and {here} here follow "
            f"the last common block {self.common_block}"
        )


class LocalAhead(Conflict):
    """The local chain is the repository's with more blocks: they were added here, or rolled back there."""

    ADVICE = (
        "push it, if they were added here; or drop those blocks, as was done there, with `odf pull URL "
        "--force`"
    )

    repository: str
    blocks: int

    def __str__(self) -> str:
        """Return the number of blocks that it is ahead."""
        return f"the local chain is ahead: it has {count_of(self.blocks, 'block')} more than that at {self.repository}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingBlocks:
    """The locally missing blocks: those after `common`, the last block that both have, oldest first."""

    common: Multihash | None
    blocks: RemoteBlocks
    ahead: int = 0
    """The number of further blocks of the local chain, if it continues that of the repository."""


def missing_blocks(
    there: RemoteDataset,
    head: Multihash,
    read_here: ReadBlock,
    here: Multihash | None,
    *,
    may_diverge: bool = False,
    spool: BinaryIO | None = None,
) -> MissingBlocks:
    """Return the blocks that the local chain lacks. They are kept in `spool`, if it is given.

    Raises `ChainsDiverged` unless `may_diverge`, `ChainBroken` for a block that is missing or does not match its hash,
    and `InvalidInput` for a chain that is too large.
    """
    fetched, relation = _compare(there, head, read_here, here, spool)
    if isinstance(relation, Diverged) and not may_diverge:
        common = None if relation.ancestor is None else str(relation.ancestor)
        raise ChainsDiverged(
            repository=there.url, common_block=common, blocks_here=relation.ours, blocks_there=relation.theirs
        )
    names = fetched.fetched_names(_only_there(relation))
    return MissingBlocks(
        common=common_block(relation, here, head),
        blocks=RemoteBlocks(fetched, names[::-1]),
        ahead=relation.blocks if isinstance(relation, Ahead) else 0,
    )


def compare_with(
    there: RemoteDataset, read_here: ReadBlock, here: Multihash, spool: BinaryIO | None = None
) -> tuple[Comparison, Multihash | None]:
    """Return the relation of a local chain to a repository's, and the last common block."""
    head = there.head()
    _, relation = _compare(there, head, read_here, here, spool)
    return relation, common_block(relation, here, head)


def _compare(
    there: RemoteDataset, head: Multihash, read_here: ReadBlock, here: Multihash | None, file: BinaryIO | None
) -> tuple[BlockSpool, Comparison]:
    fetched = BlockSpool(there, after=here, file=file)
    try:
        return fetched, compare(read_here, here, fetched.read, head)
    finally:
        fetched.close()


def _only_there(relation: Comparison) -> int:
    """Return the number of blocks that only the other chain has: the comparison reads them first, newest to oldest."""
    match relation:
        case Behind(blocks=count) | Diverged(theirs=count):
            return count
        case Ahead() | Equal():
            return 0


def admit_all(here: ChainState | None, blocks: Iterable[RemoteBlock]) -> ChainState:
    """Fold the blocks onto the local state; raises `ChainRuleViolated` for the first that breaks a rule."""
    state = here
    for block in blocks:
        state = admit(state, block.decoded.block, block_hash=block.hash, version=block.decoded.version)
    assert state is not None, "at least one block is given"
    return state
