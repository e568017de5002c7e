"""The HTTP server: datasets by the Simple Transfer Protocol (spec; wire-facts §8.2), and pushes (`ingest_routes`).

A block is sent as the committed bytes, never encoded again.
"""

import asyncio
import threading
from functools import partial
from typing import Final

from aiohttp import web

from odf_common.errors import InvalidInput, NotFound, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import NAMED_BY_CONTENT, CatalogEntry, ObjectKind
from odf_common.service.environment import Environment
from odf_common.service.retry import keep_trying
from odf_sync.ingest_routes import ingest_routes

HEAD: Final = "head"
LINGERING_SECONDS: Final = (
    2.0  # in which the rest of a refused body is read, so that its client reads the answer
)
MISSING: Final = {
    ObjectKind.BLOCK: "Block does not exist: {name}",
    ObjectKind.DATA: "Object does not exist: {name}",
    ObjectKind.CHECKPOINT: "Object does not exist: {name}",
}


class SimpleProtocol:
    """Handlers for the routes of a dataset; names are not case-sensitive."""

    def __init__(self, env: Environment) -> None:
        """Serve every dataset of the node."""
        self._env = env

    def application(self) -> web.Application:
        """Return the routes: a dataset's name is one segment, or two with an account."""
        app = web.Application()
        app.router.add_get("/info", self._info)
        for base in ("/{dataset}", "/{account}/{dataset}"):
            app.router.add_get(f"{base}/refs/{{ref}}", self._ref)
            for kind in NAMED_BY_CONTENT:
                app.router.add_get(f"{base}/{kind}/{{name}}", partial(self._object, kind))
        return app

    async def _info(self, _: web.Request) -> web.Response:
        return web.json_response({"isMultiTenant": False})

    async def _ref(self, request: web.Request) -> web.Response:
        entry = self._entry(request)
        head = await asyncio.to_thread(self._env.refs.head, entry.dataset_id)
        if request.match_info["ref"] != HEAD or head is None:
            return web.json_response(
                {"message": f"Reference does not exist: {request.match_info['ref']}"}, status=404
            )
        return web.Response(text=str(head))

    async def _object(self, kind: ObjectKind, request: web.Request) -> web.StreamResponse:
        entry = self._entry(request)
        try:
            name = Multihash.parse(request.match_info["name"])
        except InvalidInput as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        try:
            path = await asyncio.to_thread(self._env.blobs.local_path, entry.dataset_id, kind, name)
        except NotFound:
            return web.json_response({"message": MISSING[kind].format(name=name)}, status=404)
        return web.FileResponse(path, headers={"Content-Type": "application/octet-stream"})

    def _entry(self, request: web.Request) -> CatalogEntry:
        account, dataset = request.match_info.get("account"), request.match_info["dataset"]
        entry = self._env.catalog.by_alias(f"{account}/{dataset}" if account else dataset)
        if entry is None:
            raise web.HTTPNotFound(text="")
        return entry


def serve_http(env: Environment, stop: threading.Event) -> None:
    """Serve until stopped; an address that is in use is retried and logged."""
    keep_trying(lambda: asyncio.run(_serve(env, stop)), stop)


async def _serve(env: Environment, stop: threading.Event) -> None:
    host, _, port = env.settings.required("sync_http").rpartition(":")
    app = SimpleProtocol(env).application()
    ingest_routes(env).add_to(app)
    runner = web.AppRunner(app, access_log=None, lingering_time=LINGERING_SECONDS)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, int(port)).start()
    except OSError as error:
        await runner.cleanup()
        raise Unavailable(what=f"address {host}:{port}", why=error.strerror or str(error)) from error
    await asyncio.to_thread(stop.wait)
    await runner.cleanup()
