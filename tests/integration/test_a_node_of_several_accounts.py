"""A multi-tenant node: what other users of the machine see of it, and what its accounts may do by resources."""

import json
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from odf_testing.embedded import PATIENCE, EmbeddedNode
from odf_testing.story import APPEND, Story, root
from odf_testing.stranger import see

from .test_no_port_serves_other_users import (
    COLUMNS,
    METRIC,
    RECORD,
    VALUE,
    ports_of,
    requests_for,
    require_closed,
)

RIGHT_SECONDS = 5.0  # until a right is in effect, or has ended
APPLY = "/resource/v1alpha1/apply"
DATASET = "{$schema: Dataset, headers: {name: trades}, spec: {kind: Root, metadata: []}}"
SECRETS = "{$schema: SecretSet, headers: {name: keys}, spec: {secrets: {pw: swordfish}}}"
SOURCE = """
$schema: Source
headers: {name: orders}
spec:
  config: {token: 'SecretSet:alice/%s#pw'}
  ingress: {kind: Url, url: 'http://127.0.0.1:9/${{ config.token }}'}
  read: {kind: Csv}
"""
ACCOUNT = "{$schema: Account, headers: {name: carol}, spec: {email: carol@example.org, password: %s}}"


def shares(*edges: str) -> str:
    return f"{{$schema: Relations, headers: {{name: shares}}, spec: {{relations: [{', '.join(edges)}]}}}}"


def edge(value: str, target: str) -> str:
    return f"{{subject: 'Account:bob', relation: role, value: {value}, object: '{target}'}}"


@pytest.fixture(scope="module")
def tenants(node: EmbeddedNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNode]:
    guest = node.guest(tmp_path_factory.mktemp("tenants"), {"ODF_TENANCY": "multi"})
    guest.up("ingest", "coordinator", "verifier", "sync")
    yield guest
    guest.down()


def test_no_port_of_a_multi_tenant_node_serves_another_user(
    tenants: EmbeddedNode,
) -> None:
    orders = root("ann/private.orders", COLUMNS, merge=APPEND, event_time="at")
    assert "`odf account add ann`" in Story(tenants).refused(orders)
    tenants.run("account add ann --password-file -", stdin=b"a password of this test\n")
    (added,) = Story(tenants).add(orders)
    tenants.run("ingest ann/private.orders - --input-format ndjson", stdin=RECORD.encode())
    ports = ports_of(tenants)
    answers = see([port.address for port in ports], requests_for("ann/private.orders"))
    require_closed(ports, answers, (added["id"], VALUE, METRIC))


class Caller:
    """An account with a token, as a program that uses the node over HTTP."""

    def __init__(self, node: EmbeddedNode, name: str) -> None:
        node.run(f"account add {name} --no-password")
        self.node = node
        self.token = node.run(f"token create {name} -o json")["token"]

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, Any]:
        """Send a request, and return the status and the JSON of the answer."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/yaml"}
        content = None if body is None else body.encode()
        request = Request(f"{self.node.node.http}{path}", content, headers, method=method)
        try:
            with urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, _json(answer.read())
        except HTTPError as error:
            return error.code, _json(error.read())

    def apply(self, *manifests: str) -> tuple[int, Any]:
        return self.ask("POST", APPLY, "\n---\n".join(manifests))

    def warnings(self, manifest: str) -> list[str]:
        """Apply a manifest, and return the messages of its warnings."""
        status, answer = self.apply(manifest)
        assert status < HTTPStatus.BAD_REQUEST, answer
        return [one["message"] for one in answer["results"][0]["warnings"]]

    def reads(self, status: int) -> None:
        """Assert that the dataset is answered with this status within the time that a right may take."""
        until = time.monotonic() + RIGHT_SECONDS
        while (seen := self.ask("GET", "/alice/trades/refs/head")[0]) != status:
            assert time.monotonic() < until, seen
            time.sleep(0.05)


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def test_the_owner_of_a_dataset_gives_rights_by_relations_and_takes_them_back(tenants: EmbeddedNode) -> None:
    alice, bob = Caller(tenants, "alice"), Caller(tenants, "bob")
    assert alice.apply(DATASET, SECRETS)[0] < HTTPStatus.BAD_REQUEST
    alice.reads(200)
    assert bob.ask("GET", "/alice/trades/refs/head")[0] == HTTPStatus.NOT_FOUND
    status, answer = bob.apply(shares(edge("maintainer", "Dataset:alice/trades")))
    assert (status, answer["code"]) == (HTTPStatus.FORBIDDEN, "NotGrantable")
    existing, missing = bob.warnings(SOURCE % "keys"), bob.warnings(SOURCE % "none")
    assert existing == [text.replace("none", "keys") for text in missing]

    assert alice.apply(shares(edge("reader", "Dataset:trades"), edge("user", "SecretSet:keys")))[0] < 400
    bob.reads(200)
    assert bob.ask("POST", "/alice/trades/ingest", "{}")[0] == HTTPStatus.FORBIDDEN
    assert bob.warnings(SOURCE % "keys") == []
    await_phase(bob, "Ready")
    shown = tenants.run("access show alice/trades -o json")
    assert shown["byResources"] == [{"account": "bob", "right": "reader", "relations": "alice/shares"}]
    assert "Relations:alice/shares" in tenants.fails("access revoke alice/trades bob")

    assert alice.apply(shares())[0] < HTTPStatus.BAD_REQUEST
    bob.reads(404)
    assert bob.warnings(SOURCE % "keys") == existing
    await_phase(bob, "Failed")


def await_phase(caller: Caller, phase: str) -> None:
    def is_reached() -> bool:
        _, source = caller.ask("GET", "/source/v1alpha1/source/orders")
        return bool(source["status"]["phase"] == phase)

    caller.node.eventually(is_reached)


def test_an_account_is_applied_and_logs_in_with_the_password_of_its_manifest(tenants: EmbeddedNode) -> None:
    url = str(tenants.node.http)

    def log_in(password: bytes) -> bool:
        done = tenants.attempt(f"login {url} --user carol --password-file -", stdin=password)
        return done.returncode == 0

    tenants.run("apply -f - --wait", stdin=(ACCOUNT % "correct-horse").encode())
    assert (log_in(b"correct-horse"), log_in(b"battery-staple")) == (True, False)
    tenants.run("apply -f - --wait", stdin=(ACCOUNT % "battery-staple").encode())
    assert (log_in(b"correct-horse"), log_in(b"battery-staple")) == (False, True)
    assert "Account:carol" in tenants.fails("account password carol --no-password")
    tenants.run("delete Account:carol --yes")
    tenants.eventually(lambda: not log_in(b"battery-staple"))
    assert "correct-horse" not in tenants.logs()
