"""Which blocks of a repository's chain are missing locally (wire-facts §8.2, pull algorithm)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from odf_common.chain.compare import Comparison, Diverged, common_block, compare
from odf_common.chain.rules import admit
from odf_common.chain.state import ChainState
from odf_common.chain.walk import ReadBlock, blocks_between
from odf_common.codec.flatbuffers import DecodedBlock
from odf_common.errors import Conflict, InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_sync.repositories import Repository

BYTES_LIMIT: Final = 4 * 1024**3  # of all blocks; a chain with more is refused


@dataclass(eq=False, kw_only=True)
class ChainsDiverged(Conflict):
    """Both chains have blocks of their own after a common one; neither can follow the other."""

    repository: str
    common_block: str | None
    blocks_here: int
    blocks_there: int

    def advice(self) -> str:
        """Return what to do."""
        return (
            "stage it at a reference with --as NAME@REF, or reset the local dataset to the common block first"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteBlock:
    """A block from the repository; its bytes match its hash."""

    hash: Multihash
    raw: bytes
    decoded: DecodedBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class Missing:
    """What is missing locally: the blocks after `common`, the last block that both have, oldest first."""

    common: Multihash | None
    blocks: tuple[RemoteBlock, ...]


def missing_blocks(
    there: Repository,
    head: Multihash,
    read_here: ReadBlock,
    here: Multihash | None,
    *,
    may_diverge: bool = False,
) -> Missing:
    """Return what the local chain lacks; no blocks if it has all of them.

    Raises `ChainsDiverged` unless `may_diverge`, `ChainBroken` for a block that is missing or does not match its hash,
    and `InvalidInput` for a chain that is too large.
    """
    read_there = _fetching(there)
    relation = compare(read_here, here, read_there, head)
    if isinstance(relation, Diverged) and not may_diverge:
        common = None if relation.ancestor is None else str(relation.ancestor)
        raise ChainsDiverged(
            repository=there.url, common_block=common, blocks_here=relation.ours, blocks_there=relation.theirs
        )
    last = common_block(relation, here, head)
    blocks = blocks_between(read_there, head, last)
    return Missing(
        common=last,
        blocks=tuple(RemoteBlock(hash=name, raw=raw, decoded=decoded) for name, decoded, raw in blocks),
    )


def compare_with(
    there: Repository, read_here: ReadBlock, here: Multihash
) -> tuple[Comparison, Multihash | None]:
    """Return how a local chain relates to that of a repository, and the last block that both have."""
    head = there.head()
    relation = compare(read_here, here, _fetching(there), head)
    return relation, common_block(relation, here, head)


def _fetching(there: Repository) -> ReadBlock:
    """Return a function that reads blocks of a repository, each once, up to a limit for all of them."""
    fetched: dict[Multihash, bytes] = {}
    size = 0

    def read(name: Multihash) -> bytes:
        nonlocal size
        if name not in fetched:
            fetched[name] = there.block(name)
            size += len(fetched[name])
        if size > BYTES_LIMIT:
            raise InvalidInput(text=f"the chain has more than {BYTES_LIMIT} bytes of blocks", where=there.url)
        return fetched[name]

    return read


def admit_all(here: ChainState | None, blocks: Sequence[RemoteBlock]) -> ChainState:
    """Fold the blocks onto the local state; raises `ChainRuleViolated` for the first that breaks a rule."""
    state = here
    for block in blocks:
        state = admit(state, block.decoded.block, block_hash=block.hash, version=block.decoded.version)
    assert state is not None, "at least one block is given"
    return state
