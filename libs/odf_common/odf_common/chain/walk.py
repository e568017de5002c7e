"""Walks over a chain in any store: checked, in constant memory, and safe whatever the store contains.

Blocks are read by hash, and the hash is verified. Sequence numbers must decrease by one at each step, so every walk
ends. Only these links are checked here; `chain/rules` checks the events.

Walks take a function that reads a block, not a `DatasetReader`, because packs, downloads and pushed blocks have
no other methods.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from odf_common.chain.rules import admit
from odf_common.chain.state import ChainState
from odf_common.codec.flatbuffers import DecodedBlock, Manifest, block_hash, decode_block, decode_message
from odf_common.errors import InvalidInput, NotFound, VerificationFailed
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import MetadataBlock
from odf_common.metadata.scalars import Timestamp, UInt64

ReadBlock = Callable[[Multihash], bytes]  # raises NotFound
Link = tuple[Multihash, DecodedBlock, bytes]

_RUN_BLOCKS: Final = 256  # blocks in memory while walking forwards


class ChainBroken(VerificationFailed):
    """A chain cannot be followed because a block is missing, damaged or in the wrong place.

    `kind` is `missing`, `corrupt`, `unreadable` or `misplaced`.
    """

    kind: str
    block: str
    sequence_number: int | None
    text: str

    def __str__(self) -> str:
        """Return a message with the block, its sequence number, and the problem."""
        at = "" if self.sequence_number is None else f", sequence number {self.sequence_number},"
        return f"block {self.block}{at} {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """The first fields of `MetadataBlock`, which suffice for a walk; decoding them takes a tenth of the time."""

    system_time: Timestamp
    prev_block_hash: Multihash | None = None
    sequence_number: UInt64


def read_link(read: ReadBlock, name: Multihash, sequence_number: int | None = None) -> Link:
    """Return a block after verifying its hash and, if given, its sequence number.

    Raises `ChainBroken`, and any other error of `read`.
    """
    raw = _read_raw(read, name, sequence_number)
    return _decode(name, raw, sequence_number)


def iterate(read: ReadBlock, head: Multihash) -> Iterator[Link]:
    """Yield the hash, the block and its bytes, from `head` back to the first block. Raises `ChainBroken`."""
    name: Multihash | None = head
    number: int | None = None
    while name is not None:
        link = read_link(read, name, number)
        yield link
        block = link[1].block
        name, number = block.prev_block_hash, block.sequence_number - 1


def blocks_between(read: ReadBlock, head: Multihash, stop: Multihash | None) -> Iterator[Link]:
    """Yield the blocks after `stop` up to `head`, oldest first; all blocks if `stop` is None.

    Raises `ChainBroken`, also for a `stop` that is not in the chain. Only one run of blocks is kept in memory, so in a
    long range all blocks except those of the oldest run are read twice.
    """
    if head == stop:
        return
    newest: list[Multihash] = []  # the newest block of each run
    run: list[tuple[Multihash, bytes]] = []
    for name, raw, before in raw_blocks(read, head):
        if len(run) == _RUN_BLOCKS:
            run.clear()
        if not run:
            newest.append(name)
        run.append((name, raw))
        if before == stop:
            break
    else:
        raise _broken("missing", stop or head, None, f"is not in the chain of {head}")
    yield from _pop_links(run)
    for name in reversed(newest[:-1]):
        yield from _pop_links([(block, raw) for block, raw, _ in islice(raw_blocks(read, name), _RUN_BLOCKS)])


def number_before(read: ReadBlock, head: Multihash, kind: type[object]) -> int:
    """Return the sequence number of the block before the last event of this kind, which must exist in the chain.

    Raises `ChainBroken`.
    """
    blocks = (decoded.block for _, decoded, _ in iterate(read, head))
    return next(block.sequence_number for block in blocks if isinstance(block.event, kind)) - 1


def _pop_links(run: list[tuple[Multihash, bytes]]) -> Iterator[Link]:
    while run:
        name, raw = run.pop()
        yield _decode(name, raw, None)


def raw_blocks(read: ReadBlock, head: Multihash) -> Iterator[tuple[Multihash, bytes, Multihash | None]]:
    """Yield hash, bytes and previous hash of each block from `head` back to the first one, without decoding events.

    Raises `ChainBroken`.
    """
    name: Multihash | None = head
    number: int | None = None
    while name is not None:
        raw, header = read_header(read, name, number)
        yield name, raw, header.prev_block_hash
        name, number = header.prev_block_hash, header.sequence_number - 1


def read_header(
    read: ReadBlock, name: Multihash, sequence_number: int | None = None
) -> tuple[bytes, BlockHeader]:
    """Return the bytes and the header of a block, with the same checks as `read_link`."""
    raw = _read_raw(read, name, sequence_number)
    try:
        header = decode_message(BlockHeader, decode_message(Manifest, raw).content)
    except InvalidInput as error:
        raise _broken("unreadable", name, sequence_number, f"cannot be read: {error}") from error
    _check_header(name, header, sequence_number)
    return raw, header


def _read_raw(read: ReadBlock, name: Multihash, number: int | None) -> bytes:
    try:
        raw = read(name)
    except NotFound as error:
        raise _broken("missing", name, number, "is missing") from error
    actual = block_hash(raw)
    if actual != name:
        raise _broken("corrupt", name, number, f"is damaged: its bytes hash to {actual}")
    return raw


def _decode(name: Multihash, raw: bytes, number: int | None) -> Link:
    try:
        decoded = decode_block(raw)
    except InvalidInput as error:
        raise _broken("unreadable", name, number, f"cannot be read: {error}") from error
    _check_header(name, decoded.block, number)
    return name, decoded, raw


def _check_header(name: Multihash, block: MetadataBlock | BlockHeader, number: int | None) -> None:
    actual, before = block.sequence_number, block.prev_block_hash
    if number is not None and actual != number:
        raise _broken("misplaced", name, number, f"has sequence number {actual}")
    # Together with numbers that fall by one this bounds every walk, whatever the store contains.
    if (actual == 0) != (before is None):
        raise _broken("misplaced", name, actual, f"has {before or 'no block'} as its previous block")


def fold(read: ReadBlock, head: Multihash, past: ChainState | None = None) -> ChainState:
    """Return the state at `head`, after checking all rules for each block since `past`, or since the first block.

    Raises `ChainRuleViolated`, and `ChainBroken`, also for a `past` that is not in the chain.
    """
    state = past
    for name, decoded, _ in blocks_between(read, head, None if past is None else past.head):
        state = admit(state, decoded.block, block_hash=name, version=decoded.version)
    assert state is not None
    return state


def _broken(kind: str, name: Multihash, sequence_number: int | None, text: str) -> ChainBroken:
    return ChainBroken(kind=kind, block=str(name), sequence_number=sequence_number, text=text)
