"""References, blocks and objects of a dataset over HTTP (spec: Simple Transfer Protocol; wire-facts §8.2).

A block is sent as the committed bytes, never encoded again. Blocks and objects, named by hash, may be cached forever;
references must be revalidated.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web

from odf_common.dataset.node_datasets import NodeDatasets, StoredDataset
from odf_common.dataset.signature_check import stored_signature
from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.branch_names import HEAD
from odf_common.identity.did import DatasetId
from odf_common.ports.store import NAMED_BY_CONTENT, ObjectKind
from odf_sync.access.rules import Action
from odf_sync.http.endpoints import Endpoint, counted_caller, dataset_of, name_in_path, reads_public_data
from odf_sync.http.open_pushes import OpenPushes
from odf_sync.http.simple_protocol.block_packs import AFTER, BlockPacks, hash_in_url
from odf_sync.http.simple_protocol.object_downloads import FOR_EVER, ObjectDownloads
from odf_sync.http.simple_protocol.object_uploads import (
    ExpectedUpload,
    ObjectUploads,
    UploadTarget,
    upload_file,
)
from odf_sync.repositories import pack_format
from odf_sync.smart.messages import (
    DIRECT,
    DIRECT_HEADER,
    EVERYONE,
    EVERYONE_HEADER,
    ONLY_SOME,
    SIGNATURES,
    SIGNATURES_HEADER,
)

ASKED_AGAIN: Final = {hdrs.CACHE_CONTROL: "no-cache", pack_format.HEADER: pack_format.PACK_VERSION}
MISSING: Final = {
    ObjectKind.BLOCK: "Block does not exist: {name}",
    ObjectKind.DATA: "Object does not exist: {name}",
    ObjectKind.CHECKPOINT: "Object does not exist: {name}",
    ObjectKind.SIGNATURE: "Block has no signature: {name}",
}


class SimpleProtocol:
    """Handlers for the routes of a dataset; names are not case-sensitive."""

    def __init__(
        self,
        datasets: NodeDatasets,
        home: Path,
        pushes: OpenPushes | None = None,
    ) -> None:
        """Serve every dataset of the node; take objects for those that are being pushed, too."""
        self._datasets = datasets
        self._home = home
        self._pushes = pushes or OpenPushes()
        self._packs = BlockPacks(datasets)
        self._uploads = ObjectUploads()
        self._downloads = ObjectDownloads(datasets.blobs)

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield what is served."""
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
            media_type=pack_format.PACK_MEDIA_TYPE,
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
            media_type=pack_format.SIGNATURES_MEDIA_TYPE,
        )

    async def _ref(self, request: web.Request) -> web.Response:
        entry = dataset_of(request)
        head, offered = await asyncio.to_thread(self._head, entry.dataset_id)
        if request.match_info["ref"] != HEAD or head is None:
            # Clients of the other implementation know this text for an unknown reference.
            return _not_found("Internal error")
        answer = web.Response(text=str(head), headers={**ASKED_AGAIN, **offered})
        answer.headers[EVERYONE_HEADER] = EVERYONE if reads_public_data(request) else ONLY_SOME
        answer.etag = str(head)
        if any(tag.value in (str(head), "*") for tag in request.if_none_match or ()):
            answer.set_status(304)
            answer.body = None
        return answer

    def _head(self, dataset: DatasetId) -> tuple[Multihash | None, dict[str, str]]:
        """Return the head, and the headers that say what the node offers of the dataset."""
        blobs, offered = self._datasets.blobs, {}
        head = self._datasets.refs.head(dataset)
        if next(blobs.names(dataset, ObjectKind.SIGNATURE), None) is not None:
            offered[SIGNATURES_HEADER] = SIGNATURES
        if head is not None and blobs.download_url(dataset, ObjectKind.BLOCK, head) is not None:
            offered[DIRECT_HEADER] = DIRECT
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
        target = UploadTarget(blobs=self._datasets.blobs, home=self._home, pushes=self._pushes, alias=name)
        upload = ExpectedUpload.of_object(target, dataset, kind, hashed)
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
    """Leave an archive where the push finds it."""
    del file


def _not_found(text: str) -> web.Response:
    body = json.dumps({"message": text}, separators=(",", ":")).encode()
    return web.Response(body=body, status=404, content_type="application/json")
