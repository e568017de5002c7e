"""Makes proposals idempotent: distinguishes a repeated one from one that came too late.

Pushes of files are idempotent by their keys: ingest keeps their receipts (`odf_ingest/commit/file_commit.py`).
"""

from collections.abc import Callable, Sequence

from odf_common.chain.walk import iterate
from odf_common.codec.flatbuffers import decode_block
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import KnownEvent
from odf_common.metadata.manifest_contents import MetadataBlock
from odf_common.metadata.scalars import Timestamp

Read = Callable[[Multihash], bytes]


def is_duplicate(
    read: Read,
    head: Multihash,
    expected: Multihash | None,
    events: Sequence[KnownEvent],
    system_time: Timestamp,
) -> bool:
    """Return whether the blocks after `expected` have these events and this system time.

    Reads the blocks since `expected`, which may be of another chain, or not a block at all.
    """
    first = _next_number(read, expected)
    if first is None:
        return False
    blocks = _blocks_from(read, head, first)
    if len(blocks) < len(events) or blocks[0].prev_block_hash != expected:
        return False
    # There may be more blocks than events: others were committed on top of the repeated proposal.
    return all(
        block.event == event and block.system_time == system_time
        for block, event in zip(blocks, events, strict=False)
    )


def _next_number(read: Read, expected: Multihash | None) -> int | None:
    """Return the sequence number after `expected`; None if that block is unknown here."""
    if expected is None:
        return 0
    try:
        return decode_block(read(expected)).block.sequence_number + 1
    except (NotFound, InvalidInput):
        return None


def _blocks_from(read: Read, head: Multihash, first: int) -> list[MetadataBlock]:
    """Return the blocks with sequence numbers from `first`, oldest first."""
    blocks = []
    for _, decoded, _ in iterate(read, head):
        if decoded.block.sequence_number < first:
            break
        blocks.append(decoded.block)
    return blocks[::-1]
