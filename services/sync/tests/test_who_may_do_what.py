"""Every route × method × role × token × dataset, on a multi-tenant node and on a single-tenant one (wire-facts §8.6).

The routes are those that the application lists, so a new endpoint needs a row in `access_matrix.ROWS`. Servers, handlers and
authorization are the real ones. Who may not read a dataset gets what a name without a dataset gets, and endpoints of no
dataset reveal nothing of private ones. There is no role above the owners': nodes are administered over gRPC, not over
HTTP.
"""

import asyncio
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast
from urllib.parse import quote, urlencode

import pytest
from aiohttp import web
from odf_testing.builders import a_dataset
from odf_testing.clocks import ManualClock
from yarl import URL

from odf_common.identity.dataset_refs import Name
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Action, Visibility
from odf_sync.http.endpoints import Endpoint, application
from odf_sync.http.resource_routes import PATTERNS
from odf_sync.http.server import IN_PATH

from .access_matrix import (
    DELETED,
    DERIVED,
    FREE,
    KINDS,
    PRIVATE,
    PUBLIC,
    ROWS,
    RUNS,
    UNKNOWN,
    Answer,
    Node,
    Someone,
    expected_routes,
    few,
    multi_tenant,
    one_of_each,
    routes,
    single_tenant,
    with_names,
)

SAFE: Final = ("GET", "HEAD", "OPTIONS")
METHODS: Final = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PROPFIND")
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


@pytest.fixture(
    scope="module",
    params=[
        (tenancy, is_proxied) for is_proxied in (False, True) for tenancy in (multi_tenant, single_tenant)
    ],
    ids=lambda value: f"{value[0].__name__}{'-behind-a-proxy' * value[1]}",
)
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Node, dict[str, Someone]]]:
    tenancy, is_proxied = request.param
    folder = tmp_path_factory.mktemp("home")
    node, callers = tenancy(folder)
    if is_proxied and "local" in callers:
        callers["local"] = replace(callers["elsewhere"], headers={})
    with node.running(folder / "proxy" if is_proxied else None):
        yield node, callers


@pytest.fixture
def node(world: tuple[Node, dict[str, Someone]]) -> Node:
    return world[0]


@pytest.fixture
def callers(world: tuple[Node, dict[str, Someone]]) -> dict[str, Someone]:
    return world[1]


def test_every_route_has_a_row(node: Node) -> None:
    served = {(one.method, one.path): one.action for one in node.served if not one.path.startswith("/probe-")}
    assert served == {route: row and row.action for route, row in ROWS.items()}
    assert routes(node) == expected_routes(node)


@pytest.mark.parametrize("dataset", KINDS)
def test_each_caller_gets_what_their_role_and_token_allow(
    node: Node, callers: dict[str, Someone], dataset: str
) -> None:
    """What is refused says nothing of a dataset that the caller may not read, whatever route is asked."""
    wrong = []
    for base in node.bases:
        for (method, path), row in node.rows.items():
            # How callers got their rights matters no more to HEAD than to GET, which has the same handler.
            for name, caller in (callers if method != "HEAD" else one_of_each(callers)).items():
                answer = node.ask_route(method, base, dataset, path, caller)
                expected = caller.answer(dataset, row)
                if answer[0] != expected or (not caller.may_read(dataset) and reveals(node, answer, dataset)):
                    wrong.append((method, base + path, name, answer, expected))
    assert wrong == []


def reveals(node: Node, answer: Answer, dataset: str) -> bool:
    """Return whether an answer has more of a private dataset than its name, which the caller has sent."""
    said = (answer[2].decode(errors="replace") + str(answer[1])).replace(dataset, "?")
    return any(secret in said for secret in node.secrets)


@pytest.mark.parametrize("dataset", [PRIVATE, DERIVED, DELETED])
def test_what_may_not_be_read_is_answered_like_a_name_without_a_dataset(
    node: Node, callers: dict[str, Someone], dataset: str
) -> None:
    wrong = []
    for base in node.bases:
        for (method, path), row in node.rows.items():
            for name, caller in one_of_each(callers).items():
                if caller.role(dataset) is None and row.action in (Action.READ, Action.WRITE):
                    found, like = (
                        without_names(node.ask_route(method, base, one, path, caller), one)
                        for one in (dataset, UNKNOWN)
                    )
                    if found != like:
                        wrong.append((method, base + path, name, found, like))
    assert wrong == []


def without_names(answer: Answer, dataset: str) -> tuple[int, dict[str, str], bytes]:
    status, headers, body = answer
    kept = {name: value for name, value in headers.items() if name not in ("Date", "Content-Length")}
    return status, kept, body.replace(dataset.encode(), b"?")


@pytest.mark.parametrize("dataset", [PUBLIC, DERIVED])
def test_a_method_that_a_path_does_not_have_is_refused_as_such_only_to_those_who_may_use_one_like_it(
    node: Node, callers: dict[str, Someone], dataset: str
) -> None:
    wrong = []
    for base in node.bases:
        for path in sorted({path for _, path in node.rows}):
            for method in (one for one in METHODS if (one, path) not in node.rows):
                for name, caller in few(callers).items():
                    status = caller.status(dataset, Action.READ if method in SAFE else Action.WRITE)
                    expected = 405 if status == 200 else status
                    found = node.ask(
                        method, base.format(dataset) + re.sub(r"\{\w+\}", "x", path), caller.headers
                    )
                    if found != expected:
                        wrong.append((method, base + path, name, found, expected))
    assert wrong == []


def is_fault(status: int) -> bool:
    """Return whether the server failed; 501 is what it always answers to queries."""
    return status >= 500 and status != 501


def test_paths_of_no_dataset_have_the_methods_of_their_rows(node: Node, callers: dict[str, Someone]) -> None:
    wrong = []
    for path in sorted({path for (_, path), row in ROWS.items() if row is FREE}):
        for method in METHODS:
            for name, caller in few(callers).items():
                found = node.ask(method, with_names(path), caller.headers)
                is_served = ("GET" if method == "HEAD" else method, path) in ROWS
                is_absent = path == RUNS and found == 503  # the coordinator, which has the flows
                is_wrong = (found == 405) != (not is_served and caller.refused != 400)
                if is_wrong or (is_fault(found) and not is_absent):
                    wrong.append((method, path, name, found))
    assert wrong == []


def test_what_is_no_route_is_not_found_by_anyone(node: Node, callers: dict[str, Someone]) -> None:
    for path in {one.format(name) for one in UNSERVED for name in (PRIVATE, UNKNOWN)}:
        for method in METHODS:
            for caller in few(callers).values():
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
    without_rights = [one for one in one_of_each(callers).values() if one.private is one.derived is None]
    assert without_rights
    assert revealing(node, without_rights) == []
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


OF_RESOURCES: Final = {*PATTERNS["context"].split("|"), "v1alpha1", "variableset"}
FIXED: Final = {path.split("/")[1] for (_, path), row in ROWS.items() if row is FREE} - {"{context}"}
LITERAL: Final = {path.strip("/") for (_, path), row in ROWS.items() if row and "{" not in path}
FOLDERS: Final = {path.split("/")[1] for _, path in ROWS if path.endswith("}")} - {"{context}"}


@pytest.mark.parametrize("is_multi_tenant", [True, False])
def test_no_name_of_a_dataset_is_covered_by_another_path(tmp_path: Path, *, is_multi_tenant: bool) -> None:
    """A dataset may be named `datasets`, `refs` or `info`, and its account too."""
    node = Node(tmp_path, is_multi_tenant=is_multi_tenant)
    router = application(node.authorizer, node.served).router
    names = sorted(FIXED | LITERAL | FOLDERS | OF_RESOURCES)
    accounts = ("ann", *FIXED, *OF_RESOURCES)
    aliases = [{"account": account, "dataset": name} for account in accounts for name in names]

    async def reached(method: str, path: str) -> tuple[str, dict[str, str]]:
        asked = SimpleNamespace(method=method, rel_url=URL(path))  # what a router looks at
        found = await router.resolve(cast(web.Request, asked))
        resource = found.route.resource
        return "" if resource is None else resource.canonical, dict(found)

    async def check() -> None:
        for alias in aliases if is_multi_tenant else [*({"dataset": name} for name in names), *aliases]:
            base = "".join(f"/{{{part}}}" for part in alias)
            for (method, path), row in ROWS.items():
                if row is not FREE:
                    more = dict.fromkeys(IN_PATH.findall(path), "x")
                    asked = (base + path).format(**alias, **more)
                    assert await reached(method, asked) == (base + path, {**alias, **more})

    asyncio.run(check())
