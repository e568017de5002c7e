"""The HTTP server: combines the routes, and serves them."""

import asyncio
import ssl
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import structlog
from aiohttp import web

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
from odf_sync.http.connections import Connections
from odf_sync.http.endpoints import Endpoint, application
from odf_sync.http.event_routes import EventRoutes
from odf_sync.http.head_watch import HeadWatch
from odf_sync.http.ingest_client import IngestClient
from odf_sync.http.ingest_routes import ingest_routes
from odf_sync.http.list_routes import ListRoutes
from odf_sync.http.open_pushes import OpenPushes
from odf_sync.http.openapi import with_description
from odf_sync.http.reads.read_routes import ReadRoutes
from odf_sync.http.simple_protocol.dataset_routes import SimpleProtocol
from odf_sync.http.smart_protocol.routes import SmartProtocol
from odf_sync.search.own_datasets import OwnDatasets

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
    """Serve until stopped, over https if that is configured; an address that is in use is retried and logged.

    Raises `Unavailable` unless an address is configured.
    """
    if not are_users_known():
        log.warning(USERS_UNKNOWN)
    address, tls, rate = settings.required("sync_http"), http_tls(settings), settings.http_requests_per_second
    proxies = Networks.parse(settings.http_trusted_proxies)
    app = partial(
        application, authorizer, tuple(served), audit=audit, rate=RequestRate(rate), proxies=proxies
    )
    header_seconds = settings.http_header_timeout_ms / 1000
    keep_trying(lambda: asyncio.run(_serve(app(), address, stop, tls, Connections(header_seconds))), stop)


def endpoints(
    datasets: NodeDatasets,
    settings: Settings,
    authorizer: Authorizer,
    replies: Replies,
    heads: HeadWatch,
    *,
    ingest: IngestClient,
) -> tuple[Endpoint, ...]:
    """Return all that the node serves over HTTP."""
    pushes = OpenPushes()
    rooms = (
        AccountRoutes(authorizer, datasets.catalog, public_url=settings.public_url),
        ListRoutes(OwnDatasets(datasets=datasets, in_bucket=settings.store is not None), authorizer),
        SimpleProtocol(datasets, settings.home, pushes),
        SmartProtocol(datasets, settings, replies, authorizer, pushes),
        EventRoutes(datasets.states, authorizer, heads),
        ingest_routes(settings, ingest),
        ReadRoutes(datasets),
    )
    return with_description(authorizer, (endpoint for room in rooms for endpoint in room.endpoints()))


async def _serve(
    app: web.Application,
    address: str,
    stop: threading.Event,
    tls: ssl.SSLContext | None,
    connections: Connections,
) -> None:
    count_malformed_requests()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(HTTP_THREADS, "http"))
    host, _, port = address.rpartition(":")
    runner = web.AppRunner(
        app,
        access_log=None,
        lingering_time=UNREAD_BODY_SECONDS,
        auto_decompress=False,  # see `content_encoding.py`
    )
    await runner.setup()
    assert runner.server is not None
    try:
        listener = await connections.listen(runner.server, host, int(port), tls)
    except OSError as error:
        await runner.cleanup()
        raise Unavailable(what=f"address {host}:{port}", why=error.strerror or str(error)) from error
    await asyncio.to_thread(stop.wait)
    listener.close()
    await runner.cleanup()
