"""Every endpoint × method × role × visibility, on a node of many tenants and on one of one (wire-facts §8.6).

The endpoints are taken from the server's own list, so a new one needs a row.
"""

import asyncio
import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from aiohttp import web
from odf_testing.builders import a_dataset
from odf_testing.clocks import ManualClock
from odf_testing.http import running
from odf_testing.node_datasets import in_files
from yarl import URL

from odf_common.adapters.local import LocalCatalog
from odf_common.identity.dataset_refs import Name
from odf_common.ports.store import CatalogEntry, incarnation
from odf_common.service.settings import Settings
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Action, Role, Scope, Visibility
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import Endpoint, application
from odf_sync.http.head_watch import HeadWatch
from odf_sync.http.openapi import IN_PATH
from odf_sync.http.server import endpoints

FREE: Final = None  # of no dataset: the handler itself answers
ROWS: Final = {
    ("GET", "/info"): FREE,
    ("GET", "/assets/runtime-config.json"): FREE,
    ("GET", "/accounts/me"): FREE,
    ("GET", "/datasets"): FREE,
    ("GET", "/datasets/{id}"): FREE,
    ("GET", "/platform/token/validate"): FREE,
    ("POST", "/platform/login"): FREE,
    ("POST", "/platform/token/device/authorization"): FREE,
    ("POST", "/platform/token/device"): FREE,
    ("GET", "/v/login"): FREE,
    ("POST", "/v/login"): FREE,
    ("GET", "/openapi.json"): FREE,
    ("GET", "/query"): FREE,
    ("POST", "/query"): FREE,
    ("POST", "/verify"): FREE,
    ("GET", "/refs/{ref}"): Action.READ,
    ("GET", "/blocks/{name}"): Action.READ,
    ("GET", "/data/{name}"): Action.READ,
    ("GET", "/checkpoints/{name}"): Action.READ,
    ("GET", "/packs/{name}"): Action.READ,
    ("GET", "/signatures/{name}"): Action.READ,
    ("GET", "/signature-packs/{name}"): Action.READ,
    ("GET", "/pull"): Action.READ,
    ("GET", "/push"): Action.CREATE,
    ("PUT", "/data/{name}"): Action.CREATE,
    ("PUT", "/checkpoints/{name}"): Action.CREATE,
    ("PUT", "/archives/{name}"): Action.CREATE,
    ("GET", "/events"): Action.READ,
    ("GET", "/tail"): Action.READ,
    ("GET", "/metadata"): Action.READ,
    ("POST", "/ingest"): Action.WRITE,
    ("GET", "/ingest/{receipt}"): Action.WRITE,
}
# Responses to: an unknown token, no token, an account without role, and a reader, editor, maintainer and owner.
CALLERS: Final = ("invalid", "anonymous", "stranger", "reader", "editor", "maintainer", "alice")
PUBLIC: Final = {
    Action.READ: (401, 200, 200, 200, 200, 200, 200),
    Action.WRITE: (401, 403, 403, 403, 200, 200, 200),
    Action.CREATE: (401, 403, 403, 403, 200, 200, 200),
    Action.MANAGE: (401, 403, 403, 403, 403, 200, 200),
}
PRIVATE: Final = {
    Action.READ: (401, 404, 404, 200, 200, 200, 200),
    Action.WRITE: (401, 404, 404, 403, 200, 200, 200),
    Action.CREATE: (401, 404, 404, 403, 200, 200, 200),
    Action.MANAGE: (401, 404, 404, 403, 403, 200, 200),
}
UNKNOWN: Final = {
    Action.READ: (401, 404, 404, 404, 404, 404, 404),
    Action.WRITE: (401, 404, 404, 404, 404, 404, 404),
    Action.CREATE: (401, 401, 403, 403, 403, 403, 200),
    Action.MANAGE: (401, 404, 404, 404, 404, 404, 404),
}
EXPECTED: Final = {"public": PUBLIC, "private": PRIVATE, "unknown": UNKNOWN}
SAFE: Final = ("OPTIONS",)
UNSAFE: Final = ("PUT", "DELETE", "PATCH")


class Node:
    """A server whose handlers answer 200: only the decision is tested."""

    def __init__(self, home: Path, *, is_multi_tenant: bool, local_writers: str = "loopback") -> None:
        self.catalog = LocalCatalog(home)
        self.directory = Directory(AccessStore(home), is_multi_tenant=is_multi_tenant)
        self.authorizer = Authorizer(
            catalog=self.catalog, local_writers=local_writers, directory=self.directory
        )
        settings = Settings(home=home, ingest_grpc="127.0.0.1:1")
        self.served = endpoints(in_files(home), settings, self.authorizer, cast("Any", None), HeadWatch())
        self.base = ""

    def add_dataset(self, alias: str, visibility: Visibility | None) -> CatalogEntry:
        entry = CatalogEntry(alias=alias, dataset_id=a_dataset(alias))
        self.catalog.add(entry)
        if visibility is not None:
            self.directory.store.set_visibility(entry.incarnation, visibility)
        return entry

    def token(self, name: str, **limits: Any) -> dict[str, str]:
        return {
            "Authorization": "Bearer " + self.directory.create_token(Name(name), label="", **limits)[0].text()
        }

    @contextmanager
    def running(self) -> Iterator["Node"]:
        with running(application(self.authorizer, [replace(one, handler=ok) for one in self.served])) as base:
            self.base = base.removeprefix("http://")
            yield self

    def ask(self, method: str, path: str, headers: dict[str, str]) -> int:
        connection = http.client.HTTPConnection(self.base, timeout=10)
        try:
            connection.request(method, path.format(ref="x", name="x", receipt="x", id="x"), headers=headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()


async def ok(_: web.Request) -> web.Response:
    return web.Response()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("home"), is_multi_tenant=True)
    for name in ("alice", "stranger", "reader", "editor", "maintainer"):
        node.directory.add_account(Name(name), None)
    for visibility in Visibility:
        entry = node.add_dataset(f"alice/{visibility}", visibility)
        for role in (Role.READER, Role.EDITOR, Role.MAINTAINER):
            account = node.directory.store.account(Name(role.name.lower()))
            node.directory.store.set_role(entry.incarnation, account, role)
    probes = [
        Endpoint(method="GET", path=f"/probe-{one}", handler=ok, summary="", action=one) for one in Action
    ]
    node.served = (*node.served, *probes)
    with node.running():
        yield node


@pytest.fixture(scope="module")
def callers(node: Node) -> dict[str, dict[str, str]]:
    anonymous: dict[str, dict[str, str]] = {"anonymous": {}, "invalid": {"Authorization": "Bearer x"}}
    return anonymous | {name: node.token(name) for name in CALLERS if name not in anonymous}


def test_every_endpoint_has_a_row(node: Node) -> None:
    served = {(one.method, one.path): one.action for one in node.served if not one.path.startswith("/probe-")}
    assert served == ROWS


@pytest.mark.parametrize("dataset", EXPECTED)
def test_each_caller_may_do_what_their_role_allows(
    node: Node, callers: dict[str, dict[str, str]], dataset: str
) -> None:
    wrong = []
    for endpoint in node.served:
        base = "" if endpoint.action is None else f"/alice/{dataset}"
        expected = (200,) * len(CALLERS) if endpoint.action is None else EXPECTED[dataset][endpoint.action]
        for caller, status in zip(CALLERS, expected, strict=True):
            found = node.ask(endpoint.method, base + endpoint.path, callers[caller])
            if found != status:
                wrong.append((endpoint.method, endpoint.path, caller, found, status))
    assert wrong == []


@pytest.mark.parametrize("dataset", EXPECTED)
def test_a_method_that_does_not_exist_is_refused_only_to_those_who_may_use_it(
    node: Node, callers: dict[str, dict[str, str]], dataset: str
) -> None:
    for methods, action in ((SAFE, Action.READ), (UNSAFE, Action.WRITE)):
        for caller, status in zip(CALLERS, EXPECTED[dataset][action], strict=True):
            for method in methods:
                expected = 405 if status == 200 else status
                assert node.ask(method, f"/alice/{dataset}/refs/head", callers[caller]) == expected
                assert node.ask(method, f"/alice/{dataset}/ingest", callers[caller]) == expected


def test_a_token_can_do_no_more_than_its_scope_and_its_dataset_allow(node: Node) -> None:
    public, private = (a_dataset(f"alice/{visibility}") for visibility in ("public", "private"))
    reading, writing = node.token("alice", scope=Scope.READ), node.token("alice", scope=Scope.WRITE)
    assert [node.ask("GET", f"/alice/private/probe-{one}", reading) for one in Action] == [200, 403, 403, 403]
    assert [node.ask("GET", f"/alice/private/probe-{one}", writing) for one in Action] == [200, 200, 200, 403]
    assert node.ask("GET", "/alice/unknown/probe-create", reading) == 403
    only = node.token("alice", dataset=incarnation(private, ""))
    assert node.ask("POST", "/alice/private/ingest", only) == 200
    assert node.ask("POST", "/alice/public/ingest", only) == 403
    assert (
        node.ask("GET", "/alice/private/refs/head", node.token("alice", dataset=incarnation(public, "")))
        == 404
    )
    assert node.ask("GET", "/alice/unknown/probe-create", only) == 403


def test_a_token_is_good_until_it_expires_or_is_revoked(node: Node) -> None:
    clock = ManualClock()
    directory = Directory(node.directory.store, is_multi_tenant=True, clock=clock)
    token, stored = directory.create_token(Name("alice"), label="", seconds=1)
    assert directory.caller(token.text()).name == "alice"
    clock.ms += 1000
    assert directory.caller(token.text()).has_invalid_token
    forever, stored = directory.create_token(Name("alice"), label="", seconds=None)
    assert directory.caller(forever.text()).name == "alice"
    node.directory.store.revoke(stored.id)
    assert directory.caller(forever.text()).has_invalid_token


def test_names_without_account_are_not_served_by_a_node_of_many_tenants(node: Node) -> None:
    node.add_dataset("orphan", Visibility.PUBLIC)
    assert node.ask("GET", "/orphan/refs/head", node.token("alice")) == 404


def test_on_a_node_of_one_tenant_accounts_and_local_programs_own_all_and_others_read(tmp_path: Path) -> None:
    node = Node(tmp_path, is_multi_tenant=False)
    node.directory.add_account(Name("ann"), None)
    node.add_dataset("orders", None)
    node.add_dataset("secret", Visibility.PRIVATE)
    local: dict[str, str] = {}
    elsewhere = {"X-Forwarded-For": "192.0.2.1"}
    with node.running():
        for caller in (local, node.token("ann"), elsewhere | node.token("ann")):
            for dataset in ("orders", "secret"):
                assert node.ask("GET", f"/{dataset}/refs/head", caller) == 200
                assert node.ask("POST", f"/{dataset}/ingest", caller) == 200
        assert node.ask("GET", "/orders/refs/head", elsewhere) == 200
        assert node.ask("POST", "/orders/ingest", elsewhere) == 403
        assert node.ask("GET", "/secret/refs/head", elsewhere) == 404
        assert node.ask("POST", "/secret/ingest", elsewhere) == 404
        assert node.ask("POST", "/orders/ingest", node.token("ann", scope=Scope.READ)) == 403


@pytest.mark.parametrize(("local_writers", "status", "secret"), [("off", 403, 404), ("anywhere", 200, 200)])
def test_settings_say_what_programs_on_this_machine_may_do_without_a_token(
    tmp_path: Path, local_writers: str, status: int, secret: int
) -> None:
    node = Node(tmp_path, is_multi_tenant=False, local_writers=local_writers)
    node.add_dataset("orders", None)
    node.add_dataset("secret", Visibility.PRIVATE)
    with node.running():
        assert node.ask("POST", "/orders/ingest", {}) == status
        assert node.ask("GET", "/orders/refs/head", {}) == 200
        assert node.ask("GET", "/secret/refs/head", {}) == secret
        assert node.ask("POST", "/secret/ingest", {}) == secret
        assert node.ask("GET", "/secret/refs/head", {"Via": "proxy"}) == 404
        assert node.ask("POST", "/orders/ingest", {"Via": "proxy"}) == status


FIXED: Final = {path.split("/")[1] for (_, path), action in ROWS.items() if action is FREE}
LITERAL: Final = {path.strip("/") for (_, path), action in ROWS.items() if action and "{" not in path}
FOLDERS: Final = {path.split("/")[1] for _, path in ROWS if path.endswith("}")}


@pytest.mark.parametrize("is_multi_tenant", [True, False])
def test_no_name_of_a_dataset_is_covered_by_another_path(tmp_path: Path, *, is_multi_tenant: bool) -> None:
    """A dataset may be named `datasets`, `refs` or `info`, and its account too."""
    node = Node(tmp_path, is_multi_tenant=is_multi_tenant)
    router = application(node.authorizer, node.served).router
    names = sorted(FIXED | LITERAL | FOLDERS)
    aliases = [{"account": account, "dataset": name} for account in ("ann", *FIXED) for name in names]

    async def reached(method: str, path: str) -> tuple[str, dict[str, str]]:
        asked = SimpleNamespace(method=method, rel_url=URL(path))  # what a router looks at
        found = await router.resolve(cast(web.Request, asked))
        resource = found.route.resource
        return "" if resource is None else resource.canonical, dict(found)

    async def check() -> None:
        for alias in aliases if is_multi_tenant else [*({"dataset": name} for name in names), *aliases]:
            base = "".join(f"/{{{part}}}" for part in alias)
            for (method, path), action in ROWS.items():
                if action is not FREE:
                    more = dict.fromkeys(IN_PATH.findall(path), "x")
                    asked = (base + path).format(**alias, **more)
                    assert await reached(method, asked) == (base + path, {**alias, **more})

    asyncio.run(check())
