"""Packs: many blocks in one response, newest first, each after its length in 4 bytes, big-endian (ADR 0039).

A pack of signatures has the signature of each block in its place, of length 0 if the block has none (ADR 0064).
"""

from collections.abc import Iterable, Iterator
from typing import Final

from odf_common.errors import InvalidInput

PACK_MEDIA_TYPE: Final = "application/vnd.odf.block-pack"
HEADER: Final = "Odf-Block-Packs"  # of the response to `refs/head`: the server sends packs
PACK_VERSION: Final = "1"
SIGNATURES_MEDIA_TYPE: Final = "application/vnd.odf.signature-pack"
LENGTH_BYTES: Final = 4


class BrokenPack(InvalidInput):
    """A pack ends within an entry, or has one that is too long."""

    where: str | None = "pack"


def frame_block(raw: bytes) -> bytes:
    """Return a block as part of a pack."""
    return len(raw).to_bytes(LENGTH_BYTES, "big") + raw


def blocks_in(chunks: Iterable[bytes], *, most: int) -> Iterator[bytes]:
    """Yield the blocks of a pack that arrives in chunks.

    Raises `BrokenPack` for a block of more than `most` bytes, and for a pack that ends within one.
    """
    rest = bytearray()
    for chunk in chunks:
        rest += chunk
        position = 0
        while len(rest) - position >= LENGTH_BYTES:
            start = position + LENGTH_BYTES
            end = start + int.from_bytes(rest[position:start], "big")
            if end - start > most:
                raise BrokenPack(text=f"an entry of {end - start} bytes; at most {most} are taken")
            if end > len(rest):
                break
            yield bytes(rest[start:end])
            position = end
        del rest[:position]
    if rest:
        raise BrokenPack(text="ends within an entry")
