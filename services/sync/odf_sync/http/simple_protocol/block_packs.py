"""Many blocks, or the signatures of many blocks, in one response (ADRs 0039 and 0064).

`GET <dataset>/packs/<hash>?after=<hash>` has the blocks, `GET <dataset>/signature-packs/<hash>?after=<hash>` their
signatures. Only clients that support the headers of `refs/head` request packs. A pack may end early; the client
requests the rest.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from aiohttp import hdrs, web

from odf_common.chain.walk import ChainBroken, raw_blocks
from odf_common.dataset.node_datasets import NodeDatasets, StoredDataset
from odf_common.dataset.signature_check import stored_signature
from odf_common.errors import InvalidInput, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_sync.http.endpoints import dataset_of
from odf_sync.repositories.pack_format import PACK_MEDIA_TYPE, SIGNATURES_MEDIA_TYPE, frame_block

PIECE_BYTES: Final = 256 * 1024  # read from the store, and written to the client, at a time
PACK_BYTES: Final = 64 * 1024 * 1024  # of blocks, after which a pack ends
AFTER: Final = "after"
Content = Callable[[Multihash, bytes], bytes]


class BlockPacks:
    """Sends packs of the blocks of a store, and of their signatures."""

    def __init__(self, datasets: NodeDatasets) -> None:
        self._datasets = datasets

    async def send(self, request: web.Request) -> web.StreamResponse:
        """Send the block in the path and those before it, newest first, up to the one that `after` names."""
        return await self._send(request, PACK_MEDIA_TYPE, self._open_dataset(request), lambda _, raw: raw)

    async def send_signatures(self, request: web.Request) -> web.StreamResponse:
        """Send the signatures of the same blocks in the same order, nothing for a block without one."""
        stored = self._open_dataset(request)

        def signature(name: Multihash, _: bytes) -> bytes:
            return stored_signature(stored, name) or b""

        return await self._send(request, SIGNATURES_MEDIA_TYPE, stored, signature)

    def _open_dataset(self, request: web.Request) -> StoredDataset:
        return StoredDataset(dataset_of(request).dataset_id, self._datasets.blobs, self._datasets.refs)

    async def _send(
        self, request: web.Request, media_type: str, stored: StoredDataset, content: Content
    ) -> web.StreamResponse:
        newest = hash_in_url(request.match_info["name"])
        after = hash_in_url(request.query[AFTER]) if AFTER in request.query else None
        pieces = _pieces(stored, newest, after, content)
        piece = await asyncio.to_thread(next, pieces, None)
        if piece is None:
            raise web.HTTPNotFound(text="")
        response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: media_type})
        await response.prepare(request)
        while piece is not None and request.method != hdrs.METH_HEAD:
            await response.write(piece)
            piece = await asyncio.to_thread(next, pieces, None)
        return response


def hash_in_url(text: str) -> Multihash:
    """Return a hash that is part of a URL, in any multibase encoding; raises `HTTPBadRequest`."""
    try:
        return Multihash.parse(text)
    except InvalidInput as error:
        raise web.HTTPBadRequest(text=f"Invalid URL: {text!r} is not a hash; {error}") from error


def _pieces(
    stored: StoredDataset, newest: Multihash, after: Multihash | None, content: Content
) -> Iterator[bytes]:
    """Yield a pack in pieces; it ends before a block that is missing or damaged: asked for alone, that is named.

    It also ends when the store becomes unavailable. Raises `Unavailable` if the first block cannot be read.
    """
    size, piece = 0, bytearray()
    try:
        for name, raw, _ in raw_blocks(stored.read_block, newest):
            if name == after or size >= PACK_BYTES:
                break
            piece += frame_block(content(name, raw))
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
