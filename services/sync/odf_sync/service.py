"""Assembles the sync service: copies over gRPC, datasets over HTTP, and webhooks."""

import threading
from collections.abc import Callable
from functools import partial

from odf_common.adapters.grpc.peer_credentials import PeerCredentials
from odf_common.adapters.local.key_files import node_key
from odf_common.adapters.local.secret_key_files import load_secret_keys
from odf_common.ports.bus import COORDINATOR_REPLIES
from odf_common.resources.registry import ACCOUNT, WEBHOOK_TARGET
from odf_common.service.audit import Audit
from odf_common.service.connections import trusted_networks
from odf_common.service.environment import Environment
from odf_common.service.node_home import require_tenancy
from odf_common.service.protection import peer_credentials, require_protected
from odf_common.service.reconcile_loop import Controller, ReconcileLoop
from odf_common.service.remote_resources import RemoteResources
from odf_common.service.request_reply import Replies
from odf_common.service.run import Service
from odf_common.service.settings import MULTI_TENANT, Settings
from odf_sync.access.access_servicer import AccessServicer
from odf_sync.access.access_store import AccessStore
from odf_sync.access.account_resources import AccountAnnouncements, AccountController, AccountResources
from odf_sync.access.directory import Directory
from odf_sync.access.remote_login import RemoteLogins
from odf_sync.access.resource_rights import GrantWatch
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
    served = endpoints(env, settings, authorizer, replies, heads, peers=peers)
    sender, webhooks, targets = _webhooks(env, heads)
    logins = RemoteLogins(directory.store)
    announcements = _announcements(settings, directory)
    return Service(
        name="sync",
        subscriptions=(replies.subscription(COORDINATOR_REPLIES), heads.subscription()),
        grpc=partial(
            register,
            copies=_copies(env, replies, logins, Privacy(directory)),
            access=AccessServicer(directory, logins, env.catalog, announcements),
            webhooks=webhooks,
        ),
        grpc_address=settings.sync_grpc,
        uses=("coordinator", "ingest"),
        background=(
            partial(serve_http, authorizer, served, settings, audit=audit),
            heads.end_streams,
            peers.ingest.end_waits,
            sender.run,
            sender.end,
            *_resource_work(env, targets, directory, announcements),
            partial(keep_swept, settings.home),
        ),
        audit=audit,
    )


def _peers(settings: Settings) -> Peers:
    ingest = settings.required("ingest_grpc")
    return Peers(
        ingest=IngestClient(ingest, credentials=peer_credentials(settings, ingest)),
        resources=ResourceClient(*_coordinator(settings)),
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


def _resource_work(
    env: Environment, targets: WebhookTargets, directory: Directory, announcements: AccountAnnouncements
) -> tuple[Callable[[threading.Event], None], ...]:
    """Return the functions that carry resources out, and rights and accounts between sync and the coordinator."""
    coordinator, credentials = _coordinator(env.settings)
    accounts = AccountController(store=directory.store, catalog=env.catalog)
    controllers: dict[str, Controller] = {str(WEBHOOK_TARGET.uri): targets, str(ACCOUNT.uri): accounts}
    return (
        ReconcileLoop(RemoteResources("sync", coordinator, credentials), controllers).run,
        GrantWatch(directory.rights, coordinator, credentials).run,
        announcements.run,
    )


def _announcements(settings: Settings, directory: Directory) -> AccountAnnouncements:
    return AccountAnnouncements(store=directory.store, resources=AccountResources(*_coordinator(settings)))


def _coordinator(settings: Settings) -> tuple[str, PeerCredentials]:
    address = settings.required("coordinator_grpc")
    return address, peer_credentials(settings, address)
