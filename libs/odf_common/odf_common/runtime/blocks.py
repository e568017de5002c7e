"""Blocks as people name them: by sequence number, by hash, or by the beginning or end of one."""

from collections.abc import Iterable
from typing import Final

import click

from odf_common.codec.flatbuffers import decode_block
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.proto.odf.node.v1.coordinator_pb2 import BlockItem

PART: Final = 8  # characters of a hash
SHOWN: Final = 5  # hashes, where several may be meant


def require_block_name(block: str) -> None:
    """Return if the text may name a block; raises `BadParameter`."""
    if not (block.isascii() and block.isdecimal()) and len(block) < PART:
        raise click.BadParameter(
            f"{block!r} is no sequence number, and part of a hash has to have {PART} characters",
            param_hint="BLOCK",
        )


def find_block(items: Iterable[BlockItem], dataset: str, block: str) -> BlockItem:
    """Return the block of this number, else that of this hash or part of one, if there is one only."""
    number, part = block.lstrip("0") or "0", canonical(block)
    found: list[BlockItem] = []
    for item in items:
        if part == item.hash or number == str(decode_block(item.content).block.sequence_number):
            return item
        if len(part) >= PART and (item.hash.startswith(part) or item.hash.endswith(part)):
            found.append(item)
    if not found:
        raise NotFound(what=f"block {block} in {dataset}")
    if len(found) > 1:
        text = f"{block} is part of {len(found)} hashes: {', '.join(item.hash for item in found[:SHOWN])}"
        raise InvalidInput(text=text + (", …" if len(found) > SHOWN else ""))
    return found[0]


def canonical(block: str) -> str:
    """Return a hash as it is shown, anything else in lower case as its part would be."""
    try:
        return str(Multihash.parse(block))
    except InvalidInput:
        return block.lower()
