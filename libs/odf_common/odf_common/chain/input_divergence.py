"""After an input was reset: the last block at which a derivative is still consistent with it, and later definitions."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from odf_common.chain.fold import progress_after
from odf_common.chain.walk import ChainBroken, ReadBlock, iterate, read_link
from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import ExecuteTransform, KnownEvent, Seed, SetDataSchema, UnknownEvent
from odf_common.metadata.manifest_contents import MetadataBlock

Holds = Callable[[DatasetId, Multihash], bool]  # whether the chain of an input has the block


class BlockIndex:
    """An ancestor test for one chain, which is read from its head only as far down as necessary."""

    def __init__(self, read: ReadBlock, head: Multihash) -> None:
        """Index the chain with this head; reads nothing yet."""
        self._read = read
        self._next: Multihash | None = head
        self._names: dict[int, Multihash] = {}
        self._lowest: int | None = None

    def contains(self, block: Multihash) -> bool:
        """Return whether the block is in the chain; one that is not stored at all is not. Raises `ChainBroken`."""
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
    """The last `block` consistent with the inputs, and the definitions set after it, oldest first."""

    block: Multihash
    definitions_since: tuple[KnownEvent, ...]


def find_consistent_block(read: ReadBlock, head: Multihash, holds: Holds) -> ConsistentBlock | None:
    """Return the last consistent block: the inputs still have all blocks that transforms up to it have read.

    None if that is the head. Commits are rolled back as a whole: a schema is committed with its records, and a query
    with its migration. Raises `ChainBroken` if the chain cannot be read.
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
    """Yield the definitions in blocks, oldest first; schemas are left out: they come with the recomputed records."""
    for block in reversed(blocks):
        if not isinstance(block.event, ExecuteTransform | SetDataSchema | Seed | UnknownEvent):
            yield block.event
