"""Many blocks in one response: `GET <dataset>/packs/<hash>?after=<hash>` (ADR 0039).

Only clients that support the header of `refs/head` request packs. A pack may end early; the client requests the rest.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from aiohttp import hdrs, web

from odf_common.chain.walk import ChainBroken, ReadBlock, raw_blocks
from odf_common.errors import InvalidInput, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import BlobStore, block_reader
from odf_sync.http.endpoints import dataset_of
from odf_sync.repositories.pack_format import MEDIA_TYPE, framed

PIECE_BYTES: Final = 256 * 1024  # read from the store, and written to the client, at a time
PACK_BYTES: Final = 64 * 1024 * 1024  # after which a pack ends
AFTER: Final = "after"


class BlockPacks:
    """Sends packs of the blocks of a store."""

    def __init__(self, blobs: BlobStore) -> None:
        """Read blocks from `blobs`."""
        self._blobs = blobs

    async def send(self, request: web.Request) -> web.StreamResponse:
        """Send the block in the path and those before it, newest first, up to the one that `after` names."""
        newest = hash_in_url(request.match_info["name"])
        after = hash_in_url(request.query[AFTER]) if AFTER in request.query else None
        read = block_reader(self._blobs, dataset_of(request).dataset_id)
        pieces = _pieces(read, newest, after)
        piece = await asyncio.to_thread(next, pieces, None)
        if piece is None:
            raise web.HTTPNotFound(text="")
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: MEDIA_TYPE})
        await response.prepare(request)
        while piece is not None and request.method != hdrs.METH_HEAD:
            await response.write(piece)
            piece = await asyncio.to_thread(next, pieces, None)
        await response.write_eof()
        return response


def hash_in_url(text: str) -> Multihash:
    """Return a hash that is part of a URL, in any multibase encoding; raises `HTTPBadRequest`."""
    try:
        return Multihash.parse(text)
    except InvalidInput as error:
        raise web.HTTPBadRequest(text=f"Invalid URL: {text!r} is not a hash; {error}") from error


def _pieces(read: ReadBlock, newest: Multihash, after: Multihash | None) -> Iterator[bytes]:
    """Yield a pack in pieces; it ends before a block that is missing or damaged: asked for alone, that is named.

    It also ends when the store becomes unavailable. Raises `Unavailable` if the first block cannot be read.
    """
    size, piece = 0, bytearray()
    try:
        for name, raw, _ in raw_blocks(read, newest):
            if name == after or size >= PACK_BYTES:
                break
            piece += framed(raw)
            size += len(raw)
            if len(piece) >= PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
    except ChainBroken:
        pass
    except Unavailable:
        if not size:
            raise
    if piece:
        yield bytes(piece)
