"""A repository's chain: finds the blocks that are missing locally (wire-facts §8.2), and fetches them.

Each block is fetched once, many in one response if the repository supports it, and kept in a file. Only the position of
each block in the file is in memory, as a chain may be larger than memory. The blocks that an interrupted attempt has
left in the file are identified by their hashes, and are not fetched again.

Signatures are copied with their blocks, and each is checked before it is stored or sent (ADR 0064). A valid signature
proves the same for a copy as for its source: that the owner of a key has signed the block. Blocks may be unsigned.
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
    """A block's signature is invalid."""

    MESSAGE = "block {block} has an invalid signature in {repository}: {why}"
    ADVICE = "have the file signatures/<block> there removed, or pull from another repository"

    block: str
    repository: str
    why: str


def require_valid(block: Multihash, signature: bytes, repository: str) -> None:
    """Raise `SignatureRefused` unless the signature from `repository` is valid for the block."""
    checked = check_signature(block, signature)
    if checked.status is not SignatureStatus.VALID:
        claimed = f", claimed by {checked.signer}" if checked.signer else ""
        raise SignatureRefused(block=str(block), repository=repository, why=f"{checked.fault}{claimed}")


def own_signatures(datasets: NodeDatasets, dataset: DatasetId, alias: str) -> ReadSignature:
    """Return a function that reads the signatures of local blocks; it raises `SignatureRefused` for an invalid one."""
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
    """Yield the valid signatures that a repository has for `blocks`, a section of its chain, newest first.

    `after` is the block before that section. Reconnects after a lost connection as long as signatures arrive. Raises
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
    """A block from the repository whose bytes match its hash."""

    hash: Multihash
    raw: bytes
    decoded: DecodedBlock


class BlockSpool:
    """The blocks that have been fetched from a repository so far."""

    def __init__(
        self, there: RemoteDataset, *, after: Multihash | None, file: BinaryIO | None = None
    ) -> None:
        """Keep fetched blocks in `file`, by default in memory.

        `after` is a block that the caller has, up to which packs are requested.
        """
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
        """Return the bytes of a block, which are not checked against its hash. Raises the repository's errors.

        The block is fetched unless the spool has it.
        """
        if name not in self._places:
            self._keep(name, self._fetch(name))
        self._asked.setdefault(name)
        start, length = self._places[name]
        self._file.seek(start)
        return self._file.read(length)

    def fetched_names(self, count: int) -> tuple[Multihash, ...]:
        """Return the hashes of the first `count` blocks that were read, in the order of reading."""
        return tuple(self._asked)[:count]

    def close(self) -> None:
        """Close the current response; if all its blocks were read, its connection can be reused."""
        with suppress(Unavailable, InvalidInput):
            next(self._pack, None)  # reads the end of a response of which all blocks were taken
        self._pack = iter(())

    def _find(self) -> None:
        """Index the blocks that the file has already; a last block that was cut off is removed."""
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
        """Return a block: the next one of the current pack, or the first of a new pack, or a single block."""
        raw = self._next_of_pack(name)
        if raw is None and self._may_have_packs:
            self._pack = self._there.pack(name, self._after)
            raw = self._next_of_pack(name)
            self._may_have_packs = raw is not None
        return self._single(name) if raw is None else raw

    def _single(self, name: Multihash) -> bytes:
        """Return a block fetched alone; if its bytes do not match its hash, the bytes that the repository stored."""
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
    """Selected blocks of a spool, oldest first; each is decoded during iteration."""

    def __init__(self, spool: BlockSpool, names: Sequence[Multihash]) -> None:
        self._spool = spool
        self.names = tuple(names)

    def __iter__(self) -> Iterator[RemoteBlock]:
        """Iterate over the decoded blocks; raises `ChainBroken` if one cannot be read."""
        for name in self.names:
            _, decoded, raw = read_link(self._spool.read, name)
            yield RemoteBlock(hash=name, raw=raw, decoded=decoded)

    def raw(self) -> Iterator[tuple[Multihash, bytes]]:
        """Yield the hash and the bytes of each block, without decoding it."""
        for name in self.names:
            yield name, self._spool.read(name)


class ChainsDiverged(Conflict):
    """The local and the remote chain have different blocks after their last common block."""

    ADVICE = (
        "look at the other chain with `odf pull URL --as NAME@REF`; `odf pull URL --force` replaces the "
        "local one with it"
    )

    repository: str
    common_block: str | None
    blocks_here: int
    blocks_there: int

    def __str__(self) -> str:
        """Return a sentence with the last common block, and the number of blocks of each chain after it."""
        here, there = count_of(self.blocks_here, "block"), count_of(self.blocks_there, "block")
        if self.common_block is None:
            none = "has no block in common with the local one"
            return f"the chain at {self.repository} {none}: {there} there, {here} here"
        return (
            f"the chain at {self.repository} and the local one have diverged: {there} there and {here} here follow "
            f"the last common block {self.common_block}"
        )


class LocalAhead(Conflict):
    """The local chain continues the repository's: its additional blocks were added here, or were rolled back there."""

    ADVICE = (
        "push it, if they were added here; or drop those blocks, as was done there, with `odf pull URL "
        "--force`"
    )

    repository: str
    blocks: int

    def __str__(self) -> str:
        """Return a sentence with the number of additional blocks."""
        return f"the local chain is ahead: it has {count_of(self.blocks, 'block')} more than that at {self.repository}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingBlocks:
    """The blocks that this node does not have: those after `common`, the last common block, oldest first."""

    common: Multihash | None
    blocks: RemoteBlocks
    ahead: int = 0
    """The number of local blocks after the repository's head, if the local chain continues that of the repository."""


def missing_blocks(
    there: RemoteDataset,
    head: Multihash,
    read_here: ReadBlock,
    here: Multihash | None,
    *,
    may_diverge: bool = False,
    spool: BinaryIO | None = None,
) -> MissingBlocks:
    """Return the blocks of the repository's chain that the local chain lacks; they are stored in `spool` if given.

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
    """Return the relation of the local chain to the repository's, and the last common block."""
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
    """Return the number of blocks that only the other chain has. The comparison reads these first, newest to oldest."""
    match relation:
        case Behind(blocks=count) | Diverged(theirs=count):
            return count
        case Ahead() | Equal():
            return 0


def admit_all(here: ChainState | None, blocks: Iterable[RemoteBlock]) -> ChainState:
    """Return the chain state after the blocks; raises `ChainRuleViolated` for the first block that breaks a rule."""
    state = here
    for block in blocks:
        state = admit(state, block.decoded.block, block_hash=block.hash, version=block.decoded.version)
    assert state is not None, "at least one block is given"
    return state
