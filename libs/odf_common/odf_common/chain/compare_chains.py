"""Comparing two chains: equal, one ahead of the other, or diverged after a common ancestor."""

from dataclasses import dataclass

from odf_common.chain.walk import BlockHeader, ReadBlock, read_header
from odf_common.hashing.multihash import Multihash


@dataclass(frozen=True, slots=True, kw_only=True)
class Equal:
    """Both have the same head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Ours continues where theirs ends, with `blocks` more."""

    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """Theirs continues where ours ends, with `blocks` more."""

    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged:
    """Both continue after `ancestor`, with `ours` and `theirs` blocks of their own; None if they share no block."""

    ancestor: Multihash | None
    ours: int
    theirs: int


Comparison = Equal | Ahead | Behind | Diverged


def common_block(relation: Comparison, ours: Multihash | None, theirs: Multihash | None) -> Multihash | None:
    """Return the last block that both compared chains have, None if they share none."""
    match relation:
        case Diverged(ancestor=ancestor):
            return ancestor
        case Behind():
            return ours
        case Ahead() | Equal():
            return theirs


def compare(
    read_ours: ReadBlock, ours: Multihash | None, read_theirs: ReadBlock, theirs: Multihash | None
) -> Comparison:
    """Compare the chains with these heads; None is the empty chain. Raises `ChainBroken` for either.

    The longer one is walked back first, and only the blocks needed for the answer are read: from a remote that is
    ahead, only its new blocks.
    """
    if ours == theirs:
        return Equal()
    left, right = _Walk(read_ours, ours), _Walk(read_theirs, theirs)
    while left.name != right.name:
        # Only blocks with equal numbers can be equal. On a tie ours steps first, which costs nothing remote.
        max(left, right, key=_Walk.sequence_number).step_back()
    if left.steps == 0:
        return Behind(blocks=right.steps)
    if right.steps == 0:
        return Ahead(blocks=left.steps)
    return Diverged(ancestor=left.name, ours=left.steps, theirs=right.steps)


@dataclass(slots=True)
class _Walk:
    """A position in a chain that is walked backwards; a block is read only when it is needed."""

    read: ReadBlock
    name: Multihash | None
    number: int | None = None
    steps: int = 0
    block: BlockHeader | None = None

    def sequence_number(self) -> int:
        """Return the sequence number of the position, -1 before the first block."""
        if self.name is None:
            return -1
        return self._load().sequence_number if self.number is None else self.number

    def step_back(self) -> None:
        """Move to the previous block."""
        block = self._load()
        self.name, self.number, self.block = block.prev_block_hash, block.sequence_number - 1, None
        self.steps += 1

    def _load(self) -> BlockHeader:
        assert self.name is not None
        if self.block is None:
            self.block = read_header(self.read, self.name, self.number)[1]
        return self.block
