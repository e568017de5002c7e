"""Derivatives whose inputs went back: where such a chain still agrees with them, and what it said of itself since."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from odf_common.chain.fold import progress_after
from odf_common.chain.walk import ChainBroken, ReadBlock, iterate, read_link
from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.block import MetadataBlock
from odf_common.metadata.events import ExecuteTransform, KnownEvent, Seed, SetDataSchema, UnknownEvent

Holds = Callable[[DatasetId, Multihash], bool]  # whether the chain of an input has this block


class BlockIndex:
    """A chain by sequence numbers, read from its head only as far down as is asked."""

    def __init__(self, read: ReadBlock, head: Multihash) -> None:
        """Read nothing yet."""
        self._read = read
        self._down = iterate(read, head)
        self._names: dict[int, Multihash] = {}
        self._lowest: int | None = None

    def contains(self, block: Multihash) -> bool:
        """Tell whether the block is in the chain; one that is not even in the store is not."""
        try:
            number = read_link(self._read, block)[1].block.sequence_number
        except (NotFound, ChainBroken):
            return False
        while self._lowest is None or self._lowest > number:
            link = next(self._down, None)
            if link is None:
                return False
            self._lowest = link[1].block.sequence_number
            self._names[self._lowest] = link[0]
        return self._names.get(number) == block


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistentBlock:
    """Where a chain agrees with its inputs: its `block`, and what it said of itself after that, oldest first."""

    block: Multihash
    definitions_since: tuple[KnownEvent, ...]


def find_consistent_block(read: ReadBlock, head: Multihash, holds: Holds) -> ConsistentBlock | None:
    """Return the last block of a derivative whose transforms saw blocks that their inputs still have.

    None where that is the head. Commits are taken back whole: the schema that came with records goes with them, and a
    query with its migration. Raises what a broken chain raises.
    """
    blocks: list[MetadataBlock] = []  # newest first
    undone = 0  # of them
    for _, decoded, _ in iterate(read, head):
        block = decoded.block
        is_adjacent = bool(blocks) and undone == len(blocks)
        blocks.append(block)
        if isinstance(block.event, ExecuteTransform):
            if not _is_lost(block.event, holds):
                break
            undone = len(blocks)
        elif is_adjacent and block.sequence_number and block.system_time == blocks[-2].system_time:
            undone = len(blocks)  # the blocks of a commit have one time
    if not undone:
        return None
    before = blocks[undone - 1].prev_block_hash
    assert before is not None, "a seed is not undone, and a transform is no first block"
    return ConsistentBlock(block=before, definitions_since=tuple(_said(blocks[:undone])))


def _is_lost(event: ExecuteTransform, holds: Holds) -> bool:
    seen = (progress_after(step) for step in event.query_inputs)
    return any(one.last_block is not None and not holds(one.dataset_id, one.last_block) for one in seen)


def _said(blocks: list[MetadataBlock]) -> Iterator[KnownEvent]:
    """Iterate over the definitions in blocks, newest first, in their order; schemas come with what will be derived."""
    for block in reversed(blocks):
        if not isinstance(block.event, ExecuteTransform | SetDataSchema | Seed | UnknownEvent):
            yield block.event
