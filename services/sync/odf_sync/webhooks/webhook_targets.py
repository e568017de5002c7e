"""WebhookTarget resources: whether a target can be posted to, and single posts that flows make (RFC-018)."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from odf_common.adapters.networks import Networks
from odf_common.errors import Unavailable
from odf_common.identity.keys import PrivateKey
from odf_common.ports.clock import Clock
from odf_common.resources.conditions import WEBHOOK_TARGET_STATUS
from odf_common.resources.secret_encryption import SecretPlace, decrypt_at_rest
from odf_common.resources.secret_keys import SecretKeys
from odf_sync.webhooks.deliveries import SECOND_MS, Signer, key_signer, secret_signer, signed_headers
from odf_sync.webhooks.receiver import parse_receiver, request_target
from odf_sync.webhooks.sender import WebhookPoster
from odf_sync.webhooks.webhook_store import Outcome

Json = dict[str, Any]
SECRET: Final = "spec.secret"  # noqa: S105 - a path
DELIVERY_ID, ATTEMPT, EVENT_TYPE = (
    "X-Webhook-Delivery-Id",
    "X-Webhook-Delivery-Attempt",
    "X-Webhook-Event-Type",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookTargets:
    """The controller of WebhookTarget resources, and the posts to them."""

    networks: Networks
    poster: WebhookPoster
    secret_keys: Callable[[], SecretKeys]
    node_key: Callable[[], PrivateKey]
    clock: Clock

    def reconcile(self, resource: Json) -> Mapping[str, Json | None]:
        """Check that messages can be signed, and that the address is allowed; nothing is posted.

        Raises `AddressForbidden` and `InvalidInput` for what only another manifest mends.
        """
        self._signer(resource)
        url = parse_receiver(resource["spec"]["url"])
        assert url.raw_host is not None
        assert url.port is not None
        try:
            self.networks.addresses(url.raw_host, url.port)
        except (OSError, UnicodeError) as error:
            raise Unavailable(what=url.raw_host, why="its host name cannot be resolved") from error
        return {str(WEBHOOK_TARGET_STATUS): {"value": "Ready"}}

    def finalize(self, resource: Json) -> None:
        """Do nothing: flows that post to the target fail from now on."""

    def post(self, resource: Json, payload: bytes, *, delivery: str, attempt: int, event: str) -> Outcome:
        """Post a message once, signed now; a repeat has the same `delivery` and the next number of an attempt."""
        url = request_target(parse_receiver(resource["spec"]["url"]))
        created = self.clock.now().ms // SECOND_MS
        headers = signed_headers(url, payload, self._signer(resource), created=created)
        facts = {DELIVERY_ID: delivery, ATTEMPT: str(attempt), EVENT_TYPE: event}
        return self.poster.post(url, payload, headers | facts)

    def _signer(self, resource: Json) -> Signer:
        headers, secret = resource["headers"], resource["spec"].get("secret")
        if secret is None:
            return key_signer(self.node_key())
        place = SecretPlace(account=headers["account"]["name"], resource=headers["id"], path=SECRET)
        return secret_signer(headers["id"], decrypt_at_rest(secret["value"], place, self.secret_keys()))


def target_in(text: bytes) -> Json:
    """Return the document of a request."""
    document: Json = json.loads(text)
    return document
