"""Every route × method × role × token × visibility, on a multi-tenant node and on a single-tenant one (wire-facts §8.6).

The routes are those that the application lists, so a new endpoint needs a row here. Handlers of datasets are replaced:
only the decision is tested. Those of no dataset answer themselves, and may reveal nothing of a private dataset to
callers who may not read it. There is no role above the owners': nodes are administered over gRPC, not over HTTP.
"""

import asyncio
import http.client
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast
from urllib.parse import quote, urlencode

import pytest
from aiohttp import web
from odf_testing.builders import a_chain, a_dataset, a_seed
from odf_testing.clocks import ManualClock
from odf_testing.http import running
from odf_testing.node_datasets import hold, in_files
from yarl import URL

from odf_common.identity.dataset_refs import Name
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import Incarnation, incarnation
from odf_common.service.settings import Settings
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Action, Role, Scope, Visibility
from odf_sync.access.tokens import Token
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import ANY_METHOD, Endpoint, application
from odf_sync.http.head_watch import HeadWatch
from odf_sync.http.ingest_client import IngestClient
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
PUBLIC, PRIVATE, UNKNOWN = "harbours", "wiretaps", "nowhere"  # names that occur in no text of ours
DESCRIPTION: Final = "kept from others"
# Responses to callers without a role, and to a reader, an editor, a maintainer and an owner.
BY_ROLE: Final = {
    PUBLIC: {
        Action.READ: (200, 200, 200, 200, 200),
        Action.WRITE: (403, 403, 200, 200, 200),
        Action.CREATE: (403, 403, 200, 200, 200),
        Action.MANAGE: (403, 403, 403, 200, 200),
    },
    PRIVATE: {
        Action.READ: (404, 200, 200, 200, 200),
        Action.WRITE: (404, 403, 200, 200, 200),
        Action.CREATE: (404, 403, 200, 200, 200),
        Action.MANAGE: (404, 403, 403, 200, 200),
    },
}
SAFE: Final = ("GET", "HEAD", "OPTIONS", "TRACE")
METHODS: Final = (*SAFE, "POST", "PUT", "PATCH", "DELETE", "PROPFIND")
UNSERVED: Final = (
    "/",
    "/alice",
    "/info/x",
    "/alice/{}/x/y",
    "/alice/{}/refs/a/b",
    "/x/alice/{}/refs/head",
    "/v",
)
RANDOM: Final = re.compile(rb"[\w-]{20,}")  # codes of logins
Answer = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True, kw_only=True)
class Someone:
    """A caller, and what they may do."""

    headers: Mapping[str, str]
    public: Role | None = None
    private: Role | None = None
    creates: int = 403
    """Response to the creation of a dataset of alice's."""
    refused: int | None = None
    """Response to all requests about datasets, of a caller with a bad token."""

    @property
    def rights(self) -> tuple[object, ...]:
        return self.public, self.private, self.creates, self.refused

    def status(self, dataset: str, action: Action) -> int:
        if self.refused is not None:
            return self.refused
        if dataset == UNKNOWN:
            return self.creates if action is Action.CREATE else 404
        role = self.public if dataset == PUBLIC else self.private
        return BY_ROLE[dataset][action][0 if role is None else role]


class Node:
    """A server with a public and a private dataset of alice's, and on a single-tenant node of no account's too."""

    def __init__(self, home: Path, *, is_multi_tenant: bool, local_writers: str = "loopback") -> None:
        self.datasets = in_files(home)
        self.directory = Directory(AccessStore(home), is_multi_tenant=is_multi_tenant)
        self.authorizer = Authorizer(
            catalog=self.datasets.catalog, local_writers=local_writers, directory=self.directory
        )
        settings, ingest = Settings(home=home), IngestClient("127.0.0.1:1")
        unused: Any = None
        self.served = endpoints(self.datasets, settings, self.authorizer, unused, HeadWatch(), ingest=ingest)
        self.bases = ("/alice/{}",) if is_multi_tenant else ("/{}", "/alice/{}")
        self.secrets = {PRIVATE, DESCRIPTION}
        for base in self.bases:
            for name, visibility in ((PUBLIC, Visibility.PUBLIC), (PRIVATE, Visibility.PRIVATE)):
                self.add_dataset(base.format(name).removeprefix("/"), visibility)
        self.connections: dict[tuple[str, ...], http.client.HTTPConnection] = {}
        self.base = ""

    def add_dataset(self, alias: str, visibility: Visibility) -> Incarnation:
        description = DESCRIPTION if visibility is Visibility.PRIVATE else "for everyone"
        chain = a_chain(a_seed(dataset=a_dataset(alias)), SetInfo(description=description))
        hold(self.datasets, alias, chain)
        self.directory.store.set_visibility(incarnation(a_dataset(alias), ""), visibility)
        if visibility is Visibility.PRIVATE:
            self.secrets |= {str(a_dataset(alias)).removeprefix("did:odf:"), str(chain.state.head)}
        return incarnation(a_dataset(alias), "")

    def token(self, name: str, **limits: Any) -> dict[str, str]:
        token, _ = self.directory.create_token(Name(name), label="", **limits)
        return {"Authorization": "Bearer " + token.text()}

    def with_probes(self) -> "Node":
        """Serve an endpoint per action: not every action has one of its own."""
        paths = ((one, f"/probe-{one}") for one in Action)
        probes = [
            Endpoint(method="GET", path=path, handler=ok, summary="", action=one) for one, path in paths
        ]
        self.served = (*self.served, *probes)
        return self

    def application(self) -> web.Application:
        handled = (one if one.action is FREE else replace(one, handler=ok) for one in self.served)
        return application(self.authorizer, handled)

    @contextmanager
    def running(self) -> Iterator["Node"]:
        with running(self.application()) as base:
            self.base = base.removeprefix("http://")
            yield self
            for connection in self.connections.values():
                connection.close()

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: str | None = None) -> Answer:
        """Send a request; one connection is used for all requests of the same headers."""
        key = tuple(headers.values())
        if key not in self.connections:
            self.connections[key] = http.client.HTTPConnection(self.base, timeout=10)
        connection = self.connections[key]
        connection.request(method, path, body, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()

    def ask(self, method: str, path: str, headers: Mapping[str, str]) -> int:
        return self.answer(method, path, headers)[0]


async def ok(_: web.Request) -> web.Response:
    return web.Response()


def routes(node: Node) -> set[tuple[str, str]]:
    """Return method and path of each route, as the application itself lists them."""
    listed = node.application().router.routes()
    return {(one.method, one.resource.canonical) for one in listed if one.resource is not None}


def actions(node: Node) -> dict[tuple[str, str], Action | None]:
    """Return what the rows say about each route of a node; `*` stands for the methods that a path does not have."""
    probes = {(one.method, one.path): one.action for one in node.served if one.path.startswith("/probe-")}
    bases = [base.format("{dataset}").replace("alice", "{account}") for base in node.bases]
    stated: dict[tuple[str, str], Action | None] = {}
    for (method, path), action in (ROWS | probes).items():
        for base in bases if action is not FREE else ("",):
            methods = ("GET", "HEAD") if method == "GET" else (method,)
            stated |= {(one, base + path): action for one in methods}
            stated[ANY_METHOD, base + path] = None if action is FREE else Action.WRITE
    return stated


def paths_of(node: Node) -> Iterator[tuple[str, str, bool]]:
    """Yield each path as listed, the same with values but for the dataset's name, and whether it has one."""
    for path in sorted({path for _, path in routes(node)}):
        has_dataset = path.startswith(("/{account}/{dataset}", "/{dataset}"))
        named = path.replace("{account}", "alice").replace("{dataset}", "{}")
        yield path, re.sub(r"\{\w+\}", "x", named), has_dataset


def invalid(node: Node) -> dict[str, Someone]:
    """Return callers whose tokens are no longer valid, or never were."""
    expired, _ = node.directory.create_token(Name("alice"), label="", seconds=0)
    revoked, stored = node.directory.create_token(Name("alice"), label="")
    node.directory.store.revoke(stored.id)
    texts = {
        "unknown": Token.new().text(),
        "garbage": "x",
        "expired": expired.text(),
        "revoked": revoked.text(),
    }
    callers = {
        name: Someone(headers={"Authorization": f"Bearer {text}"}, refused=401)
        for name, text in texts.items()
    }
    return callers | {"no bearer": Someone(headers={"Authorization": "Basic YTpi"}, refused=400)}


def limited(node: Node) -> dict[str, Someone]:
    """Return callers with tokens of alice's that allow less than she may."""
    public, private = (incarnation(a_dataset(f"alice/{name}"), "") for name in (PUBLIC, PRIVATE))
    reader, editor, owner = Role.READER, Role.EDITOR, Role.OWNER
    to_read, to_write = (node.token("alice", scope=scope) for scope in (Scope.READ, Scope.WRITE))
    read_private = node.token("alice", scope=Scope.READ, dataset=private)
    return {
        "to read": Someone(headers=to_read, public=reader, private=reader),
        "to write": Someone(headers=to_write, public=editor, private=editor, creates=200),
        "of the public one": Someone(headers=node.token("alice", dataset=public), public=owner),
        "of the private one": Someone(headers=node.token("alice", dataset=private), private=owner),
        "to read the private one": Someone(headers=read_private, private=reader),
    }


def multi_tenant(home: Path) -> tuple[Node, dict[str, Someone]]:
    """Return a node, and callers with each role and each kind of token."""
    node = Node(home, is_multi_tenant=True).with_probes()
    roles = {role.name.lower(): role for role in (Role.READER, Role.EDITOR, Role.MAINTAINER)}
    for name in ("alice", "odf", "admin", *roles):
        node.directory.add_account(Name(name), None)
    for name, role in roles.items():
        for dataset in (PUBLIC, PRIVATE):
            account = node.directory.store.account(Name(name))
            node.directory.store.set_role(incarnation(a_dataset(f"alice/{dataset}"), ""), account, role)
    callers = {
        name: Someone(headers=node.token(name), public=one, private=one) for name, one in roles.items()
    }
    callers |= {name: Someone(headers=node.token(name)) for name in ("odf", "admin")}  # strangers
    callers["anonymous"] = Someone(headers={}, creates=401)
    callers["alice"] = Someone(
        headers=node.token("alice"), public=Role.OWNER, private=Role.OWNER, creates=200
    )
    return node, callers | limited(node) | invalid(node)


def single_tenant(home: Path) -> tuple[Node, dict[str, Someone]]:
    """Return a node whose accounts and local programs own all, and callers."""
    node = Node(home, is_multi_tenant=False).with_probes()
    node.directory.add_account(Name("alice"), None)
    elsewhere = {"X-Forwarded-For": "192.0.2.1"}
    owner = {"public": Role.OWNER, "private": Role.OWNER, "creates": 200}
    callers = {
        "local": Someone(headers={}, **cast("Any", owner)),
        "elsewhere": Someone(headers=elsewhere, creates=401),
        "alice": Someone(headers=elsewhere | node.token("alice"), **cast("Any", owner)),
        "to read": limited(node)["to read"],
    }
    return node, callers | {name: invalid(node)[name] for name in ("expired", "no bearer")}


@pytest.fixture(scope="module", params=[multi_tenant, single_tenant], ids=["multi-tenant", "single-tenant"])
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Node, dict[str, Someone]]]:
    node, callers = request.param(tmp_path_factory.mktemp("home"))
    with node.running():
        yield node, callers


@pytest.fixture
def node(world: tuple[Node, dict[str, Someone]]) -> Node:
    return world[0]


@pytest.fixture
def callers(world: tuple[Node, dict[str, Someone]]) -> dict[str, Someone]:
    return world[1]


def one_of_each(callers: Mapping[str, Someone]) -> dict[str, Someone]:
    """Return one caller for each set of rights; how they got theirs is compared on the routes that exist."""
    return dict({caller.rights: (name, caller) for name, caller in callers.items()}.values())


def test_every_route_has_a_row(node: Node) -> None:
    served = {(one.method, one.path): one.action for one in node.served if not one.path.startswith("/probe-")}
    assert served == ROWS
    assert routes(node) == actions(node).keys()


@pytest.mark.parametrize("dataset", [PUBLIC, PRIVATE, UNKNOWN])
def test_each_caller_may_do_what_their_role_and_token_allow(
    node: Node, callers: dict[str, Someone], dataset: str
) -> None:
    """A method that a path does not have is refused as such only to callers who may use one like it."""
    rows, wrong = actions(node), []
    for path, asked, _ in (one for one in paths_of(node) if one[2]):
        for method in METHODS:
            is_served = (method, path) in rows
            action = rows[method, path] if is_served else Action.READ if method in SAFE else Action.WRITE
            assert action is not None
            for name, caller in (callers if is_served else one_of_each(callers)).items():
                status = caller.status(dataset, action)
                expected = 405 if status == 200 and not is_served else status
                found = node.ask(method, asked.format(dataset), caller.headers)
                if found != expected:
                    wrong.append((method, path, name, found, expected))
    assert wrong == []


def is_fault(status: int) -> bool:
    """Return whether the server failed; 501 is what it always answers to queries."""
    return status >= 500 and status != 501


def test_paths_of_no_dataset_have_the_methods_of_their_rows(node: Node, callers: dict[str, Someone]) -> None:
    rows, wrong = actions(node), []
    for path, asked, _ in (one for one in paths_of(node) if not one[2]):
        for method in METHODS:
            for name, caller in one_of_each(callers).items():
                found = node.ask(method, asked, caller.headers)
                is_malformed = caller.refused == 400
                if (found == 405) != ((method, path) not in rows and not is_malformed) or is_fault(found):
                    wrong.append((method, path, name, found))
    assert wrong == []


def test_what_is_no_route_is_not_found_by_anyone(node: Node, callers: dict[str, Someone]) -> None:
    for path in {one.format(name) for one in UNSERVED for name in (PRIVATE, UNKNOWN)}:
        for method in METHODS:
            for caller in one_of_each(callers).values():
                expected = 400 if caller.refused == 400 else 404
                assert node.ask(method, path, caller.headers) == expected


def requests(endpoint: Endpoint, value: str) -> Iterator[tuple[str, str | None, str]]:
    """Yield path, body and media type of requests that name a value everywhere an endpoint takes one."""
    path = IN_PATH.sub(quote(value, safe=""), endpoint.path)
    yield path, None, ""
    yield f"{path}?{urlencode(dict.fromkeys((*endpoint.query, 'id', 'name', 'dataset'), value))}", None, ""
    if endpoint.body:
        fields = dict.fromkeys(endpoint.fields, value)
        yield path, json.dumps(fields) if "json" in endpoint.body else urlencode(fields), endpoint.body


def revealing(node: Node, callers: Iterable[Someone]) -> list[tuple[str, str, int, bytes]]:
    """Return what endpoints of no dataset say of private ones: their names, or other things than of unknown ones."""
    tried = [(PRIVATE, UNKNOWN), (f"alice/{PRIVATE}", f"alice/{UNKNOWN}")]
    tried += [tuple(str(a_dataset(one)) for one in pair) for pair in tried]  # type: ignore[misc]
    found = []
    for endpoint in (one for one in node.served if one.action is FREE):
        for caller in callers:
            for private, unknown in tried:
                for (path, body, media_type), twin in zip(
                    requests(endpoint, private), requests(endpoint, unknown), strict=True
                ):
                    headers = dict(caller.headers) | ({"Content-Type": media_type} if media_type else {})
                    status, fields, content = node.answer(endpoint.method, path, headers, body)
                    text = content.replace(private.encode(), b"?")
                    like = node.answer(endpoint.method, twin[0], headers, twin[1])
                    is_alike = (status, RANDOM.sub(b"", text)) == (
                        like[0],
                        RANDOM.sub(b"", like[2].replace(unknown.encode(), b"?")),
                    )
                    said = text.decode() + str(fields)
                    if not is_alike or any(secret in said for secret in node.secrets):
                        found.append((endpoint.method, path, status, content))
    return found


def test_endpoints_of_no_dataset_reveal_nothing_of_private_ones(
    node: Node, callers: dict[str, Someone]
) -> None:
    assert revealing(node, [one for one in callers.values() if one.private is None]) == []
    assert PRIVATE.encode() in node.answer("GET", "/datasets", callers["alice"].headers)[2]


@pytest.mark.parametrize("is_asked", [False, True])
def test_an_endpoint_that_reveals_a_private_dataset_is_found(tmp_path: Path, *, is_asked: bool) -> None:
    node = Node(tmp_path, is_multi_tenant=True)

    async def leak(request: web.Request) -> web.Response:
        names = [one.alias for one in node.datasets.catalog.entries()]
        return web.json_response(request.query.get("name") in names if is_asked else names)

    node.served = (Endpoint(method="GET", path="/leak", handler=leak, summary=""),)
    with node.running():
        assert revealing(node, [Someone(headers={})])


def test_a_token_is_good_until_it_expires_or_is_revoked(tmp_path: Path) -> None:
    clock = ManualClock()
    directory = Directory(AccessStore(tmp_path), is_multi_tenant=True, clock=clock)
    directory.add_account(Name("alice"), None)
    token, stored = directory.create_token(Name("alice"), label="", seconds=1)
    assert directory.caller(token.text()).name == "alice"
    clock.ms += 1000
    assert directory.caller(token.text()).has_invalid_token
    forever, stored = directory.create_token(Name("alice"), label="", seconds=None)
    assert directory.caller(forever.text()).name == "alice"
    directory.store.revoke(stored.id)
    assert directory.caller(forever.text()).has_invalid_token


def test_names_without_account_are_not_served_by_a_multi_tenant_node(tmp_path: Path) -> None:
    node = Node(tmp_path, is_multi_tenant=True)
    node.directory.add_account(Name("alice"), None)
    node.add_dataset("orphan", Visibility.PUBLIC)
    with node.running():
        assert node.ask("GET", "/orphan/refs/head", node.token("alice")) == 404


@pytest.mark.parametrize(("local_writers", "status", "secret"), [("off", 403, 404), ("anywhere", 200, 200)])
def test_settings_say_what_programs_on_this_machine_may_do_without_a_token(
    tmp_path: Path, local_writers: str, status: int, secret: int
) -> None:
    node = Node(tmp_path, is_multi_tenant=False, local_writers=local_writers)
    with node.running():
        assert node.ask("POST", f"/{PUBLIC}/ingest", {}) == status
        assert node.ask("GET", f"/{PUBLIC}/refs/head", {}) == 200
        assert node.ask("GET", f"/{PRIVATE}/refs/head", {}) == secret
        assert node.ask("POST", f"/{PRIVATE}/ingest", {}) == secret
        assert node.ask("GET", f"/{PRIVATE}/refs/head", {"Via": "proxy"}) == 404
        assert node.ask("POST", f"/{PUBLIC}/ingest", {"Via": "proxy"}) == status


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
