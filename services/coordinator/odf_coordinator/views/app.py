"""Read-only views, `python -m odf_coordinator.views`: heads, watermarks, lag and throughput over HTTP.

They run in a separate Faust worker, which takes no part in commits. It has no stored tables: it reads the chains when
its partitions are assigned and follows notifications from then on, so nothing has to be recovered.

The views show all datasets, without access control. So they serve only programs on the same machine, as gRPC without
TLS does, unless `ODF_LISTEN_UNPROTECTED` states that only trusted programs can connect.
"""

import asyncio
import logging as standard_logging
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import faust
import structlog
from aiohttp import web
from faust.web import Request, Response, View

from odf_common.adapters.kafka.admin import KafkaTopics
from odf_common.adapters.kafka.client_config import ANSWER_MS, CONNECT_MS, SESSION_TIMEOUT_MS
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.durable import keep_files_private
from odf_common.adapters.local.key_files import has_dataset_key
from odf_common.adapters.malformed_requests import count_malformed_requests
from odf_common.adapters.redis import RedisStateCache
from odf_common.codec.envelopes import decode
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.errors import InvalidInput, OdfError
from odf_common.ports.bus import NOTIFICATIONS
from odf_common.service import logging, metrics
from odf_common.service.connections import kafka_cluster, redis_connection, stores
from odf_common.service.protection import require_protected, why_another_user, why_not_local
from odf_common.service.settings import Settings, load
from odf_coordinator.catalog.datasets import Datasets
from odf_coordinator.commit.head_publisher import committed_message
from odf_coordinator.views.credentials import credentials_for
from odf_coordinator.views.table import DatasetTable

log = structlog.stdlib.get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

NOT_LOCAL: Final = "the views are for programs of the node's user on this machine"


def datasets_of(settings: Settings) -> Datasets:
    """Return the node's datasets, read-only."""
    blobs, refs = stores(settings)
    cache = RedisStateCache(redis_connection(settings)) if settings.redis else NoStateCache()
    states = ChainStates(blobs, refs, cache)
    return Datasets(
        catalog=LocalCatalog(settings.home),
        states=states,
        blobs=blobs,
        refs=refs,
        has_key=partial(has_dataset_key, settings.home / "keys"),
    )


def read_heads(table: DatasetTable, datasets: Datasets) -> None:
    """Load the heads of all datasets into the table."""
    for handle in datasets.all():
        try:
            table.apply_head(str(handle.id), committed_message(handle.state, alias=handle.alias), now=None)
            table.set_rejects(str(handle.id), datasets.rejects(handle))
        except Exception:
            # One bad dataset must not hide the others: it would fail again at every start.
            log.exception("cannot show dataset", **handle.log_facts)


def make_app(settings: Settings, table: DatasetTable, datasets: Datasets) -> faust.App:
    """Return the Faust worker: one agent for notifications, and two pages."""
    address = settings.required("views_http")
    require_protected(settings, "ODF_VIEWS_HTTP", address)
    host, _, port = address.rpartition(":")
    cluster = kafka_cluster(settings)
    app = faust.App(
        # Each process needs every notification, so each has its own group, used only once.
        f"{settings.kafka_prefix}odf-views-{uuid.uuid4().hex}",
        broker=[f"kafka://{broker}" for broker in cluster.bootstrap.split(",")],
        broker_credentials=credentials_for(cluster),
        broker_request_timeout=ANSWER_MS / 1000,
        broker_session_timeout=SESSION_TIMEOUT_MS / 1000,
        broker_heartbeat_interval=SESSION_TIMEOUT_MS / 3000,
        consumer_auto_offset_reset="latest",
        datadir=settings.home / "views",
        store="memory://",
        stream_wait_empty=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_application_options={} if settings.listen_unprotected else {"middlewares": [local_only]},
        web_bind=host,
        web_host=host,
        web_port=int(port),
        worker_redirect_stdouts=False,
    )
    _follow(app, settings, table, datasets)
    _serve(app, table)
    return app


@web.middleware
async def local_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse a request unless it certainly comes from a program of the node's user on this machine."""
    transport = request.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    why = why_not_local(
        peer=None if peer is None else str(peer[0]), host=request.host, headers=request.headers
    )
    if why is None and transport is not None:
        why = why_another_user(peer, transport.get_extra_info("sockname"))
    if why is not None:
        return web.json_response({"message": f"{NOT_LOCAL}: {why}"}, status=403)
    return await handler(request)


def _follow(app: faust.App, settings: Settings, table: DatasetTable, datasets: Datasets) -> None:
    notifications = app.topic(
        settings.kafka_prefix + NOTIFICATIONS,
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
    )

    @app.agent(notifications)
    async def follow(stream: faust.types.StreamT[Any]) -> None:
        async for key, value in stream.items():
            try:
                table.see(decode(bytes(key), bytes(value)), time.monotonic())
            except InvalidInput as error:
                log.warning("cannot read notification", why=str(error))
            except Exception:
                log.exception("cannot show notification", key=bytes(key or b"").decode(errors="replace"))

    @app.on_partitions_assigned.connect
    async def catch_up(*_: Any, **__: Any) -> None:  # noqa: ANN401 - arguments of the signal
        # Notifications sent before this are covered by the chains.
        await asyncio.get_running_loop().run_in_executor(None, read_heads, table, datasets)
        log.info("views follow")


def _serve(app: faust.App, table: DatasetTable) -> None:
    @app.page("/datasets")
    async def datasets(self: View, request: Request) -> Response:
        return self.json(list(table.rows(time.monotonic())))

    @app.page("/health")
    async def health(self: View, request: Request) -> Response:
        return self.json({"status": "SERVING"})


async def reachable(broker: str) -> None:
    """Wait until a broker is listening, because Faust gives up at the first refused connection."""
    host, _, port = broker.rpartition(":")
    while True:
        try:
            async with asyncio.timeout(CONNECT_MS / 1000):
                _, writer = await asyncio.open_connection(host, int(port))
        except (OSError, TimeoutError):
            await asyncio.sleep(0.2)
            continue
        writer.close()
        return


async def run(app: faust.App, settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. The process exits at once then, because it has nothing to save."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, os._exit, 0)
    cluster = kafka_cluster(settings)
    await reachable(cluster.bootstrap.split(",")[0])
    # Faust subscribes only to topics that exist when it starts.
    topics = KafkaTopics(cluster, prefix=settings.kafka_prefix)
    await loop.run_in_executor(None, topics.ensure_topics, (NOTIFICATIONS,))
    await app.start()
    await app.wait_until_stopped()


def main() -> None:
    """Start the views."""
    logging.configure("info", service="views")
    try:
        keep_files_private()
        settings = load()
        logging.configure(settings.log_level, service="views")
        # While the broker is away it logs a hundred lines a second.
        standard_logging.getLogger("aiokafka").setLevel(standard_logging.CRITICAL)
        table, datasets = DatasetTable(), datasets_of(settings)
        read_heads(table, datasets)
        app = make_app(settings, table, datasets)
    except OdfError as error:
        log.error("cannot start", why=str(error), advice=error.advice())  # noqa: TRY400 - no traceback is needed
        raise SystemExit(1) from error
    count_malformed_requests()
    metrics.expose(settings)
    asyncio.run(run(app, settings))
