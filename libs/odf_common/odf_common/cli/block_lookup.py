"""Find a block by what a user types: a sequence number, a hash, or the beginning or end of a hash."""

from collections.abc import Iterable
from typing import Final

import click

from odf_common.codec.flatbuffers import decode_block
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.proto.odf.node.v1.coordinator_pb2 import BlockItem

PART: Final = 8  # characters of a hash
SHOWN: Final = 5  # hashes listed if the name is ambiguous


def require_block_name(block: str) -> None:
    """Raise `BadParameter` unless the string may name a block."""
    if not (block.isascii() and block.isdecimal()) and len(block) < PART:
        raise click.BadParameter(
            f"{block!r} is not a sequence number; part of a hash needs at least {PART} characters",
            param_hint="BLOCK",
        )


def find_block(items: Iterable[BlockItem], dataset: str, block: str) -> BlockItem:
    """Return the block with this number, hash or unique part of a hash; raises `NotFound` or `InvalidInput`."""
    number, part = block.lstrip("0") or "0", canonical(block)
    blocks: list[BlockItem] = []
    for item in items:
        if part == item.hash or number == str(decode_block(item.content).block.sequence_number):
            return item
        if len(part) >= PART and (item.hash.startswith(part) or item.hash.endswith(part)):
            blocks.append(item)
    if not blocks:
        raise NotFound(what=f"block {block} in {dataset}")
    if len(blocks) > 1:
        text = f"{block} is part of {len(blocks)} hashes: {', '.join(item.hash for item in blocks[:SHOWN])}"
        raise InvalidInput(text=text + (", …" if len(blocks) > SHOWN else ""))
    return blocks[0]


def canonical(block: str) -> str:
    """Return a full hash in its printed form, anything else in lower case, as part of a hash."""
    try:
        return str(Multihash.parse(block))
    except InvalidInput:
        return block.lower()
