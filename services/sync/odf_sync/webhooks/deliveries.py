"""The next event of each webhook and the outcome of its delivery: read from the chain, stored, and signed.

HTTP Message Signatures (RFC 9421) cover the method, the whole URL, the media type and the digest of the body (RFC
9530). The signed message begins with `"@method"`, so it can never be mistaken for the message of a block's signature or
of a proof of ownership, which the same key signs.

The methods block; `sender` calls them in threads.
"""

import base64
import hashlib
import hmac
import json
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import structlog
from prometheus_client import Counter

from odf_common.adapters.system_clock import SYSTEM_CLOCK
from odf_common.dataset.state_cache import ChainStates
from odf_common.identity.keys import PrivateKey, SignerId
from odf_common.ports.clock import Clock
from odf_common.ports.store import Catalog
from odf_sync.http.head_events import head_facts
from odf_sync.webhooks.webhook_store import HookEvent, Outcome, Webhook, WebhookStore

METHOD: Final = "POST"
CONTENT_TYPE: Final = "application/json"
LABEL: Final = "odf"  # of the signature in its headers
TAG: Final = "odf-webhook"  # what the signature is for


@dataclass(frozen=True, slots=True, kw_only=True)
class Signer:
    """A key and the algorithm by which it signs messages."""

    key_id: str
    algorithm: str
    """The name of the algorithm in the registry of RFC 9421."""
    sign: Callable[[bytes], bytes] = field(repr=False)


def key_signer(key: PrivateKey) -> Signer:
    """Return a signer that uses the node's key; its id is `did:key:z6Mk…`."""
    return Signer(key_id=str(SignerId.of_key(key)), algorithm="ed25519", sign=key.sign)


def secret_signer(key_id: str, secret: str) -> Signer:
    """Return a signer that uses a shared secret; the key of the HMAC is the secret's ASCII text."""

    def sign(message: bytes) -> bytes:
        return hmac.digest(secret.encode("ascii"), message, "sha256")

    return Signer(key_id=key_id, algorithm="hmac-sha256", sign=sign)


def signed_headers(url: str, body: bytes, signer: Signer, *, created: int) -> dict[str, str]:
    """Return the headers to post `body` with, including its signature; `created` is in seconds since the epoch."""
    covered = {
        "@method": METHOD,
        "@target-uri": url,
        "content-type": CONTENT_TYPE,
        "content-digest": f"sha-256={_bytes(hashlib.sha256(body).digest())}",
    }
    names = " ".join(f'"{name}"' for name in covered)
    parameters = f'({names});created={created};keyid="{signer.key_id}";alg="{signer.algorithm}";tag="{TAG}"'
    lines = [f'"{name}": {value}' for name, value in covered.items()]
    message = "\n".join((*lines, f'"@signature-params": {parameters}'))
    return {
        "Content-Type": CONTENT_TYPE,
        "Content-Digest": covered["content-digest"],
        "Signature-Input": f"{LABEL}={parameters}",
        "Signature": f"{LABEL}={_bytes(signer.sign(message.encode('ascii')))}",
    }


def _bytes(value: bytes) -> str:
    """Return bytes in the format of RFC 8941."""
    return f":{base64.b64encode(value).decode()}:"


log = structlog.stdlib.get_logger(__name__)

SECOND_MS: Final = 1000
DELIVERY_ATTEMPTS: Final = Counter(
    "odf_webhook_attempts_total", "Posts to receivers of webhooks, by outcome.", ("outcome",)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A webhook in its current state, and the event to post now."""

    hook: Webhook
    body: bytes | None = None
    """The JSON of the newest event, None if there is nothing to post."""


class Deliveries:
    """Prepares the events of all webhooks, and stores the outcomes of their deliveries; thread-safe."""

    def __init__(
        self,
        store: WebhookStore,
        catalog: Catalog,
        states: ChainStates,
        *,
        node_key: Callable[[], PrivateKey],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Use the webhooks in `store`, and the chains of the datasets in `catalog`."""
        self.store = store
        self.clock = clock
        self._catalog = catalog
        self._states = states
        self._node_key = node_key

    def next_delivery(self, hook: Webhook) -> Look | None:
        """Return the webhook with the event to post next, which is stored first; None if the webhook has ended.

        The newest event replaces a pending one. Raises `OdfError` while the chain or the store cannot be read.
        """
        entry = self._catalog.by_id(hook.dataset)
        if entry is None:
            return self._deletion_event(hook)
        state = self._states.current(hook.dataset)
        if state is None or HookEvent.HEAD not in hook.events:
            return self._without_event(hook)
        hook = replace(hook, alias=entry.alias)
        return self._with_event(hook, HookEvent.HEAD, str(state.head), head_facts(entry, state))

    def headers(self, hook: Webhook, body: bytes) -> dict[str, str]:
        """Return the headers for an attempt to deliver `body`, signed with the current time."""
        return signed_headers(hook.url, body, self.signer(hook), created=self.clock.now().ms // SECOND_MS)

    def signer(self, hook: Webhook) -> Signer:
        """Return the signer of a webhook: its shared secret if it has one, else the node's key."""
        return key_signer(self._node_key()) if hook.secret is None else secret_signer(hook.id, hook.secret)

    def settle(self, hook: Webhook, outcome: Outcome) -> Webhook | None:
        """Store the outcome of an attempt, and return the webhook after it; None if the webhook has ended."""
        delivery, now = hook.delivery, self.clock.now().ms
        DELIVERY_ATTEMPTS.labels("failed" if outcome.error else "delivered").inc()
        if outcome.is_unwanted:
            self.store.discard(hook.id)
            log.warning("webhook ended by its receiver", url=hook.url, **hook.log_facts)
            return None
        if outcome.error:
            spread = random.uniform(-1, 1)  # noqa: S311 - not for security
            delivery = delivery.after_failure(now, outcome.error, spread=spread, pause_ms=outcome.pause_ms)
            why, next_ms = outcome.error, delivery.next_ms
            log.warning("webhook not delivered", why=why, next_ms=next_ms, **hook.log_facts)
        else:
            delivery = delivery.after_success(now)
            log.debug("webhook delivered", event_id=delivery.event_id, **hook.log_facts)
        hook = replace(hook, delivery=delivery)
        if delivery.event is HookEvent.GONE and (not outcome.error or delivery.is_hopeless):
            self._end(hook)
            return None
        return self._save(hook)

    def _deletion_event(self, hook: Webhook) -> Look | None:
        if HookEvent.GONE not in hook.events:
            self._end(hook)
            return None
        facts: dict[str, object] = {"dataset": str(hook.dataset), "alias": hook.alias}
        return self._with_event(hook, HookEvent.GONE, "", facts)

    def _without_event(self, hook: Webhook) -> Look | None:
        """Withdraw a pending event: it reports that the dataset was deleted, but the dataset has been pulled again."""
        if not hook.delivery.is_pending:
            return Look(hook=hook)
        saved = self._save(replace(hook, delivery=hook.delivery.withdrawn()))
        return None if saved is None else Look(hook=saved)

    def _with_event(
        self, hook: Webhook, event: HookEvent, head: str, facts: dict[str, object]
    ) -> Look | None:
        if not hook.delivery.names(event, head):
            delivery = hook.delivery.with_event(event, head, event_id=str(uuid.uuid4()))
            saved = self._save(replace(hook, delivery=delivery))
            if saved is None:
                return None
            hook = saved
        if not hook.delivery.is_pending:
            return Look(hook=hook)
        body = {"id": hook.delivery.event_id, "event": event.value, **facts}
        return Look(hook=hook, body=json.dumps(body).encode())

    def _save(self, hook: Webhook) -> Webhook | None:
        return hook if self.store.save_delivery(hook) else None

    def _end(self, hook: Webhook) -> None:
        """Remove a webhook whose dataset no longer exists."""
        self.store.discard(hook.id)
        log.info("webhook ended with its dataset", url=hook.url, **hook.log_facts)
