"""Comparison of two chains, and of a derivative dataset with inputs that were reset.

Two chains are equal, one is ahead of the other, or they have diverged after a common ancestor. If an input was reset, a
derivative dataset is consistent with the input only up to some block.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from odf_common.chain.state import progress_after
from odf_common.chain.walk import BlockHeader, ChainBroken, ReadBlock, iterate, read_header, read_link
from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import (
    ExecuteTransform,
    KnownEvent,
    MetadataBlock,
    Seed,
    SetDataSchema,
    UnknownEvent,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Equal:
    """Both chains have the same head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Our chain contains their head, and has `blocks` more blocks after it."""

    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """Their chain contains our head, and has `blocks` more blocks after it."""

    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged:
    """Both chains have blocks of their own after `ancestor`, which is None if they share no block.

    `ours` and `theirs` are the numbers of these blocks.
    """

    ancestor: Multihash | None
    ours: int
    theirs: int


Comparison = Equal | Ahead | Behind | Diverged


def common_block(relation: Comparison, ours: Multihash | None, theirs: Multihash | None) -> Multihash | None:
    """Return the last block that both compared chains contain; None if they share no block."""
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
    """Compare two chains by their heads; None is the empty chain. Raises `ChainBroken` for either chain.

    Only the blocks that the answer depends on are read, the longer chain first. Of a remote chain that is ahead, these
    are only its new blocks.
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
    """A position in a chain that is walked backwards; the header of its block is read only when needed."""

    read: ReadBlock
    name: Multihash | None
    number: int | None = None
    steps: int = 0
    block: BlockHeader | None = None

    def sequence_number(self) -> int:
        """Return the sequence number of the position; -1 before the first block."""
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


Holds = Callable[[DatasetId, Multihash], bool]  # whether the chain of an input has the block


class BlockIndex:
    """A test for membership of blocks in one chain, which is read backwards only as far as necessary."""

    def __init__(self, read: ReadBlock, head: Multihash) -> None:
        """Create an index of the chain with this head, without reading any block yet."""
        self._read = read
        self._next: Multihash | None = head
        self._names: dict[int, Multihash] = {}
        self._lowest: int | None = None

    def contains(self, block: Multihash) -> bool:
        """Return whether a block is in the chain; False if the block is not stored. Raises `ChainBroken`."""
        try:
            number = read_link(self._read, block)[1].block.sequence_number
        except (NotFound, ChainBroken):
            return False
        while self._lowest is None or self._lowest > number:
            name, expected = self._next, None if self._lowest is None else self._lowest - 1
            assert name is not None, "a chain ends at number 0, and no block has a smaller one"
            below = read_link(self._read, name, expected)[1].block
            self._lowest, self._next = below.sequence_number, below.prev_block_hash
            self._names[self._lowest] = name
        return self._names.get(number) == block


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistentBlock:
    """The last block that is consistent with the inputs, and the definitions in later blocks, oldest first."""

    block: Multihash
    definitions_since: tuple[KnownEvent, ...]


def find_consistent_block(read: ReadBlock, head: Multihash, holds: Holds) -> ConsistentBlock | None:
    """Return the last block for which the inputs still have all blocks that the transforms up to it have read.

    The result is None if that is the head. Commits are rolled back as a whole: a schema is committed with its records,
    and a query with its migration. Raises `ChainBroken` if the chain cannot be read.
    """
    blocks: list[MetadataBlock] = []  # newest first
    undone = 0  # how many of them have to be rolled back
    for _, decoded, _ in iterate(read, head):
        block = decoded.block
        is_adjacent = bool(blocks) and undone == len(blocks)
        blocks.append(block)
        if isinstance(block.event, ExecuteTransform):
            if not _is_lost(block.event, holds):
                break
            undone = len(blocks)
        elif is_adjacent and block.sequence_number and block.system_time == blocks[-2].system_time:
            undone = len(blocks)  # the blocks of one commit have one system time
    if not undone:
        return None
    before = blocks[undone - 1].prev_block_hash
    assert before is not None, "a seed is never rolled back, and no transform is a first block"
    return ConsistentBlock(block=before, definitions_since=tuple(_definitions(blocks[:undone])))


def _is_lost(event: ExecuteTransform, holds: Holds) -> bool:
    inputs = (progress_after(step) for step in event.query_inputs)
    return any(
        input_.last_block is not None and not holds(input_.dataset_id, input_.last_block) for input_ in inputs
    )


def _definitions(blocks: list[MetadataBlock]) -> Iterator[KnownEvent]:
    """Yield the definitions in blocks, oldest first, without schemas, which are set again with recomputed records."""
    for block in reversed(blocks):
        if not isinstance(block.event, ExecuteTransform | SetDataSchema | Seed | UnknownEvent):
            yield block.event
