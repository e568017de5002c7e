"""Pushes to Source resources: `POST /source/v1alpha1/source/<ref>/ingest` (RFC-018). Runs of flows commit them."""

import asyncio
from collections.abc import Iterator
from typing import Final

from aiohttp import web

from odf_common.codec.times import time_of
from odf_common.errors import InvalidInput
from odf_common.proto.odf.node.v1 import push_pb2, resources_pb2
from odf_common.resources.registry import SOURCE
from odf_sync.http.endpoints import Endpoint
from odf_sync.http.ingest_client import PushRefused
from odf_sync.http.ingest_routes import (
    BodyDecoder,
    IngestRoutes,
    Wait,
    in_json,
    push_request,
    say_nothing_yet,
    wait_of,
)
from odf_sync.http.resource_client import ResourceClient, ResourceProblem
from odf_sync.http.resource_routes import OF_ACCOUNT, ResourceRoutes

PUSH_PATH: Final = "/source/v1alpha1/source/{ref}/ingest"
RESOURCE_GONE: Final = "ResourceGone"


class SourceIngestRoutes:
    """Handlers of pushes to sources."""

    def __init__(self, pushes: IngestRoutes, resources: ResourceRoutes, client: ResourceClient) -> None:
        """Receive bodies as `pushes` does, for callers that `resources` knows."""
        self._pushes, self._resources, self._client = pushes, resources, client

    def endpoints(self) -> Iterator[Endpoint]:
        """Yield the endpoints."""
        yield Endpoint(
            method="POST",
            path=PUSH_PATH,
            handler=in_json(self._push),
            summary="Push records to a Source, for runs of flows to commit.",
            query={
                **OF_ACCOUNT,
                "wait": "no, or absent: answer 202 with the receipt once the push is accepted",
            },
            body="application/x-ndjson",
            statuses=(202, 400, 401, 403, 404, 408, 409, 410, 413, 415, 429, 503, 507),
            expect_handler=say_nothing_yet,
        )

    async def _push(self, request: web.Request) -> web.Response:
        named = push_pb2.PushRequest()
        await self._name_source(request, named)
        if wait_of(request) is Wait.COMMIT:
            text = "a run of a flow commits the push; its time is not known"
            raise InvalidInput(where="parameter wait", text=text)
        push = push_request(request)
        push.MergeFrom(named)
        decoder = BodyDecoder(request.headers.get("Content-Encoding", ""))
        receipt = await self._pushes.accept(request, push, decoder, self._name_source)
        plain = {
            "receipt": receipt.id,
            "source": receipt.source_name,
            "state": receipt.state,
            "acceptedAt": str(time_of(receipt.accepted_at)),
            "size": receipt.size,
            "records": receipt.records,
        }
        return web.json_response(plain, status=202)

    async def _name_source(self, request: web.Request, push: push_pb2.PushRequest) -> None:
        """Put the source of the path into a push; raises `PushRefused` unless the caller may push to it."""
        try:
            wanted = resources_pb2.GetResourceRequest(
                subject=self._resources.subject_of(request, is_writing=True),
                type=str(SOURCE.uri),
                ref=request.match_info["ref"],
                account=request.query.get("account", ""),
            )
            reply = await asyncio.to_thread(self._client.get, wanted)
        except ResourceProblem as problem:
            status = web.HTTPGone.status_code if problem.error == RESOURCE_GONE else problem.status
            raise PushRefused(
                status=status, error=problem.error, text=problem.text, hint=problem.hint
            ) from problem
        push.source = reply.json
