"""References, blocks and objects of a dataset over HTTP (spec: Simple Transfer Protocol; wire-facts §8.2), and packs.

The bytes of a block are sent as committed, without re-encoding. Blocks and objects are named by hash, so they may be
cached forever; references must be revalidated. The ETag of an object is its hash, even if the node has no local copy.

A pack is many blocks, or the signatures of many blocks, in one response (ADRs 0039 and 0064):
`packs/<hash>?after=<hash>` and `signature-packs/<hash>?after=<hash>`. Only clients that support the headers of
`refs/head` request packs. A pack may end early; the client then requests the rest.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from aiohttp import ETag, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest

from odf_common.chain.walk import ChainBroken, raw_blocks
from odf_common.dataset.node_datasets import NodeDatasets, StoredDataset
from odf_common.dataset.signature_check import stored_signature
from odf_common.errors import InvalidInput, NotFound, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.ports.store import NAMED_BY_CONTENT, BlobStore, ObjectKind
from odf_sync.access.rules import Action
from odf_sync.http.connections import SentFile
from odf_sync.http.endpoints import Endpoint, counted_caller, dataset_of, name_in_path, reads_public_data
from odf_sync.http.object_uploads import (
    ExpectedUpload,
    ObjectUploads,
    OpenPushes,
    upload_file,
)
from odf_sync.repositories.remote_dataset import (
    PACK_MEDIA_TYPE,
    PACK_VERSION,
    PACKS_HEADER,
    SIGNATURES_MEDIA_TYPE,
    frame_block,
)
from odf_sync.smart.messages import (
    DIRECT_HEADER,
    EVERYONE_HEADER,
    NO,
    SIGNATURES_HEADER,
    YES,
)

PIECE_BYTES: Final = 256 * 1024  # read from the store, and written to the client, at a time
PACK_BYTES: Final = 64 * 1024 * 1024  # of blocks, after which a pack ends
AFTER: Final = "after"
Content = Callable[[Multihash, bytes], bytes]


class BlockPacks:
    """Sends packs of blocks, and of their signatures."""

    def __init__(self, datasets: NodeDatasets) -> None:
        self._datasets = datasets

    async def send(self, request: web.Request) -> web.StreamResponse:
        """Send the block in the path and the blocks before it, newest first, down to but without the block `after`."""
        return await self._send(request, PACK_MEDIA_TYPE, self._open_dataset(request), lambda _, raw: raw)

    async def send_signatures(self, request: web.Request) -> web.StreamResponse:
        """Send the signatures of the same blocks in the same order. A block without a signature has an empty entry."""
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
    """Return the hash in a URL, in any multibase encoding; raises `HTTPBadRequest`."""
    try:
        return Multihash.parse(text)
    except InvalidInput as error:
        raise web.HTTPBadRequest(text=f"Invalid URL: {text!r} is not a hash; {error}") from error


def _pieces(
    stored: StoredDataset, newest: Multihash, after: Multihash | None, content: Content
) -> Iterator[bytes]:
    """Yield a pack in pieces; it ends before a missing or damaged block.

    The client then requests that block alone, and gets an error for it. The pack also ends if the store becomes
    unavailable. Raises `Unavailable` if the first block cannot be read.
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
    """An object as a response with a file. Conditions of the request have been checked before, except `If-Range`."""

    def __init__(self, path: Path, name: Multihash) -> None:
        """Send the object in a file, with the object's hash as the ETag and without the file's modification time."""
        super().__init__(path, headers=FOR_EVER)
        self._tag = _tag(name)

    @property
    def etag(self) -> ETag | None:
        """Return the ETag of the file; the header is set to that of the object."""
        return super().etag

    @etag.setter
    def etag(self, _: ETag | str | None) -> None:
        self.headers[hdrs.ETAG] = self._tag

    @property
    def last_modified(self) -> None:
        """Return None, as an object has no modification time."""

    @last_modified.setter
    def last_modified(self, _: object) -> None:
        pass

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        """Send the object, or the requested range of it."""
        headers = request.headers.copy()
        is_outdated = headers.get(hdrs.IF_RANGE, self._tag) != self._tag
        if is_outdated or _RANGE.fullmatch(headers.get(hdrs.RANGE, "")) is None:
            headers.popall(hdrs.RANGE, None)
        for name in CONDITIONS:  # by the times of the file
            headers.popall(name, None)
        return await super().prepare(request.clone(headers=headers))


class ObjectDownloads:
    """Responds with objects; to be used in one event loop."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._threads = ThreadPoolExecutor(MAX_FETCHED_OBJECTS, thread_name_prefix="objects")
        self._fetches: dict[tuple[DatasetId, ObjectKind, Multihash], asyncio.Future[Path]] = {}

    async def answer(
        self, request: web.Request, dataset: DatasetId, kind: ObjectKind, name: Multihash
    ) -> web.StreamResponse:
        """Return the response with an object; raises `NotFound`.

        The object is not fetched from the store for HEAD, nor if the client has it already. The response to HEAD
        describes the whole object, even if a range is requested.
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
        """Return a local file with an object; concurrent requests for an object share one fetch and its error."""
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
    """Return whether one of the ETags is that of an object."""
    return any(tag.value in (str(name), ANY) for tag in tags or ())


def _is_met(tags: tuple[ETag, ...] | None, name: Multihash) -> bool:
    """Return whether `If-Match` holds for an object; weak ETags never match (RFC 9110, section 13.1.1)."""
    return tags is None or _has(tuple(tag for tag in tags if not tag.is_weak), name)


ASKED_AGAIN: Final = {hdrs.CACHE_CONTROL: "no-cache", PACKS_HEADER: PACK_VERSION}
MISSING: Final = {
    ObjectKind.BLOCK: "Block does not exist: {name}",
    ObjectKind.DATA: "Object does not exist: {name}",
    ObjectKind.CHECKPOINT: "Object does not exist: {name}",
    ObjectKind.SIGNATURE: "Block has no signature: {name}",
}


class SimpleProtocol:
    """Handlers of the Simple Transfer Protocol's routes; dataset names are not case-sensitive."""

    def __init__(
        self,
        datasets: NodeDatasets,
        home: Path,
        pushes: OpenPushes | None = None,
    ) -> None:
        """Serve the datasets of a node; uploads are also accepted for datasets that are being pushed."""
        self._datasets = datasets
        self._home = home
        self._pushes = pushes or OpenPushes()
        self._packs = BlockPacks(datasets)
        self._uploads = ObjectUploads()
        self._downloads = ObjectDownloads(datasets.blobs)

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints."""
        yield Endpoint(
            method="GET",
            path="/refs/{ref}",
            handler=self._ref,
            summary="The hash of the block that a reference points to.",
            action=Action.READ,
            statuses=(200, 304),
            media_type="text/plain",
        )
        for kind in NAMED_BY_CONTENT:
            yield Endpoint(
                method="GET",
                path=f"/{kind}/{{name}}",
                handler=partial(self._object, kind),
                summary=f"One of the dataset's {kind}, by its hash.",
                action=Action.READ,
                statuses=(200, 206, 304, 412, 416),
                media_type=FOR_EVER[hdrs.CONTENT_TYPE],
            )
        yield Endpoint(
            method="GET",
            path="/packs/{name}",
            handler=self._packs.send,
            summary="A block and those before it, newest first, up to the block `after`.",
            action=Action.READ,
            query={AFTER: "hash of the block that is not sent any more"},
            media_type=PACK_MEDIA_TYPE,
        )
        yield from self._signature_endpoints()
        for kind in (ObjectKind.DATA, ObjectKind.CHECKPOINT):
            summary = f"Store one of the dataset's {kind}, if its bytes match its hash."
            yield _upload_endpoint(kind.value, partial(self._upload, kind), summary)
        summary = "Keep an archive of blocks for a push in progress, if its bytes match its hash."
        yield _upload_endpoint("archives", self._archive, summary)

    def _signature_endpoints(self) -> Iterator[Endpoint]:
        yield Endpoint(
            method="GET",
            path="/signatures/{name}",
            handler=self._signature,
            summary="The signature of one of the dataset's blocks, by the block's hash.",
            action=Action.READ,
        )
        yield Endpoint(
            method="GET",
            path="/signature-packs/{name}",
            handler=self._packs.send_signatures,
            summary="The signatures of a block and of those before it, newest first, up to the block `after`.",
            action=Action.READ,
            query={AFTER: "hash of the block whose signature is not sent any more"},
            media_type=SIGNATURES_MEDIA_TYPE,
        )

    async def _ref(self, request: web.Request) -> web.Response:
        entry = dataset_of(request)
        head, offered = await asyncio.to_thread(self._head, entry.dataset_id)
        if request.match_info["ref"] != HEAD or head is None:
            # Clients of the other implementation know this text for an unknown reference.
            return _not_found("Internal error")
        answer = web.Response(text=str(head), headers={**ASKED_AGAIN, **offered})
        answer.headers[EVERYONE_HEADER] = YES if reads_public_data(request) else NO
        answer.etag = str(head)
        if any(tag.value in (str(head), "*") for tag in request.if_none_match or ()):
            answer.set_status(304)
            answer.body = None
        return answer

    def _head(self, dataset: DatasetId) -> tuple[Multihash | None, dict[str, str]]:
        """Return the head, and the headers that announce what the node offers for the dataset."""
        blobs, offered = self._datasets.blobs, {}
        head = self._datasets.refs.head(dataset)
        if next(blobs.names(dataset, ObjectKind.SIGNATURE), None) is not None:
            offered[SIGNATURES_HEADER] = YES
        if head is not None and blobs.download_url(dataset, ObjectKind.BLOCK, head) is not None:
            offered[DIRECT_HEADER] = YES
        return head, offered

    async def _signature(self, request: web.Request) -> web.Response:
        name = hash_in_url(request.match_info["name"])
        stored = StoredDataset(dataset_of(request).dataset_id, self._datasets.blobs, self._datasets.refs)
        signature = await asyncio.to_thread(stored_signature, stored, name)
        if signature is None:
            return _not_found(MISSING[ObjectKind.SIGNATURE].format(name=name))
        # Not forever: unlike an object named by its hash, it may be another one after a repair.
        headers = {hdrs.CACHE_CONTROL: "no-cache"}
        return web.Response(body=signature, content_type="application/json", headers=headers)

    async def _object(self, kind: ObjectKind, request: web.Request) -> web.StreamResponse:
        entry, name = dataset_of(request), hash_in_url(request.match_info["name"])
        try:
            return await self._downloads.answer(request, entry.dataset_id, kind, name)
        except NotFound:
            return _not_found(MISSING[kind].format(name=name))

    async def _upload(self, kind: ObjectKind, request: web.Request) -> web.Response:
        name = name_in_path(request)
        try:
            dataset: DatasetId | None = dataset_of(request).dataset_id
        except KeyError:
            dataset = self._pushes.dataset(name)
        if dataset is None:
            raise web.HTTPNotFound(text="")
        hashed = hash_in_url(request.match_info["name"])

        def take(file: Path) -> None:
            self._datasets.blobs.put_file(dataset, kind, hashed, file)
            self._pushes.note_object(dataset, kind, hashed)

        upload = ExpectedUpload(
            file=upload_file(self._home, name, hashed),
            name=hashed,
            has=partial(self._datasets.blobs.has, dataset, kind, hashed),
            take=take,
            note=partial(self._pushes.note_received, name),
        )
        return await self._uploads.receive(request, upload, counted_caller(request))

    async def _archive(self, request: web.Request) -> web.Response:
        hashed = hash_in_url(request.match_info["name"])
        alias = name_in_path(request)
        most = self._pushes.archive_limit(alias, hashed)
        if most is None:
            raise web.HTTPNotFound(text="")
        file = upload_file(self._home, alias, hashed)
        upload = ExpectedUpload(file=file, name=hashed, has=lambda: False, take=_keep, most=most)
        return await self._uploads.receive(request, upload, counted_caller(request))


def _upload_endpoint(
    folder: str, handler: Callable[[web.Request], Awaitable[web.StreamResponse]], summary: str
) -> Endpoint:
    return Endpoint(
        method="PUT",
        path=f"/{folder}/{{name}}",
        handler=handler,
        summary=summary,
        action=Action.CREATE,  # objects come before the head that makes a new dataset
        body="application/octet-stream",
        statuses=(200, 204, 408, 409, 411, 413, 415),
        media_type="",
    )


def _keep(file: Path) -> None:
    """Keep the uploaded archive in its file, where the push reads it."""
    del file


def _not_found(text: str) -> web.Response:
    body = json.dumps({"message": text}, separators=(",", ":")).encode()
    return web.Response(body=body, status=404, content_type="application/json")
