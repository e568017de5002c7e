"""Downloads of objects: a store that has to fetch them first delays no other request.

A store in a bucket fetches an object that the node has no copy of, which may take minutes. Slices and checkpoints are
fetched by threads of their own; all other requests, blocks among them, are answered by the threads that all share.

The tag of an object is its hash, even while the node has no copy of it. The times of a copy are those of its use.
"""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from aiohttp import ETag, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobStore, ObjectKind
from odf_sync.http.connections import SentFile

MAX_FETCHED_OBJECTS: Final = 16  # objects that are fetched; requests for others wait
# Not `public`: a shared cache must not keep what was sent for one token.
FOR_EVER: Final = {
    hdrs.CONTENT_TYPE: "application/octet-stream",
    hdrs.CACHE_CONTROL: "max-age=31536000, immutable",
}
CONDITIONS: Final = frozenset(
    {hdrs.IF_MATCH, hdrs.IF_NONE_MATCH, hdrs.IF_RANGE, hdrs.IF_MODIFIED_SINCE, hdrs.IF_UNMODIFIED_SINCE}
)
ANY: Final = "*"
# One range of bytes. Several, which are not supported, and ranges in other units are ignored (RFC 9110, section 14.2).
_RANGE: Final = re.compile(r"bytes=[0-9]*-[0-9]*", re.IGNORECASE)


class SentObject(SentFile):
    """A file with an object as a response; its conditions were checked, except `If-Range`."""

    def __init__(self, path: Path, name: Multihash) -> None:
        """Send a file, whose times mean nothing."""
        super().__init__(path, headers=FOR_EVER)
        self._tag = _tag(name)

    @property
    def etag(self) -> ETag | None:
        """Return the object's tag, if the file can be sent."""
        return super().etag

    @etag.setter
    def etag(self, _: ETag | str | None) -> None:
        self.headers[hdrs.ETAG] = self._tag

    @property
    def last_modified(self) -> None:
        """Return None: the object has no such time."""

    @last_modified.setter
    def last_modified(self, _: object) -> None:
        pass

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        """Send the file, or the range that was asked for."""
        headers = request.headers.copy()
        is_outdated = headers.get(hdrs.IF_RANGE, self._tag) != self._tag
        if is_outdated or _RANGE.fullmatch(headers.get(hdrs.RANGE, "")) is None:
            headers.popall(hdrs.RANGE, None)
        for name in CONDITIONS:  # by the times of the file
            headers.popall(name, None)
        return await super().prepare(request.clone(headers=headers))


class ObjectDownloads:
    """Answers with objects; used in the event loop only."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._threads = ThreadPoolExecutor(MAX_FETCHED_OBJECTS, thread_name_prefix="objects")
        self._fetches: dict[tuple[DatasetId, ObjectKind, Multihash], asyncio.Future[Path]] = {}

    async def answer(
        self, request: web.Request, dataset: DatasetId, kind: ObjectKind, name: Multihash
    ) -> web.StreamResponse:
        """Return an object; raises `NotFound`.

        For HEAD an object is not fetched, nor for a client that has it: the response to HEAD then is of the whole.
        """
        path = await asyncio.to_thread(self._blobs.local_copy, dataset, kind, name)
        is_met, is_known = _is_met(request.if_match, name), _has(request.if_none_match, name)
        size = 0
        if path is None and (request.method == hdrs.METH_HEAD or is_known or not is_met):
            size = await asyncio.to_thread(self._blobs.size, dataset, kind, name)
        if not is_met:
            return web.Response(status=412, headers={hdrs.ETAG: _tag(name)})
        if is_known:
            return web.Response(status=304, headers={**FOR_EVER, hdrs.ETAG: _tag(name)})
        if path is None and request.method == hdrs.METH_HEAD:
            described = {hdrs.CONTENT_LENGTH: str(size), hdrs.ACCEPT_RANGES: "bytes", hdrs.ETAG: _tag(name)}
            return web.Response(headers={**FOR_EVER, **described})
        return SentObject(path or await self.local_path(dataset, kind, name), name)

    async def local_path(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        """Return a file with an object; requests for the same object share a fetch, and its error."""
        key = (dataset, kind, name)
        fetch = self._fetches.get(key)
        if fetch is None:
            threads = None if kind is ObjectKind.BLOCK else self._threads  # None: those that all share
            loop = asyncio.get_running_loop()
            fetch = loop.run_in_executor(threads, self._blobs.local_path, *key)
            self._fetches[key] = fetch
            fetch.add_done_callback(lambda _: self._fetches.pop(key))
        return await asyncio.shield(fetch)  # the others still want it if one request is cancelled


def _tag(name: Multihash) -> str:
    return f'"{name}"'


def _has(tags: tuple[ETag, ...] | None, name: Multihash) -> bool:
    """Return whether one of the tags belongs to an object."""
    return any(tag.value in (str(name), ANY) for tag in tags or ())


def _is_met(tags: tuple[ETag, ...] | None, name: Multihash) -> bool:
    """Return whether `If-Match` names an object; a weak tag matches none (RFC 9110, section 13.1.1)."""
    return tags is None or _has(tuple(tag for tag in tags if not tag.is_weak), name)
