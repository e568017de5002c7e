"""Webhooks over gRPC, for the command `odf webhook`. Callers are trusted."""

import secrets
from collections.abc import Iterable
from typing import Final

import grpc
from yarl import URL

from odf_common.errors import InvalidInput, Unavailable
from odf_common.ports.store import Catalog, require_entry
from odf_common.proto.odf.node.v1 import webhooks_pb2 as pb
from odf_common.proto.odf.node.v1 import webhooks_pb2_grpc
from odf_sync.webhooks.deliveries import Deliveries
from odf_sync.webhooks.receiver import parse_receiver, request_target
from odf_sync.webhooks.sender import WebhookSender
from odf_sync.webhooks.webhook_store import HookEvent, Webhook
from odf_sync.webhooks.webhook_targets import WebhookTargets, target_in

NAME: Final = pb.DESCRIPTOR.services_by_name["Webhooks"].full_name
ED25519, HMAC_SHA256 = "ed25519", "hmac-sha256"
ALGORITHMS: Final = (ED25519, HMAC_SHA256)
ID_BYTES: Final = 8
WEBHOOK_SECRET_BYTES: Final = 32


class WebhookServicer(webhooks_pb2_grpc.WebhooksServicer):
    """Serves the commands that add, list and delete the webhooks of a node."""

    def __init__(
        self, deliveries: Deliveries, sender: WebhookSender, catalog: Catalog, targets: WebhookTargets
    ) -> None:
        """Add webhooks to the store of `deliveries`; their hosts must be within `networks`."""
        self._deliveries = deliveries
        self._store = deliveries.store
        self._sender = sender
        self._catalog = catalog
        self._networks = targets.networks
        self._targets = targets

    def AddWebhook(self, request: pb.AddWebhookRequest, _: grpc.ServicerContext) -> pb.AddWebhookReply:
        """Add a webhook; the current head is posted to it at once."""
        entry = require_entry(self._catalog, request.dataset)
        algorithm = request.algorithm or ED25519
        if algorithm not in ALGORITHMS:
            raise InvalidInput(where="algorithm", text=f"expected one of {', '.join(ALGORITHMS)}")
        url = parse_receiver(request.url)
        self._require_allowed(url)
        hook = Webhook(
            id=secrets.token_hex(ID_BYTES),
            dataset=entry.dataset_id,
            alias=entry.alias,
            url=request_target(url),
            events=_events(request.events),
            secret=secrets.token_urlsafe(WEBHOOK_SECRET_BYTES) if algorithm == HMAC_SHA256 else None,
            created_ms=self._deliveries.clock.now().ms,
        )
        item = self._item(hook)
        self._store.add(hook)
        self._sender.notice_change()
        return pb.AddWebhookReply(item=item, secret=hook.secret or "")

    def ListWebhooks(self, _request: pb.ListWebhooksRequest, _: grpc.ServicerContext) -> pb.ListWebhooksReply:
        """Return all webhooks."""
        return pb.ListWebhooksReply(webhooks=[self._item(hook) for hook in self._store.all()])

    def DeleteWebhook(
        self, request: pb.DeleteWebhookRequest, _: grpc.ServicerContext
    ) -> pb.DeleteWebhookReply:
        """Delete a webhook."""
        self._store.remove(request.id)
        self._sender.notice_change()
        return pb.DeleteWebhookReply()

    def CallWebhook(self, request: pb.CallWebhookRequest, _: grpc.ServicerContext) -> pb.CallWebhookReply:
        """Post one message to a target, once."""
        outcome = self._targets.post(
            target_in(request.target),
            request.payload,
            delivery=request.delivery_id,
            attempt=request.attempt,
            event=request.event_type,
        )
        return pb.CallWebhookReply(
            error=outcome.error, is_unwanted=outcome.is_unwanted, pause=outcome.pause_ms
        )

    def _require_allowed(self, url: URL) -> None:
        """Raise `AddressForbidden` or `Unavailable` unless the host resolves to addresses that the node may connect to.

        This only gives early feedback: addresses may change, so each connection is checked again.
        """
        assert url.raw_host is not None
        assert url.port is not None
        try:
            self._networks.addresses(url.raw_host, url.port)
        except (OSError, UnicodeError) as error:
            raise Unavailable(what=url.raw_host, why="its host name cannot be resolved") from error

    def _item(self, hook: Webhook) -> pb.WebhookItem:
        delivery, signer = hook.delivery, self._deliveries.signer(hook)
        entry = self._catalog.by_id(hook.dataset)
        return pb.WebhookItem(
            id=hook.id,
            dataset=hook.alias if entry is None else entry.alias,
            url=hook.url,
            events=sorted(hook.events),
            algorithm=signer.algorithm,
            key=signer.key_id,
            created=hook.created_ms,
            state=delivery.state.value,
            event_id=delivery.event_id,
            delivered=delivery.delivered_ms,
            failures=delivery.failures,
            next_attempt=delivery.next_ms if delivery.is_pending and delivery.failures else None,
            error=delivery.error,
        )


def _events(names: Iterable[str]) -> frozenset[HookEvent]:
    try:
        return frozenset(map(HookEvent, names)) or frozenset(HookEvent)
    except ValueError as error:
        choices = ", ".join(HookEvent)
        raise InvalidInput(where="event", text=f"expected {choices}") from error
