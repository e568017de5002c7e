"""WebhookTarget resources: what a receiver gets and can check, and which targets a node refuses."""

import base64
import hashlib
import hmac
import json
import re
from typing import Any

import pytest
from odf_testing.clocks import ManualClock
from odf_testing.webserver import Page, Request, serving_answers

from odf_common.adapters.networks import AddressForbidden, Networks
from odf_common.errors import InvalidInput
from odf_common.identity.keys import generate
from odf_common.resources.conditions import WEBHOOK_TARGET_STATUS
from odf_common.resources.secret_encryption import InvalidJwe, SecretPlace, encrypt_at_rest
from odf_common.resources.secret_keys import SecretKeys
from odf_sync.webhooks.sender import WebhookPoster
from odf_sync.webhooks.webhook_targets import WebhookTargets

KEYS = SecretKeys.new()
ID = "0b9c1a52-5f0e-4d53-9a3e-6f1b2b7a9d10"
SECRET = "Hush-1"
ACCOUNT = {"id": "6f6e2c1e-77d1-4a0c-8e57-0d6c1f3b9a21", "did": str(generate().dataset_id), "name": "Ann"}
PAYLOAD = '{"head": "ü"}'.encode()
NODE_KEY = generate()
COVERED = ("@method", "@target-uri", "content-type", "content-digest")


def a_target(url: str, *, secret: str | None = SECRET, path: str = "spec.secret") -> dict[str, Any]:
    spec: dict[str, Any] = {"url": url}
    if secret is not None:
        place = SecretPlace(account="Ann", resource=ID, path=path)
        spec["secret"] = {"value": encrypt_at_rest(secret, place, KEYS), "contentEncoding": "jwe"}
    return {"headers": {"id": ID, "name": "Hook", "account": ACCOUNT}, "spec": spec}


def targets(networks: Networks) -> WebhookTargets:
    clock = ManualClock()
    return WebhookTargets(
        networks=networks,
        poster=WebhookPoster(networks, clock),
        secret_keys=lambda: KEYS,
        node_key=lambda: NODE_KEY,
        clock=clock,
    )


LOOPBACK = Networks.parse(("127.0.0.0/8",))


def test_a_receiver_checks_the_signature_with_the_secret_and_sees_which_attempt_it_is() -> None:
    received: list[Request] = []

    def answer(request: Request) -> Page:
        received.append(request)
        return Page(status=500 if len(received) == 1 else 204)

    with serving_answers(answer) as url:
        target = a_target(f"{url}/hook?x=1")
        posts = [
            targets(LOOPBACK).post(target, PAYLOAD, delivery="d1", attempt=n, event="dataset.ref.updated")
            for n in (1, 2)
        ]
        assert [post.error for post in posts] == ["status 500", ""]
    for number, request in enumerate(received, 1):
        headers = {name.lower(): value for name, value in request.headers.items()}
        assert (headers["x-webhook-delivery-id"], headers["x-webhook-delivery-attempt"]) == (
            "d1",
            str(number),
        )
        assert headers["x-webhook-event-type"] == "dataset.ref.updated"
        digest = base64.b64encode(hashlib.sha256(request.body).digest()).decode()
        assert request.body == PAYLOAD
        assert headers["content-digest"] == f"sha-256=:{digest}:"
        parameters = headers["signature-input"].removeprefix("odf=")
        values = {"@method": "POST", "@target-uri": f"{url}/hook?x=1", **headers}
        lines = [*(f'"{name}": {values[name]}' for name in COVERED), f'"@signature-params": {parameters}']
        expected = hmac.digest(SECRET.encode(), "\n".join(lines).encode(), "sha256")
        found = re.fullmatch("odf=:(.*):", headers["signature"])
        assert found is not None
        assert base64.b64decode(found[1]) == expected
        assert ID in parameters


def test_without_a_secret_the_node_signs() -> None:
    received: list[Request] = []

    def answer(request: Request) -> Page:
        received.append(request)
        return Page(status=410)

    with serving_answers(answer) as url:
        outcome = targets(LOOPBACK).post(
            a_target(url, secret=None), PAYLOAD, delivery="d", attempt=1, event=""
        )
    assert outcome.is_unwanted
    assert 'alg="ed25519"' in received[0].headers["Signature-Input"]


def test_a_target_is_ready_when_its_address_is_allowed_and_its_secret_opens() -> None:
    ready = targets(LOOPBACK).reconcile(a_target("http://127.0.0.1:1/hook"))
    assert json.loads(json.dumps(ready)) == {str(WEBHOOK_TARGET_STATUS): {"value": "Ready"}}
    with pytest.raises(AddressForbidden):
        targets(Networks()).reconcile(a_target("http://127.0.0.1:1/hook"))
    with pytest.raises(InvalidInput, match="expected http"):
        targets(LOOPBACK).reconcile(a_target("ftp://127.0.0.1/hook"))
    with pytest.raises(InvalidJwe):
        targets(LOOPBACK).reconcile(a_target("http://127.0.0.1:1/hook", path="spec.secrets.other"))


def test_an_address_of_the_node_s_network_is_not_posted_to() -> None:
    outcome = targets(Networks()).post(
        a_target("http://169.254.169.254/latest"), PAYLOAD, delivery="d", attempt=1, event=""
    )
    assert "not a public address" in outcome.error
