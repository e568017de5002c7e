"""The HTTP server: combines the routes, describes them in `/openapi.json` (OpenAPI 3.1), and serves them."""

import asyncio
import json
import re
import ssl
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Final

import structlog
from aiohttp import hdrs, web

from odf_common.adapters.local.process_files import Staging
from odf_common.adapters.malformed_requests import count_malformed_requests
from odf_common.adapters.networks import Networks
from odf_common.adapters.socket_users import are_users_known
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import Unavailable
from odf_common.service.audit import Audit
from odf_common.service.consumer.retry import keep_trying
from odf_common.service.protection import USERS_UNKNOWN, http_tls
from odf_common.service.request_reply import Replies
from odf_common.service.settings import Settings
from odf_sync.access.rate_limits import RequestRate
from odf_sync.http.account_routes import AccountRoutes
from odf_sync.http.authorization import Authorizer
from odf_sync.http.connections import listen
from odf_sync.http.endpoints import Endpoint, application
from odf_sync.http.head_events import EventRoutes, HeadWatch
from odf_sync.http.ingest_client import IngestClient
from odf_sync.http.ingest_routes import IngestRoutes
from odf_sync.http.object_uploads import OpenPushes
from odf_sync.http.read_routes import ListRoutes, ReadRoutes
from odf_sync.http.resource_client import ResourceClient
from odf_sync.http.resource_graphql import GraphqlRoutes
from odf_sync.http.resource_routes import ResourceRoutes
from odf_sync.http.schema_routes import SchemaRoutes
from odf_sync.http.simple_protocol import SimpleProtocol
from odf_sync.http.smart_routes import SmartProtocol
from odf_sync.http.source_ingest_routes import SourceIngestRoutes
from odf_sync.search import OwnDatasets

JSON: Final = "application/json"
PUBLIC_KEYS: Final = "/.well-known/odf-jwks.json"
JWK_SET: Final = "application/jwk-set+json"
CACHED: Final = {hdrs.CACHE_CONTROL: "public, max-age=300"}
IN_PATH: Final = re.compile(r"{(\w+)}")
ANY_ENDPOINT: Final = (
    400,
    429,
    503,
)  # a malformed header; too many of a caller, of all, or accounts unreadable
OF_DATASETS: Final = (401, 403, 404)
REFUSAL: Final = {"type": "object", "required": ["message"], "properties": {"message": {"type": "string"}}}
OPTIONAL_TOKEN: Final[list[dict[str, list[str]]]] = [{}, {"token": []}]
Json = dict[str, Any]


def with_description(authorizer: Authorizer, endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    """Return the endpoints, and one more for the OpenAPI description of them all."""

    async def send(_: web.Request) -> web.Response:
        return web.json_response(description)

    own = Endpoint(method="GET", path="/openapi.json", handler=send, summary="This description.")
    served = (*endpoints, own)
    description = describe(authorizer, served)
    return served


def public_keys(settings: Settings) -> Endpoint:
    """Return the endpoint with the public keys to encrypt secrets with, as a JWK set (RFC 7517)."""

    async def send(_: web.Request) -> web.Response:
        # Imported when it is first asked for, as it takes a tenth of a second and few clients encrypt.
        from odf_common.adapters.local.secret_key_files import load_secret_keys  # noqa: PLC0415

        keys = await asyncio.to_thread(load_secret_keys, settings.home, settings.resource_keys_file)
        body = json.dumps(keys.public()).encode()
        return web.Response(body=body, content_type=JWK_SET, headers=CACHED)

    return Endpoint(
        method="GET",
        path=PUBLIC_KEYS,
        handler=send,
        summary="The public keys to encrypt secrets of resources to: a JWK set, the preferred key first.",
        media_type=JWK_SET,
    )


def describe(authorizer: Authorizer, endpoints: Iterable[Endpoint]) -> Json:
    """Return the OpenAPI description of the endpoints."""
    paths: Json = {}
    for endpoint in endpoints:
        for path in endpoint.full_paths(authorizer):
            paths.setdefault(path, {})[endpoint.method.lower()] = _operation(path, endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Open Data Fabric node", "version": version("odf-common")},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(path: str, endpoint: Endpoint) -> Json:
    parameters = [_parameter(name, "path", "", is_required=True) for name in IN_PATH.findall(path)]
    parameters += [
        _parameter(name, "query", about, is_required=False) for name, about in endpoint.query.items()
    ]
    statuses = {*endpoint.statuses, *ANY_ENDPOINT, *(OF_DATASETS if endpoint.action is not None else ())}
    operation: Json = {
        "summary": endpoint.summary,
        "parameters": parameters,
        "responses": {str(status): _response(status, endpoint) for status in sorted(statuses)},
        "security": OPTIONAL_TOKEN,
    }
    if endpoint.body:
        bodies = (endpoint.body, *endpoint.other_bodies)
        operation["requestBody"] = {"content": {one: {"schema": _body(endpoint.fields)} for one in bodies}}
    return operation


def _body(fields: tuple[str, ...]) -> Json:
    if not fields:
        return {"type": "string", "format": "binary"}
    properties = {name: {"type": "string"} for name in fields}
    return {"type": "object", "required": [*fields], "properties": properties}


def _response(status: int, endpoint: Endpoint) -> Json:
    content: Json = {}
    if status >= HTTPStatus.BAD_REQUEST:
        content = {
            media_type: {"schema": REFUSAL} if media_type == JSON else {}
            for media_type in endpoint.refusal_media_types
        }
    elif status >= HTTPStatus.OK and status != HTTPStatus.NOT_MODIFIED and endpoint.media_type:
        content = {one: {} for one in (endpoint.media_type, *endpoint.other_media_types)}
    return {"description": HTTPStatus(status).phrase} | ({"content": content} if content else {})


def _parameter(name: str, place: str, about: str, *, is_required: bool) -> Mapping[str, object]:
    plain = {"name": name, "in": place, "required": is_required, "schema": {"type": "string"}}
    return plain | ({"description": about} if about else {})


log = structlog.stdlib.get_logger(__name__)

HTTP_THREADS: Final = 64  # reads and writes of the store at a time; a silent one holds each for some 16 s
# The rest of a refused body is read for this long, so that its client reads the answer.
UNREAD_BODY_SECONDS: Final = 2.0


def serve_http(
    authorizer: Authorizer,
    served: Iterable[Endpoint],
    settings: Settings,
    stop: threading.Event,
    *,
    audit: Audit | None = None,
) -> None:
    """Serve until `stop` is set, over HTTPS if configured. An address that is in use is logged and retried.

    Raises `Unavailable` if no address is configured.
    """
    if not are_users_known():
        log.warning(USERS_UNKNOWN)
    address, tls, rate = settings.required("sync_http"), http_tls(settings), settings.http_requests_per_second
    proxies = Networks.parse(settings.http_trusted_proxies)
    app = partial(
        application, authorizer, tuple(served), audit=audit, rate=RequestRate(rate), proxies=proxies
    )
    header_seconds = settings.http_header_timeout_ms / 1000
    keep_trying(lambda: asyncio.run(_serve(app(), address, stop, tls, header_seconds)), stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """Clients of the services that HTTP requests are passed to."""

    ingest: IngestClient
    resources: ResourceClient


def endpoints(
    datasets: NodeDatasets,
    settings: Settings,
    authorizer: Authorizer,
    replies: Replies,
    heads: HeadWatch,
    *,
    peers: Peers,
) -> tuple[Endpoint, ...]:
    """Return all endpoints of the node."""
    pushes = OpenPushes()
    resources = ResourceRoutes(peers.resources, authorizer)
    ingest = IngestRoutes(
        ingest=peers.ingest,
        staging=Staging(settings.home),
        max_bytes=settings.http_ingest_max_bytes,
        public_url=settings.public_url,
    )
    rooms = (
        AccountRoutes(authorizer, datasets.catalog, public_url=settings.public_url),
        ListRoutes(OwnDatasets(datasets=datasets, in_bucket=settings.store is not None), authorizer),
        SimpleProtocol(datasets, settings.home, pushes),
        SmartProtocol(datasets, settings, replies, authorizer, pushes),
        EventRoutes(datasets.states, authorizer, heads),
        ingest,
        SourceIngestRoutes(ingest, resources, peers.resources),
        ReadRoutes(datasets),
        SchemaRoutes(peers.resources),
        resources,
        GraphqlRoutes(peers.resources, resources.subject_of),
    )
    served = (endpoint for room in rooms for endpoint in room.endpoints())
    return with_description(authorizer, (public_keys(settings), *served))


async def _serve(
    app: web.Application,
    address: str,
    stop: threading.Event,
    tls: ssl.SSLContext | None,
    header_seconds: float,
) -> None:
    count_malformed_requests()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(HTTP_THREADS, "http"))
    host, _, port = address.rpartition(":")
    runner = web.AppRunner(
        app,
        access_log=None,
        lingering_time=UNREAD_BODY_SECONDS,
        auto_decompress=False,  # `ingest_routes` decompresses
    )
    await runner.setup()
    assert runner.server is not None
    try:
        listener = await listen(runner.server, host, int(port), tls, header_seconds)
    except OSError as error:
        await runner.cleanup()
        raise Unavailable(what=f"address {host}:{port}", why=error.strerror or str(error)) from error
    await asyncio.to_thread(stop.wait)
    listener.close()
    await runner.cleanup()
