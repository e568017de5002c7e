"""Assembles the sync service: copies over gRPC, datasets over HTTP, and webhooks."""

from functools import partial

from odf_common.adapters.local.key_files import node_key
from odf_common.adapters.local.secret_key_files import load_secret_keys
from odf_common.ports.bus import COORDINATOR_REPLIES
from odf_common.resources.registry import WEBHOOK_TARGET
from odf_common.service.audit import Audit
from odf_common.service.connections import trusted_networks
from odf_common.service.environment import Environment
from odf_common.service.node_home import require_tenancy
from odf_common.service.protection import peer_credentials, require_protected
from odf_common.service.reconcile_loop import ReconcileLoop
from odf_common.service.remote_resources import RemoteResources
from odf_common.service.request_reply import Replies
from odf_common.service.run import Service
from odf_common.service.settings import MULTI_TENANT, Settings
from odf_sync.access.access_servicer import AccessServicer
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.remote_login import RemoteLogins
from odf_sync.grpc_servicer import Servicer, register
from odf_sync.http.authorization import Authorizer
from odf_sync.http.head_events import HeadWatch
from odf_sync.http.ingest_client import IngestClient
from odf_sync.http.resource_client import ResourceClient
from odf_sync.http.server import Peers, endpoints, serve_http
from odf_sync.search import OwnDatasets, Search
from odf_sync.transfer.local_copy import Privacy
from odf_sync.transfer.partial_files import keep_swept
from odf_sync.webhooks.deliveries import Deliveries
from odf_sync.webhooks.sender import WebhookPoster, WebhookSender
from odf_sync.webhooks.webhook_servicer import WebhookServicer
from odf_sync.webhooks.webhook_store import WebhookStore
from odf_sync.webhooks.webhook_targets import WebhookTargets


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
    peers = _peers(settings)
    ingest = peers.ingest
    served = endpoints(env, settings, authorizer, replies, heads, peers=peers)
    sender, webhooks, targets = _webhooks(env, heads)
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
            _controllers(settings, targets).run,
            partial(keep_swept, settings.home),
        ),
        audit=audit,
    )


def _peers(settings: Settings) -> Peers:
    ingest, coordinator = settings.required("ingest_grpc"), settings.required("coordinator_grpc")
    return Peers(
        ingest=IngestClient(ingest, credentials=peer_credentials(settings, ingest)),
        resources=ResourceClient(coordinator, peer_credentials(settings, coordinator)),
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


def _webhooks(env: Environment, heads: HeadWatch) -> tuple[WebhookSender, WebhookServicer, WebhookTargets]:
    settings, networks = env.settings, trusted_networks(env.settings)
    key = partial(node_key, settings.home / "keys")
    deliveries = Deliveries(
        WebhookStore(settings.home), env.catalog, env.states, node_key=key, clock=env.clock
    )
    poster = WebhookPoster(networks, env.clock)
    targets = WebhookTargets(
        networks=networks,
        poster=poster,
        secret_keys=lambda: load_secret_keys(settings.home, settings.resource_keys_file),
        node_key=key,
        clock=env.clock,
    )
    sender = WebhookSender(deliveries, heads, poster)
    return sender, WebhookServicer(deliveries, sender, env.catalog, targets), targets


def _controllers(settings: Settings, targets: WebhookTargets) -> ReconcileLoop:
    coordinator = settings.required("coordinator_grpc")
    resources = RemoteResources("sync", coordinator, peer_credentials(settings, coordinator))
    return ReconcileLoop(resources, {str(WEBHOOK_TARGET.uri): targets})
