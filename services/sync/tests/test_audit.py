"""What is recorded of requests, and that the audit log neither delays a request nor fails it."""

import http.client
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web
from odf_testing.builders import a_dataset
from odf_testing.bus import MemoryBus
from odf_testing.http import running

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.networks import PUBLIC as PUBLIC_ONLY
from odf_common.adapters.networks import Networks
from odf_common.codec.envelopes import Envelope, decode
from odf_common.errors import StorageUnavailable
from odf_common.identity.dataset_refs import Name
from odf_common.ports.bus import AUDIT
from odf_common.ports.store import CatalogEntry, incarnation
from odf_common.proto.odf.bus.v1.bus_pb2 import AccessDecision
from odf_common.service import audit as audit_module
from odf_common.service.audit import DROPPED_ENTRIES, Audit
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rate_limits import RequestRate
from odf_sync.access.rules import Action, Visibility
from odf_sync.http.account_routes import AccountRoutes
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import Endpoint, application

PUBLIC, SECRET = "ann/public", "ann/secret"
PASSWORD: Final = "ann's password"
LOGIN: Final = b'{"loginMethod": "password", "loginCredentialsJson": "{\\"login\\": \\"ann\\", \\"password\\": \\"%s\\"}"}'


async def ok(_: web.Request) -> web.Response:
    return web.Response()


class Node:
    """A multi-tenant server with a public and a private dataset of `ann`, and its audit."""

    def __init__(self, home: Path, rate: RequestRate | None = None, proxies: Networks = PUBLIC_ONLY) -> None:
        catalog = LocalCatalog(home)
        self.directory = Directory(AccessStore(home), is_multi_tenant=True)
        self.account = self.directory.add_account(Name("ann"), PASSWORD)
        for alias, visibility in ((PUBLIC, Visibility.PUBLIC), (SECRET, Visibility.PRIVATE)):
            catalog.add(CatalogEntry(alias=alias, dataset_id=a_dataset(alias)))
            self.directory.store.set_visibility(incarnation(a_dataset(alias), ""), visibility)
        authorizer = Authorizer(catalog=catalog, local_writers="loopback", directory=self.directory)
        served = [
            Endpoint(method="GET", path="/refs/{ref}", handler=ok, summary="", action=Action.READ),
            Endpoint(method="POST", path="/ingest", handler=ok, summary="", action=Action.WRITE),
        ]
        self.audit, self.bus = Audit(), MemoryBus()
        self.app = application(
            authorizer,
            (*AccountRoutes(authorizer, catalog).endpoints(), *served),
            audit=self.audit,
            rate=rate,
            proxies=proxies,
        )
        self.base = ""

    def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> int:
        connection = http.client.HTTPConnection(self.base.removeprefix("http://"), timeout=10)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            return connection.getresponse().status
        finally:
            connection.close()

    def noted(self) -> list[Envelope]:
        """Return the entries since the last call."""
        self.audit.finish(self.bus)
        return [decode(*message) for message in self.bus.topics.pop(AUDIT, [])]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    with running(node.app) as node.base:
        yield node


def plain(decision: AccessDecision) -> tuple[Any, ...]:
    return (
        *(decision.account, decision.method, decision.route, decision.action, decision.dataset),
        *(decision.is_allowed, decision.status),
    )


REFS, INGEST = "/{account}/{dataset}/refs/{ref}", "/{account}/{dataset}/ingest"


@pytest.mark.parametrize(
    ("method", "path", "is_ann", "entry"),
    [
        ("GET", f"/{PUBLIC}/refs/head", False, None),
        ("GET", f"/{PUBLIC}/refs/head", True, None),
        ("GET", f"/{SECRET}/refs/head", True, ("ann", "GET", REFS, "read", SECRET, True, 0)),
        ("GET", f"/{SECRET}/refs/head", False, ("", "GET", REFS, "read", SECRET, False, 404)),
        ("POST", f"/{PUBLIC}/ingest", True, ("ann", "POST", INGEST, "write", PUBLIC, True, 0)),
        ("POST", f"/{PUBLIC}/ingest", False, ("", "POST", INGEST, "write", PUBLIC, False, 403)),
        ("DELETE", f"/{PUBLIC}/ingest", True, ("ann", "DELETE", INGEST, "write", PUBLIC, False, 405)),
        ("GET", "/ann/nothing/refs/head", True, ("ann", "GET", REFS, "read", "ann/nothing", False, 404)),
        ("GET", "/info", False, None),
        ("GET", "/nowhere", False, None),
        ("GET", "/accounts/me", True, ("ann", "GET", "/accounts/me", "", "", True, 200)),
        ("GET", "/accounts/me", False, ("", "GET", "/accounts/me", "", "", False, 401)),
    ],
)
def test_all_but_plain_reads_of_public_data_is_recorded(
    node: Node, method: str, path: str, *, is_ann: bool, entry: tuple[Any, ...] | None
) -> None:
    token = node.directory.create_token(Name("ann"), label="")[0]
    headers = {"Authorization": f"Bearer {token.text()}"} if is_ann else {}
    before = time.time_ns()
    node.ask(method, path, b"", **headers)
    noted = node.noted()
    assert [plain(one.access_decision) for one in noted] == ([] if entry is None else [entry])
    for one in noted:
        assert before <= one.sent_at <= time.time_ns()
        assert one.may_ignore
        assert one.access_decision.address == "127.0.0.1"
        if is_ann:
            assert one.access_decision.account_id == str(node.account.id)
            assert one.access_decision.token_id == token.id


def test_an_entry_of_an_allowed_request_has_the_datasets_key(node: Node) -> None:
    token = node.directory.create_token(Name("ann"), label="")[0].text()
    node.ask("POST", f"/{SECRET}/ingest", Authorization=f"Bearer {token}")
    assert [one.dataset_id for one in node.noted()] == [str(a_dataset(SECRET))]


def test_a_revoked_token_is_named_and_its_secret_is_not(node: Node) -> None:
    token, stored = node.directory.create_token(Name("ann"), label="")
    node.directory.store.revoke(stored.id)
    assert node.ask("GET", f"/{PUBLIC}/refs/head", Authorization=f"Bearer {token.text()}") == 401
    (noted,) = node.noted()
    decision = noted.access_decision
    assert (decision.account, decision.token_id, decision.status) == ("", stored.id, 401)
    assert token.text() not in str(noted)


def test_logins_are_recorded_with_the_name_and_without_the_password(node: Node) -> None:
    for password in (b"wrong", PASSWORD.encode()):
        node.ask("POST", "/platform/login", LOGIN % password, Content_Type="application/json")
    noted = node.noted()
    assert [plain(one.access_decision) for one in noted] == [
        ("ann", "POST", "/platform/login", "", "", False, 401),
        ("ann", "POST", "/platform/login", "", "", True, 200),
    ]
    assert PASSWORD not in str(noted)


def test_hostile_headers_and_names_are_recorded_as_bounded_strings(node: Node) -> None:
    assert node.ask("GET", f"/ann/{'%C3' * 900}/refs/head", X_Forwarded_For="\xff" * 900) == 404
    (noted,) = node.noted()
    assert len(noted.access_decision.dataset) == len(noted.access_decision.forwarded_for) == 300


def test_a_full_queue_loses_entries_counts_them_and_delays_nothing() -> None:
    audit, lost = Audit(most=2), DROPPED_ENTRIES._value.get()
    begun = time.monotonic()
    for _ in range(5):
        audit.put(None, AccessDecision())
    assert time.monotonic() - begun < 1
    assert DROPPED_ENTRIES._value.get() - lost == 3
    bus = MemoryBus()
    audit.finish(bus)
    assert len(bus.topics[AUDIT]) == 2


def test_entries_are_sent_again_with_their_ids_until_kafka_has_them() -> None:
    audit, bus, stop = Audit(), MemoryBus(), threading.Event()
    bus.losses = 2
    audit.put(None, AccessDecision())
    writer = threading.Thread(target=audit.write, args=(bus, stop), daemon=True)
    writer.start()
    deadline = time.monotonic() + 10
    while len(bus.topics[AUDIT]) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    stop.set()
    writer.join(10)
    ids = [decode(*message).message_id for message in bus.topics[AUDIT]]
    assert len(ids) == 3
    assert len(set(ids)) == 1


def test_pending_entries_are_sent_at_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "MAX_BATCH_ENTRIES", 2)
    audit, bus = Audit(), MemoryBus()
    for _ in range(5):
        audit.put(None, AccessDecision())
    audit.finish(bus)
    assert len(bus.topics[AUDIT]) == 5


@pytest.mark.parametrize("losses", [1, 2])
def test_a_batch_that_is_being_retried_is_sent_at_shutdown_or_counted(losses: int) -> None:
    audit, bus, stop, lost = Audit(), MemoryBus(), threading.Event(), DROPPED_ENTRIES._value.get()
    bus.losses = losses
    audit.put(None, AccessDecision())
    flush = bus.flush

    def stopping(timeout: float = 10.0) -> None:
        stop.set()
        flush(timeout)

    bus.flush = stopping  # type: ignore[method-assign]
    audit.write(bus, stop)
    assert len(bus.topics[AUDIT]) == 2
    assert DROPPED_ENTRIES._value.get() - lost == losses - 1


def test_entries_that_cannot_be_sent_at_shutdown_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "LAST_SECONDS", 0.1)
    audit, bus, lost = Audit(), MemoryBus(), DROPPED_ENTRIES._value.get()
    bus.losses = 1
    audit.put(None, AccessDecision())
    audit.finish(bus)
    assert DROPPED_ENTRIES._value.get() - lost == 1


def test_an_address_cannot_flood_the_audit_with_headers_that_are_not_valid(tmp_path: Path) -> None:
    node = Node(tmp_path, rate=RequestRate(1, lambda: 0.0))
    with running(node.app) as node.base:
        found = [node.ask("GET", f"/{PUBLIC}/refs/head", Authorization="Basic x") for _ in range(8)]
        assert found == [400] * 5 + [429] * 3
        assert len(node.noted()) == 5


def test_clients_behind_a_trusted_proxy_are_told_apart(tmp_path: Path) -> None:
    node = Node(tmp_path, rate=RequestRate(1, lambda: 0.0), proxies=Networks.parse(("127.0.0.1",)))
    with running(node.app) as node.base:
        for client in ("198.51.100.1", "198.51.100.2"):
            found = [
                node.ask("GET", f"/{SECRET}/refs/head", X_Forwarded_For=f"x, {client}") for _ in range(6)
            ]
            assert found == [404] * 5 + [429]
        assert Counter(one.access_decision.address for one in node.noted()) == {
            "198.51.100.1": 5,
            "198.51.100.2": 5,
        }


def test_a_request_that_cannot_be_authorized_now_is_recorded_as_not_allowed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise StorageUnavailable(file="access.db", why="the disk is lost")

    monkeypatch.setattr(node.directory, "visibility", fail)
    assert node.ask("GET", f"/{SECRET}/refs/head") == 503
    decisions = [one.access_decision for one in node.noted()]
    assert [(one.is_allowed, one.status) for one in decisions] == [(False, 503)]
