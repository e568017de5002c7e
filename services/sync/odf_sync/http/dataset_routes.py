"""Datasets over HTTP by the Simple Transfer Protocol (spec; wire-facts §8.2).

A block is sent as the committed bytes, never encoded again. Blocks and objects, named by hash, may be cached forever;
references must be revalidated.
"""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from typing import Final

from aiohttp import hdrs, web

from odf_common.errors import NotFound
from odf_common.identity.branch_names import HEAD
from odf_common.identity.did import DatasetId
from odf_common.ports.store import NAMED_BY_CONTENT, ObjectKind
from odf_common.service.environment import Environment
from odf_sync.access.rules import Action
from odf_sync.http.block_packs import AFTER, BlockPacks, hash_in_url
from odf_sync.http.connections import SentFile
from odf_sync.http.endpoints import Endpoint, dataset_of, name_in_path
from odf_sync.http.object_uploads import ObjectUploads
from odf_sync.http.open_pushes import OpenPushes
from odf_sync.transfer import pack_format

# Not `public`: a shared cache must not keep what was sent for one token.
FOR_EVER: Final = {
    hdrs.CONTENT_TYPE: "application/octet-stream",
    hdrs.CACHE_CONTROL: "max-age=31536000, immutable",
}
ASKED_AGAIN: Final = {hdrs.CACHE_CONTROL: "no-cache", pack_format.HEADER: pack_format.VERSION}
MISSING: Final = {
    ObjectKind.BLOCK: "Block does not exist: {name}",
    ObjectKind.DATA: "Object does not exist: {name}",
    ObjectKind.CHECKPOINT: "Object does not exist: {name}",
}


class SimpleProtocol:
    """Handlers for the routes of a dataset; names are not case-sensitive."""

    def __init__(self, env: Environment, pushes: OpenPushes | None = None) -> None:
        """Serve every dataset of the node; take objects for those that are being pushed, too."""
        self._env = env
        self._pushes = pushes or OpenPushes()
        self._packs = BlockPacks(env.blobs)
        self._uploads = ObjectUploads(env.blobs)

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
            media_type=pack_format.MEDIA_TYPE,
        )
        for kind in (ObjectKind.DATA, ObjectKind.CHECKPOINT):
            yield Endpoint(
                method="PUT",
                path=f"/{kind}/{{name}}",
                handler=partial(self._upload, kind),
                summary=f"Store one of the dataset's {kind}, if its bytes match its hash.",
                action=Action.CREATE,  # objects come before the head that makes a new dataset
                body="application/octet-stream",
                statuses=(200, 408, 411, 413),
                media_type="",
            )

    async def _ref(self, request: web.Request) -> web.Response:
        entry = dataset_of(request)
        head = await asyncio.to_thread(self._env.refs.head, entry.dataset_id)
        if request.match_info["ref"] != HEAD or head is None:
            # Clients of the other implementation know this text for an unknown reference.
            return _not_found("Internal error")
        answer = web.Response(text=str(head), headers=ASKED_AGAIN)
        answer.etag = str(head)
        if any(tag.value in (str(head), "*") for tag in request.if_none_match or ()):
            answer.set_status(304)
            answer.body = None
        return answer

    async def _object(self, kind: ObjectKind, request: web.Request) -> web.StreamResponse:
        entry, name = dataset_of(request), hash_in_url(request.match_info["name"])
        try:
            path = await asyncio.to_thread(self._env.blobs.local_path, entry.dataset_id, kind, name)
        except NotFound:
            return _not_found(MISSING[kind].format(name=name))
        return SentFile(path, headers=FOR_EVER)

    async def _upload(self, kind: ObjectKind, request: web.Request) -> web.Response:
        name = name_in_path(request)
        try:
            dataset: DatasetId | None = dataset_of(request).dataset_id
        except KeyError:
            dataset = self._pushes.dataset(name)
        if dataset is None:
            raise web.HTTPNotFound(text="")
        return await self._uploads.receive(request, dataset, kind, hash_in_url(request.match_info["name"]))


def _not_found(text: str) -> web.Response:
    body = json.dumps({"message": text}, separators=(",", ":")).encode()
    return web.Response(body=body, status=404, content_type="application/json")
