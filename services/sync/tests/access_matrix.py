"""Nodes with datasets of all kinds, callers with all kinds of rights, and what the two get of each route.

The tables say what is expected: `ROWS` the action of each route and its answer if that is allowed, `BY_ROLE` the answer
otherwise. Datasets of `KINDS` are those of alice: a public and a private one, a derivative of the private one that was
published before it became private, a name that no dataset has, and one whose dataset was deleted.
"""

import http.client
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from aiohttp import web
from odf_testing.builders import a_chain, a_dataset, a_seed, a_transform
from odf_testing.http import running
from odf_testing.memory_store import hold, in_files
from odf_testing.resource_server import serve_resources

from odf_common.adapters.grpc.server import serve
from odf_common.adapters.local.process_files import Staging
from odf_common.adapters.networks import PUBLIC as PUBLIC_ADDRESSES
from odf_common.adapters.networks import Networks
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_common.identity.dataset_refs import Name
from odf_common.metadata.events import DatasetKind, SetInfo
from odf_common.ports.store import Incarnation, ObjectKind, incarnation
from odf_common.service.settings import Settings
from odf_sync.access.access_store import ID_BYTES, TOKEN_SECRET_BYTES, AccessStore, Token
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Action, Role, Scope, Visibility
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import ANY_METHOD, Endpoint, application
from odf_sync.http.head_events import HeadWatch
from odf_sync.http.ingest_client import IngestClient
from odf_sync.http.resource_client import ResourceClient
from odf_sync.http.server import Peers, endpoints
from odf_sync.smart.messages import VERSION, VERSION_HEADER

from .ingest_node import RECEIPT, Ingest, registering

FREE: Final = None  # of no dataset: the handler itself answers


@dataclass(frozen=True, kw_only=True)
class Row:
    """A route of a dataset: what it does, and what its handler answers to those who may do that."""

    action: Action
    named: str = "x"
    """Which name is asked for: `head`, `block`, `object` or `receipt`."""
    allowed: int = 200
    created: int = 404
    """The answer to those who may create the dataset, if it does not exist."""


RESOURCES: Final = "/{context}/{version}/{type}"
RESOURCE: Final = RESOURCES + "/{ref}"
RUNS: Final = "/flow/v1alpha1/flow/{ref}/runs"
PUSHED: Final = "/source/v1alpha1/source/{ref}/ingest"
READ, CREATE, WRITE = Action.READ, Action.CREATE, Action.WRITE
ROWS: Final[Mapping[tuple[str, str], Row | None]] = {
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
    ("GET", "/.well-known/odf-jwks.json"): FREE,
    ("GET", "/schemas/{context}/{version}/{name}"): FREE,
    ("GET", "/query"): FREE,
    ("POST", "/query"): FREE,
    ("POST", "/verify"): FREE,
    (
        "POST",
        "/resource/v1alpha1/apply",
    ): FREE,  # who may do what to resources is in `test_who_may_do_what_to_resources`
    ("GET", "/resource/v1alpha1/types"): FREE,
    ("POST", "/resource/v1alpha1/types"): FREE,
    ("POST", RUNS): FREE,
    ("GET", RUNS): FREE,
    ("POST", PUSHED): FREE,
    ("POST", "/graphql"): FREE,
    ("GET", "/graphql/schema"): FREE,
    ("GET", RESOURCES): FREE,
    ("POST", RESOURCES): FREE,
    ("GET", RESOURCE): FREE,
    ("PUT", RESOURCE): FREE,
    ("PATCH", RESOURCE): FREE,
    ("DELETE", RESOURCE): FREE,
    ("GET", RESOURCE + "/status"): FREE,
    ("GET", RESOURCE + "/history"): FREE,
    ("GET", RESOURCE + "/references"): FREE,
    ("GET", RESOURCE + "/dependents"): FREE,
    ("POST", RESOURCE + "/reconcile"): FREE,
    ("GET", "/refs/{ref}"): Row(action=READ, named="head"),
    ("GET", "/blocks/{name}"): Row(action=READ, named="block"),
    ("GET", "/data/{name}"): Row(action=READ, named="object"),
    ("GET", "/checkpoints/{name}"): Row(action=READ, named="object"),
    ("GET", "/packs/{name}"): Row(action=READ, named="block"),
    ("GET", "/signatures/{name}"): Row(action=READ, named="block"),
    ("GET", "/signature-packs/{name}"): Row(action=READ, named="block"),
    ("GET", "/events"): Row(action=READ),
    ("GET", "/tail"): Row(action=READ),
    ("GET", "/metadata"): Row(action=READ),
    ("GET", "/pull"): Row(action=READ, allowed=101),
    ("GET", "/push"): Row(action=CREATE, allowed=101, created=101),
    ("PUT", "/data/{name}"): Row(action=CREATE, named="object"),
    ("PUT", "/checkpoints/{name}"): Row(action=CREATE, named="object"),
    ("PUT", "/archives/{name}"): Row(action=CREATE, named="object", allowed=404),  # no push is in progress
    ("POST", "/ingest"): Row(action=WRITE, allowed=202),
    ("GET", "/ingest/{receipt}"): Row(action=WRITE, named="receipt"),
}
PUBLIC, PRIVATE, DERIVED = "harbours", "wiretaps", "intercepts"  # names that occur in no text of ours
UNKNOWN, DELETED = "nowhere", "shipwrecks"
KINDS: Final = (PUBLIC, PRIVATE, DERIVED, UNKNOWN, DELETED)
DESCRIPTION: Final = "kept from others"
# Responses to callers without a role, and to a reader, an editor, a maintainer and an owner; 200 stands for `allowed`.
_OPEN: Final = {
    Action.READ: (200, 200, 200, 200, 200),
    Action.WRITE: (403, 403, 200, 200, 200),
    Action.CREATE: (403, 403, 200, 200, 200),
    Action.MANAGE: (403, 403, 403, 200, 200),
}
_CLOSED: Final = {
    Action.READ: (404, 200, 200, 200, 200),
    Action.WRITE: (404, 403, 200, 200, 200),
    Action.CREATE: (404, 403, 200, 200, 200),
    Action.MANAGE: (404, 403, 403, 200, 200),
}
BY_ROLE: Final = {PUBLIC: _OPEN, PRIVATE: _CLOSED, DERIVED: _CLOSED}
UPGRADE: Final = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    VERSION_HEADER: str(VERSION),
}
Answer = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True, kw_only=True)
class Someone:
    """A caller, and what they may do."""

    headers: Mapping[str, str]
    public: Role | None = None
    private: Role | None = None
    derived: Role | None = None
    creates: int = 403
    """Response to the creation of a dataset of alice's; 200: it is allowed."""
    refused: int | None = None
    """Response to all requests about datasets, of a caller with a bad token."""

    @property
    def rights(self) -> tuple[object, ...]:
        return self.public, self.private, self.derived, self.creates, self.refused

    def role(self, dataset: str) -> Role | None:
        return {PUBLIC: self.public, PRIVATE: self.private, DERIVED: self.derived}.get(dataset)

    def may_read(self, dataset: str) -> bool:
        return self.status(dataset, Action.READ) == 200

    def status(self, dataset: str, action: Action) -> int:
        """Return the response of the authorization; 200: it is allowed."""
        if self.refused is not None:
            return self.refused
        if dataset not in BY_ROLE:
            return self.creates if action is Action.CREATE else 404
        role = self.role(dataset)
        return BY_ROLE[dataset][action][0 if role is None else role]

    def answer(self, dataset: str, row: Row) -> int:
        """Return the response of a route."""
        status = self.status(dataset, row.action)
        if status != 200:
            return status
        return row.allowed if dataset in BY_ROLE else row.created


class Node:
    """A server with datasets of alice's, and on a single-tenant node of no account's too; ingest is a fake."""

    def __init__(self, home: Path, *, is_multi_tenant: bool, local_writers: str = "loopback") -> None:
        self.datasets = in_files(home)
        self.directory = Directory(AccessStore(home), is_multi_tenant=is_multi_tenant, datasets=self.datasets)
        self.authorizer = Authorizer(
            catalog=self.datasets.catalog, local_writers=local_writers, directory=self.directory
        )
        push = registering(Ingest(Staging(home)))
        self.ingest = serve("127.0.0.1:0", lambda server: (*push(server), *serve_resources(server)))
        heads, unused = HeadWatch(), cast("Any", None)
        heads.is_closed = True  # event streams end at once
        client = IngestClient(f"127.0.0.1:{self.ingest.port}")
        settings = Settings(home=home)
        peers = Peers(ingest=client, resources=ResourceClient(f"127.0.0.1:{self.ingest.port}"))
        self.served = endpoints(self.datasets, settings, self.authorizer, unused, heads, peers=peers)
        self.bases = ("/alice/{}",) if is_multi_tenant else ("/{}", "/alice/{}")
        self.secrets = {PRIVATE, DERIVED, DESCRIPTION}
        self.names: dict[str, Mapping[str, str]] = {}
        for base in self.bases:
            for name in (PUBLIC, PRIVATE, DERIVED, DELETED):
                self.add_dataset(base.format(name).removeprefix("/"), Visibility.PUBLIC)
            # The derivative was published when its input was public; now it is as private as that.
            private = self.datasets.catalog.by_alias(base.format(PRIVATE).removeprefix("/"))
            assert private is not None
            self.directory.set_visibility(private.incarnation, Visibility.PRIVATE)
            self.datasets.catalog.remove(base.format(DELETED).removeprefix("/"))
        self.connections: dict[tuple[str, ...], http.client.HTTPConnection] = {}
        self.base = ""

    def add_dataset(self, alias: str, visibility: Visibility) -> Incarnation:
        """Add a dataset that has an object; the derivative reads the private dataset of its account."""
        name, dataset = alias.rpartition("/")[2], a_dataset(alias)
        is_secret = name in (PRIVATE, DERIVED)
        info = SetInfo(description=DESCRIPTION if is_secret else "for everyone")
        if name == DERIVED:
            read = a_transform(a_dataset(alias.replace(DERIVED, PRIVATE)))
            chain = a_chain(a_seed(DatasetKind.Derivative, dataset), read, info)
        else:
            chain = a_chain(a_seed(dataset=dataset), info)
        hold(self.datasets, alias, chain)
        content = object_of(alias)
        for kind in (ObjectKind.DATA, ObjectKind.CHECKPOINT):
            self.datasets.blobs.put(dataset, kind, physical_hash_of(content), content)
        self.datasets.blobs.put(dataset, ObjectKind.SIGNATURE, chain.state.head, content)
        self.directory.set_visibility(incarnation(dataset, ""), visibility)
        self.names[alias] = names_of(chain.state.head, content)
        if is_secret:
            self.secrets |= {str(dataset).removeprefix("did:odf:"), str(chain.state.head)}
        return incarnation(dataset, "")

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

    def application(self, proxies: Networks = PUBLIC_ADDRESSES) -> web.Application:
        return application(self.authorizer, self.served, proxies=proxies)

    @contextmanager
    def running(self, proxy: Path | None = None) -> Iterator["Node"]:
        """Serve inside the block, behind a proxy if there is a folder for its files."""
        try:
            with running(self.application(), proxy) as base:
                self.base = base.removeprefix("http://")
                yield self
        finally:
            self.close()

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()
        self.ingest.stop(0)

    def answer(
        self, method: str, path: str, headers: Mapping[str, str], body: str | bytes | None = None
    ) -> Answer:
        """Send a request; one connection is used for all requests of the same caller."""
        key = (headers.get("Authorization", ""), headers.get("X-Forwarded-For", ""))
        if key not in self.connections:
            self.connections[key] = http.client.HTTPConnection(self.base, timeout=10)
        connection = self.connections[key]
        try:
            connection.request(method, path, body, headers=dict(headers))
            answer = connection.getresponse()
        except (
            ConnectionError
        ):  # a proxy closes connections that have been used for long, or after a refused body
            connection.close()
            connection.request(method, path, body, headers=dict(headers))
            answer = connection.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read()
        if answer.status == 101:
            connection.close()
        return found

    def ask(self, method: str, path: str, headers: Mapping[str, str]) -> int:
        return self.answer(method, path, headers)[0]

    def ask_route(self, method: str, base: str, dataset: str, path: str, caller: Someone) -> Answer:
        """Send a request to a route of a dataset, with the names that the dataset has."""
        row, alias = self.rows[method, path], base.format(dataset).removeprefix("/")
        names = self.names.get(alias) or self.names[base.format(PRIVATE).removeprefix("/")]
        asked = base.format(dataset) + path.partition("{")[0] + (names[row.named] if "{" in path else "")
        body = None
        if method == "PUT":
            body = object_of(alias if alias in self.names else base.format(PRIVATE).removeprefix("/"))
        if method == "POST":
            asked, body = f"{asked}?wait=no", b'{"a":1}\n'
        more = UPGRADE if row.allowed == 101 else {}
        more = more | ({"Content-Type": "application/x-ndjson"} if method == "POST" else {})
        return self.answer(method, asked, {**caller.headers, **more}, body)

    @property
    def rows(self) -> dict[tuple[str, str], Row]:
        """Return the routes of datasets, with those of the probes and `HEAD`."""
        rows = {route: row for route, row in ROWS.items() if row is not None}
        rows |= {
            ("GET", one.path): Row(action=one.action, created=200)
            for one in self.served
            if one.action and "probe" in one.path
        }
        heads = {("HEAD", path): row for (method, path), row in rows.items() if method == "GET"}
        heads |= {
            route: replace(row, allowed=405, created=405)
            for route, row in heads.items()
            if row.allowed == 101
        }
        return rows | heads


def object_of(alias: str) -> bytes:
    return f"{DESCRIPTION}: {alias}".encode()


def with_names(path: str) -> str:
    """Return a path of no dataset, with names in place of its variables."""
    names = {"context": "config", "version": "v1alpha1", "type": "variableset"}
    return re.sub(r"{(\w+)}", lambda found: names.get(found[1], "x"), path)


def names_of(head: Multihash, content: bytes) -> Mapping[str, str]:
    return {
        "head": "head",
        "block": str(head),
        "object": str(physical_hash_of(content)),
        "receipt": RECEIPT,
        "x": "x",
    }


async def ok(_: web.Request) -> web.Response:
    return web.Response()


ELSEWHERE: Final = (ANY_METHOD, "/{path}")  # not found


def routes(node: Node) -> set[tuple[str, str]]:
    """Return method and path of each route, as the application itself lists them, but for that of all other paths."""
    listed = node.application().router.routes()
    found = {(one.method, one.resource.canonical) for one in listed if one.resource is not None}
    assert ELSEWHERE in found
    return found - {ELSEWHERE}


def expected_routes(node: Node) -> set[tuple[str, str]]:
    """Return what the rows say there is; `*` stands for the methods that a path does not have."""
    bases = [base.format("{dataset}").replace("alice", "{account}") for base in node.bases]
    stated = {(method, base + path) for method, path in node.rows for base in bases}
    free = {(method, path) for (method, path), row in ROWS.items() if row is FREE}
    stated |= free | {("HEAD", path) for method, path in free if method == "GET"}
    return stated | {(ANY_METHOD, path) for _, path in stated}


def invalid(node: Node) -> dict[str, Someone]:
    """Return callers whose tokens are no longer valid, or never were."""
    expired, _ = node.directory.create_token(Name("alice"), label="", seconds=0)
    revoked, stored = node.directory.create_token(Name("alice"), label="")
    valid, _ = node.directory.create_token(Name("alice"), label="")
    node.directory.store.revoke(stored.id)
    forged = Token(valid.raw[:ID_BYTES] + bytes(TOKEN_SECRET_BYTES))  # of the id of a valid one
    texts = {
        "unknown": Token.new().text(),
        "forged": forged.text(),
        "truncated": valid.text()[:-1],
        "garbage": "x",
        "expired": expired.text(),
        "revoked": revoked.text(),
    }
    callers = {
        name: Someone(headers={"Authorization": f"Bearer {text}"}, refused=401)
        for name, text in texts.items()
    }
    return callers | {"no bearer": Someone(headers={"Authorization": "Basic YTpi"}, refused=400)}


def of_alice(name: str) -> Incarnation:
    return incarnation(a_dataset(f"alice/{name}"), "")


def with_role(role: Role | None, **rights: Any) -> dict[str, Any]:
    """Return the rights of a caller who has one role on all datasets."""
    return {"public": role, "private": role, "derived": role, **rights}


def limited(node: Node) -> dict[str, Someone]:
    """Return callers with tokens of alice's that allow less than she may."""
    to_read, to_write = (node.token("alice", scope=scope) for scope in (Scope.READ, Scope.WRITE))
    only = {name: node.token("alice", dataset=of_alice(name)) for name in (*BY_ROLE, DELETED)}
    read_private = node.token("alice", scope=Scope.READ, dataset=of_alice(PRIVATE))
    return {
        "to read": Someone(headers=to_read, **with_role(Role.READER)),
        "to write": Someone(headers=to_write, **with_role(Role.EDITOR, creates=200)),
        "of the public one": Someone(headers=only[PUBLIC], public=Role.OWNER),
        "of the private one": Someone(headers=only[PRIVATE], private=Role.OWNER),
        "of the derived one": Someone(headers=only[DERIVED], derived=Role.OWNER),
        "of the deleted one": Someone(headers=only[DELETED]),
        "to read the private one": Someone(headers=read_private, private=Role.READER),
    }


def multi_tenant(home: Path) -> tuple[Node, dict[str, Someone]]:
    """Return a node, and callers with each role and each kind of token."""
    node = Node(home, is_multi_tenant=True).with_probes()
    roles = {role.name.lower(): role for role in (Role.READER, Role.EDITOR, Role.MAINTAINER)}
    for name in ("alice", "odf", "admin", "stranger", "informant", *roles):
        node.directory.add_account(Name(name), None)

    def grant(name: str, role: Role, *datasets: str) -> None:
        for dataset in datasets:
            node.directory.store.set_role(of_alice(dataset), node.directory.store.account(Name(name)), role)

    for name, role in roles.items():
        grant(name, role, PUBLIC, PRIVATE, DERIVED, DELETED)
    grant("informant", Role.EDITOR, PRIVATE)  # and not what derives from it
    callers = {name: Someone(headers=node.token(name), **with_role(role)) for name, role in roles.items()}
    callers |= {name: Someone(headers=node.token(name)) for name in ("odf", "admin", "stranger")}
    callers["informant"] = Someone(headers=node.token("informant"), private=Role.EDITOR)
    callers["anonymous"] = Someone(headers={}, creates=401)
    callers["alice"] = Someone(headers=node.token("alice"), **with_role(Role.OWNER, creates=200))
    return node, callers | limited(node) | invalid(node)


def single_tenant(home: Path) -> tuple[Node, dict[str, Someone]]:
    """Return a node whose accounts and local programs own all, and callers."""
    node = Node(home, is_multi_tenant=False).with_probes()
    node.directory.add_account(Name("alice"), None)
    elsewhere = {"X-Forwarded-For": "192.0.2.1"}
    callers = {
        "local": Someone(headers={}, **with_role(Role.OWNER, creates=200)),
        "elsewhere": Someone(headers=elsewhere, creates=401),
        "alice": Someone(headers=elsewhere | node.token("alice"), **with_role(Role.OWNER, creates=200)),
        "to read": limited(node)["to read"],
    }
    bad = invalid(node)
    return node, callers | {name: bad[name] for name in ("expired", "forged", "no bearer")}


def one_of_each(callers: Mapping[str, Someone]) -> dict[str, Someone]:
    """Return one caller for each set of rights; how they got theirs is compared on the routes that exist."""
    return dict({caller.rights: (name, caller) for name, caller in callers.items()}.values())


def few(callers: Mapping[str, Someone]) -> dict[str, Someone]:
    """Return some very different callers, for what is no route: those that exist are compared for all."""
    names = ("anonymous", "elsewhere", "local", "reader", "alice", "expired", "no bearer")
    return {name: callers[name] for name in names if name in callers}
