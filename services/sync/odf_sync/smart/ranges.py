"""Ranges of blocks of a local chain: which one is asked for, its plan and its archive."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import BinaryIO, Final

from odf_common.chain.compare_chains import Ahead, Equal, compare
from odf_common.chain.walk import Link, ReadBlock, blocks_between
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DataEvent, MetadataEvent
from odf_sync.smart.archive import ReadSignature, no_signature, write_archive
from odf_sync.smart.messages import ObjectFile, ObjectType, TransferPlan

HEADER_BYTES: Final = 128  # of each block's header in an archive, with padding; compressed, it has 50 to 100
HasBlock = Callable[[Multihash], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The blocks after `after` up to `head`; after None: from the first one."""

    after: Multihash | None
    head: Multihash

    def links(self, read: ReadBlock) -> Iterator[Link]:
        """Yield the blocks, oldest first; raises `ChainBroken`."""
        return blocks_between(read, self.head, self.after)


def is_ancestor(read: ReadBlock, has: HasBlock, block: Multihash, head: Multihash) -> bool:
    """Return whether a block is in the chain of `head`, even if it is `head`."""
    # Without `has` a walk to an unknown block would fail as if the chain were damaged.
    return has(block) and isinstance(compare(read, head, read, block), Ahead | Equal)


def plan_of(read: ReadBlock, blocks: Range) -> TransferPlan:
    """Return the totals of a range."""
    count = _Count()
    for _ in count.through(blocks.links(read)):
        pass
    return count.plan()


def pack(blocks: Iterable[Link], out: BinaryIO, signature: ReadSignature = no_signature) -> TransferPlan:
    """Write the archive of blocks, and return what they amount to; one is in memory at a time."""
    count = _Count()
    write_archive(count.through(blocks), out, signature)
    return count.plan()


def in_parts(blocks: Iterable[Link], most: int) -> Iterator[Iterator[Link]]:
    """Yield parts of at most `most` bytes, with headers, or of one block.

    A part has to be read before the next one is asked for. Its archive has no more bytes than it has: blocks that do
    not compress are as long there.
    """
    number = size = 0

    def part_of(link: Link) -> int:
        nonlocal number, size
        counted = HEADER_BYTES + len(link[2])
        size += counted
        if size > most:
            number, size = number + 1, counted
        return number

    return (part for _, part in groupby(blocks, part_of))


def objects_of(event: MetadataEvent) -> Iterator[ObjectFile]:
    """Yield the objects that an event names."""
    if not isinstance(event, DataEvent):
        return
    for kind, obj in (
        (ObjectType.DATA_SLICE, event.new_data),
        (ObjectType.CHECKPOINT, event.new_checkpoint),
    ):
        if obj is not None:
            yield ObjectFile(object_type=kind, physical_hash=obj.physical_hash, size=obj.size)


@dataclass(slots=True)
class _Count:
    blocks: int = 0
    objects: int = 0
    records: int = 0
    block_bytes: int = 0
    object_bytes: int = 0

    def through(self, links: Iterable[Link]) -> Iterator[tuple[Multihash, bytes]]:
        for name, decoded, raw in links:
            event = decoded.block.event
            objects = tuple(objects_of(event))
            self.blocks += 1
            self.objects += len(objects)
            self.block_bytes += len(raw)
            self.object_bytes += sum(obj.size for obj in objects)
            if isinstance(event, DataEvent) and event.new_data is not None:
                interval = event.new_data.offset_interval
                self.records += interval.records
            yield name, raw

    def plan(self) -> TransferPlan:
        return TransferPlan(
            num_blocks=self.blocks,
            num_objects=self.objects,
            num_records=self.records,
            bytes_in_raw_blocks=self.block_bytes,
            bytes_in_raw_objects=self.object_bytes,
        )
