"""Which blocks of a repository's chain are missing here (wire-facts §8.2, pull algorithm)."""

from dataclasses import dataclass
from typing import Final

from odf_common.chain.chain import Behind, Diverged, ReadBlock, blocks_between, compare
from odf_common.chain.rules import admit
from odf_common.chain.state import ChainState
from odf_common.codec.flatbuffers import DecodedBlock
from odf_common.errors import Conflict, InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_sync.repositories import Repository

BYTES_LIMIT: Final = 4 * 1024**3  # of all blocks; a chain that has more is not taken


@dataclass(eq=False, kw_only=True)
class ChainsDiverged(Conflict):
    """Both chains went on in their own way after a common block; neither can follow the other."""

    repository: str
    common_block: str | None
    blocks_here: int
    blocks_there: int

    def advice(self) -> str:
        """Return what can be done."""
        return "pull it under another name, or reset the local dataset to the common block first"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteBlock:
    """A block as the repository sent it; its bytes are what its name says."""

    hash: Multihash
    raw: bytes
    decoded: DecodedBlock


def missing_blocks(
    there: Repository, head: Multihash, read_here: ReadBlock, here: Multihash | None
) -> list[RemoteBlock]:
    """Return the blocks after `here`, oldest first; none when `here` has them all.

    Raises `ChainsDiverged`, `ChainBroken` for a block that is missing or not what its name says, and `InvalidInput`
    for a chain too large to take.
    """
    fetched: dict[Multihash, bytes] = {}
    size = 0

    def read_there(name: Multihash) -> bytes:
        nonlocal size
        if name not in fetched:
            fetched[name] = there.block(name)
            size += len(fetched[name])
        if size > BYTES_LIMIT:
            raise InvalidInput(text=f"the chain has more than {BYTES_LIMIT} bytes of blocks", where=there.url)
        return fetched[name]

    relation = compare(read_here, here, read_there, head)
    if isinstance(relation, Diverged):
        common = None if relation.ancestor is None else str(relation.ancestor)
        raise ChainsDiverged(
            repository=there.url, common_block=common, blocks_here=relation.ours, blocks_there=relation.theirs
        )
    if not isinstance(relation, Behind):
        return []
    return [
        RemoteBlock(hash=name, raw=raw, decoded=decoded)
        for name, decoded, raw in blocks_between(read_there, head, here)
    ]


def admit_all(here: ChainState | None, blocks: list[RemoteBlock]) -> ChainState:
    """Fold the blocks onto the local state; raises `ChainRuleViolated` for the first that does not fit."""
    state = here
    for block in blocks:
        state = admit(state, block.decoded.block, block_hash=block.hash, version=block.decoded.version)
    assert state is not None, "there is a block"
    return state
