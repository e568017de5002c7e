"""Blocks of a repository's chain that are missing locally (wire-facts §8.2, pull algorithm)."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

from odf_common.chain.compare_chains import Ahead, Behind, Comparison, Diverged, Equal, common_block, compare
from odf_common.chain.rules import admit
from odf_common.chain.state import ChainState
from odf_common.chain.walk import ReadBlock
from odf_common.errors import Conflict, count_of
from odf_common.hashing.multihash import Multihash
from odf_sync.repositories import RemoteDataset
from odf_sync.transfer.remote_blocks import BlockSpool, RemoteBlock, RemoteBlocks


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
    fetched = BlockSpool(there, after=here, file=spool)
    try:
        relation = compare(read_here, here, fetched.read, head)
    finally:
        fetched.close()
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
    fetched = BlockSpool(there, after=here, file=spool)
    try:
        relation = compare(read_here, here, fetched.read, head)
    finally:
        fetched.close()
    return relation, common_block(relation, here, head)


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
