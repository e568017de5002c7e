"""Downloads of objects: a store that has to fetch them first delays no other request.

A store in a bucket fetches an object that the node has no copy of, which may take minutes. Slices and checkpoints are
fetched by threads of their own; all other requests, blocks among them, are answered by the threads that all share.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web

from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import ObjectKind
from odf_common.service.environment import Environment
from odf_sync.http.connections import SentFile

AT_ONCE: Final = 16  # objects that are fetched; requests for others wait
# Not `public`: a shared cache must not keep what was sent for one token.
FOR_EVER: Final = {
    hdrs.CONTENT_TYPE: "application/octet-stream",
    hdrs.CACHE_CONTROL: "max-age=31536000, immutable",
}


class ObjectDownloads:
    """Answers with objects; used in the event loop only."""

    def __init__(self, env: Environment) -> None:
        """Read from the store of the node."""
        self._env = env
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="objects")
        self._fetches: dict[tuple[DatasetId, ObjectKind, Multihash], asyncio.Future[Path]] = {}

    async def answer(
        self, request: web.Request, dataset: DatasetId, kind: ObjectKind, name: Multihash
    ) -> web.StreamResponse:
        """Return an object; raises `NotFound`.

        For HEAD an object is not fetched: the response then has its length, but no ETag, and is of the whole object.
        """
        path = await asyncio.to_thread(self._env.blobs.local_copy, dataset, kind, name)
        if path is None and request.method == hdrs.METH_HEAD:
            size = await asyncio.to_thread(self._env.blobs.size, dataset, kind, name)
            described = {hdrs.CONTENT_LENGTH: str(size), hdrs.ACCEPT_RANGES: "bytes"}
            return web.Response(headers={**FOR_EVER, **described})
        return SentFile(path or await self.local_path(dataset, kind, name), headers=FOR_EVER)

    async def local_path(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        """Return a file with an object; requests for the same object share a fetch, and its error."""
        key = (dataset, kind, name)
        fetch = self._fetches.get(key)
        if fetch is None:
            threads = None if kind is ObjectKind.BLOCK else self._threads  # None: those that all share
            loop = asyncio.get_running_loop()
            fetch = loop.run_in_executor(threads, self._env.blobs.local_path, *key)
            self._fetches[key] = fetch
            fetch.add_done_callback(lambda _: self._fetches.pop(key))
        return await asyncio.shield(fetch)  # the others still want it if one request is cancelled
