"""Assembles the sync service: copies over gRPC, datasets over HTTP, and webhooks."""

from functools import partial

from odf_common.adapters.local.key_files import node_key
from odf_common.ports.bus import COORDINATOR_REPLIES
from odf_common.service.audit import Audit
from odf_common.service.connections import trusted_networks
from odf_common.service.environment import Environment
from odf_common.service.node_home import require_tenancy
from odf_common.service.protection import peer_credentials, require_protected
from odf_common.service.request_reply import Replies
from odf_common.service.run import Service
from odf_common.service.settings import MULTI_TENANT
from odf_sync.access.access_servicer import AccessServicer
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.remote_login import RemoteLogins
from odf_sync.grpc_servicer import Servicer, register
from odf_sync.http.authorization import Authorizer
from odf_sync.http.head_events import HeadWatch
from odf_sync.http.ingest_client import IngestClient
from odf_sync.http.server import endpoints, serve_http
from odf_sync.search import OwnDatasets, Search
from odf_sync.transfer.local_copy import Privacy
from odf_sync.transfer.partial_files import keep_swept
from odf_sync.webhooks.deliveries import Deliveries
from odf_sync.webhooks.sender import WebhookSender
from odf_sync.webhooks.webhook_servicer import WebhookServicer
from odf_sync.webhooks.webhook_store import WebhookStore


def build(env: Environment) -> Service:
    """Build the service; raises `Unprotected` and `TenancyChanged` for settings that would expose the node."""
    settings = env.settings
    require_protected(settings, "ODF_SYNC_HTTP", settings.required("sync_http"))
    require_tenancy(settings)
    replies = Replies(env.bus)
    directory = Directory(
        AccessStore(settings.home),
        is_multi_tenant=settings.tenancy == MULTI_TENANT,
        datasets=env,
        clock=env.clock,
    )
    heads = HeadWatch()
    authorizer = Authorizer(catalog=env.catalog, local_writers=settings.http_ingest, directory=directory)
    audit = Audit()
    address = settings.required("ingest_grpc")
    ingest = IngestClient(address, credentials=peer_credentials(settings, address))
    served = tuple(endpoints(env, settings, authorizer, replies, heads, ingest=ingest))
    sender, webhooks = _webhooks(env, heads)
    logins = RemoteLogins(directory.store)
    return Service(
        name="sync",
        subscriptions=(replies.subscription(COORDINATOR_REPLIES), heads.subscription()),
        grpc=partial(
            register,
            copies=_copies(env, replies, logins, Privacy(directory)),
            access=AccessServicer(directory, logins, env.catalog),
            webhooks=webhooks,
        ),
        grpc_address=settings.sync_grpc,
        uses=("coordinator", "ingest"),
        background=(
            partial(serve_http, authorizer, served, settings, audit=audit),
            heads.end_streams,
            ingest.end_waits,
            sender.run,
            sender.end,
            partial(keep_swept, settings.home),
        ),
        audit=audit,
    )


def _copies(env: Environment, replies: Replies, logins: RemoteLogins, privacy: Privacy) -> Servicer:
    own = OwnDatasets(datasets=env, in_bucket=env.settings.store is not None)
    return Servicer(
        datasets=env,
        settings=env.settings,
        replies=replies,
        logins=logins,
        privacy=privacy,
        search=Search(own=own, settings=env.settings, token_for=logins.token),
    )


def _webhooks(env: Environment, heads: HeadWatch) -> tuple[WebhookSender, WebhookServicer]:
    home, networks = env.settings.home, trusted_networks(env.settings)
    deliveries = Deliveries(
        WebhookStore(home),
        env.catalog,
        env.states,
        node_key=partial(node_key, home / "keys"),
        clock=env.clock,
    )
    sender = WebhookSender(deliveries, heads, networks)
    return sender, WebhookServicer(deliveries, sender, env.catalog, networks)
