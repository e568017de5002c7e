"""Objects that clients send: `PUT data/<hash>` and `PUT checkpoints/<hash>` (wire-facts §8.2).

An object belongs to a dataset once a block refers to it; until then it is invisible.
"""

import asyncio
import hashlib
from pathlib import Path
from typing import Final

from aiohttp import web

from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobStore, ObjectKind, scratch_folder

CHUNK_BYTES: Final = 1024 * 1024
MAX_BYTES: Final = 5 * 1024**3  # of one object, as in object stores
UPLOADS: Final = 64  # received at a time
IDLE_SECONDS: Final = 60.0  # without a byte of a body
RETRY_AFTER: Final = {"Retry-After": "1"}


class ObjectUploads:
    """Receives objects: one is stored if its bytes hash to its name, and if so durably."""

    def __init__(self, blobs: BlobStore) -> None:
        """Store into `blobs`."""
        self._blobs = blobs
        self._places = asyncio.Semaphore(UPLOADS)

    async def receive(
        self, request: web.Request, dataset: DatasetId, kind: ObjectKind, name: Multihash
    ) -> web.Response:
        """Store the body of a request; an object that exists stays as it is."""
        length = request.content_length
        if length is None:
            return _refused(411, "Content-Length is required")
        if length > MAX_BYTES:
            return _refused(413, f"an object may have {MAX_BYTES} bytes, not {length}")
        if self._places.locked():
            return _refused(503, f"{UPLOADS} objects are being received; try again", RETRY_AFTER)
        async with self._places:
            with scratch_folder(self._blobs) as folder:
                file = folder / str(name)
                actual = await _written(request, file)
                if actual is None:
                    return _refused(408, f"no byte of the body for {IDLE_SECONDS:g} s")
                if actual != name:
                    return _refused(400, f"the body hashes to {actual}, not to {name}")
                await asyncio.to_thread(self._blobs.put_file, dataset, kind, name, file)
        return web.Response()


async def _written(request: web.Request, file: Path) -> Multihash | None:
    """Write the body to a new file and return its hash; None if the client stopped sending."""
    digest = hashlib.sha3_256()
    with file.open("xb") as out:
        try:
            while chunk := await asyncio.wait_for(request.content.read(CHUNK_BYTES), IDLE_SECONDS):
                await asyncio.to_thread(digest.update, chunk)
                await asyncio.to_thread(out.write, chunk)
        except TimeoutError:
            return None
    return Multihash.sha3(digest.digest())


def _refused(status: int, text: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"message": text}, status=status, headers=headers)
