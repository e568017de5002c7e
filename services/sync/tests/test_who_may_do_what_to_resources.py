"""Every route of resources × role × token × resource, on a multi-tenant node and on a single-tenant one.

Resources belong to accounts. A caller who may not read one gets what a name without a resource gets.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from odf_testing.builders import a_dataset

from odf_common.identity.dataset_refs import Name
from odf_common.ports.store import incarnation
from odf_sync.access.rules import Scope

from .access_matrix import PUSHED, RESOURCE, RESOURCES, ROWS, RUNS, Node, Someone, invalid

JSON: Final = {"Content-Type": "application/json"}
PATCH: Final = {"Content-Type": "application/merge-patch+json"}
VARIABLES: Final = "/config/v1alpha1/variableset"
ONE: Final = VARIABLES + "/{ref}"
APPLY: Final = ("POST", "/resource/v1alpha1/apply")
OWN, FOREIGN, ABSENT = "alice", "bob", ""  # whose resource is asked for; alice asks
UNKNOWN_ID: Final = "0b9c1a52-5f0e-4d53-9a3e-6f1b2b7a9d10"
NUMBERS: Final = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request to a route of resources, and its answer to a caller who may do it."""

    route: tuple[str, str]
    path: str
    """`{ref}` stands for the resource."""
    allowed: int = 200
    is_writing: bool = False
    body: object = None
    """`{id}`, `{name}` and `{account}` stand for those of the resource."""
    headers: Mapping[str, str] = field(default_factory=dict)


def manifest(name: str, **headers: str) -> dict[str, Any]:
    return {"$schema": "VariableSet", "headers": {"name": name, **headers}, "spec": {"variables": {"a": "1"}}}


WRITING: Final[dict[str, Any]] = {"is_writing": True, "headers": JSON}
NAMED: Final = manifest("{name}", id="{id}", account="{account}")
CHANGE: Final = {"spec": {"variables": {"b": "2"}}}
CALLS: Final = (
    Call(route=("GET", RESOURCE), path=ONE),
    Call(route=("GET", RESOURCE + "/status"), path=ONE + "/status"),
    Call(route=("GET", RESOURCE + "/history"), path=ONE + "/history"),
    Call(route=("GET", RESOURCE + "/references"), path=ONE + "/references"),
    Call(route=("GET", RESOURCE + "/dependents"), path=ONE + "/dependents"),
    Call(route=("POST", RESOURCE + "/reconcile"), path=ONE + "/reconcile", allowed=202, is_writing=True),
    Call(route=("PATCH", RESOURCE), path=ONE, is_writing=True, headers=PATCH, body=CHANGE),
    Call(route=("PUT", RESOURCE), path=ONE, body=NAMED, **WRITING),
    Call(route=("DELETE", RESOURCE), path=ONE, allowed=202, is_writing=True),
    Call(route=APPLY, path=APPLY[1] + "?dryRun=true", body=NAMED, **WRITING),
)
OF_CALLER: Final = (  # these name no resource: they list and create the caller's own
    Call(route=("GET", RESOURCES), path=VARIABLES),
    Call(route=("POST", RESOURCES), path=VARIABLES, allowed=201, body=manifest("{name}"), **WRITING),
    Call(route=APPLY, path=APPLY[1], allowed=202, body=manifest("{name}"), **WRITING),
)


def test_every_route_of_resources_has_a_call() -> None:
    assert {call.route for call in (*CALLS, *OF_CALLER)} == {
        (method, path) for method, path in ROWS if path.startswith((RESOURCES, APPLY[1]))
    }


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_flows_of_others_have_no_runs(node: Node, method: str) -> None:
    flow = {
        "$schema": "Flow",
        "spec": {"target": "Dataset:x", "triggers": [], "tasks": [{"kind": "Ingest", "source": "x"}]},
    }
    name = f"flow-{next(NUMBERS)}"
    body = json.dumps({**flow, "headers": {"name": name}})
    status, _, created = node.answer("POST", "/flow/v1alpha1/flow", {**node.token("bob"), **JSON}, body)
    assert status == 201, created
    for ref in (f"{name}?account=bob", f"{json.loads(created)['id']}?target=x", UNKNOWN_ID + "?account=bob"):
        for caller_name, caller in callers(node).items():
            is_refused = method == "POST" and caller_name == "to read"
            expected = caller.refused or (403 if is_refused else 404)
            if node.directory.is_multi_tenant or UNKNOWN_ID in ref or expected != 404:
                answer = node.answer(
                    method,
                    RUNS.replace("{ref}", ref.partition("?")[0]) + "?" + ref.partition("?")[2],
                    caller.headers,
                )
                assert answer[0] == expected, (caller_name, answer)


def test_sources_of_others_take_no_pushes(node: Node) -> None:
    of = {}
    for owner in ("alice", "bob"):
        name = f"source-{next(NUMBERS)}"
        plain = {"$schema": "Source", "headers": {"name": name}, "spec": {"read": {"kind": "NdJson"}}}
        created = node.answer(
            "POST", "/source/v1alpha1/source", {**node.token(owner), **JSON}, json.dumps(plain)
        )
        assert created[0] == 201, created
        of[owner] = name
    for owner, name in [*of.items(), ("bob", "nowhere")]:
        for caller_name, caller in callers(node).items():
            is_hidden = name == "nowhere" or (node.directory.is_multi_tenant and owner != OWN)
            allowed = 403 if caller_name == "to read" else 404 if is_hidden else 202
            path = f"{PUSHED.replace('{ref}', name)}?account={owner}"
            found = node.answer("POST", path, caller.headers, "{}")
            assert found[0] == (caller.refused or allowed), (caller_name, path, found)


def test_everyone_may_learn_the_types(node: Node) -> None:
    for caller in callers(node).values():
        status, _, body = node.answer("GET", "/resource/v1alpha1/types", caller.headers)
        assert (status, b"VariableSet" in body) == ((400, False) if caller.refused == 400 else (200, True))


@pytest.fixture(scope="module", params=[True, False], ids=["multi_tenant", "single_tenant"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("home"), is_multi_tenant=request.param)
    for name in ("alice", "bob"):
        node.directory.add_account(Name(name), None)
    with node.running():
        yield node


def callers(node: Node) -> dict[str, Someone]:
    """Return callers; those that are not refused act for alice, or on a single-tenant node for the node."""
    of_dataset = node.token("alice", dataset=incarnation(a_dataset(), ""))
    is_multi_tenant = node.directory.is_multi_tenant
    found = {
        "alice": Someone(headers=node.token("alice")),
        "to write": Someone(headers=node.token("alice", scope=Scope.WRITE)),
        "to read": Someone(headers=node.token("alice", scope=Scope.READ)),
        "of a dataset": Someone(headers=of_dataset, refused=403),
        "elsewhere": Someone(headers={"X-Forwarded-For": "192.0.2.1"}, refused=401),
        "local": Someone(headers={}, refused=401 if is_multi_tenant else None),
    }
    return found | invalid(node)


def add(node: Node, owner: str) -> tuple[str, str, str]:
    """Add a resource of an account, if it is one; return account, name and id."""
    name = f"env-{next(NUMBERS)}"
    if not owner:
        return OWN, name, UNKNOWN_ID
    status, _, body = node.answer(
        "POST", VARIABLES, {**node.token(owner), **JSON}, json.dumps(manifest(name))
    )
    assert status == 201, body
    return owner, name, str(json.loads(body)["id"])


def ask(node: Node, call: Call, caller: Someone, resource: tuple[str, str, str], ref: str) -> tuple[int, str]:
    """Return the status, and the body without what the caller has sent."""
    account, name, identity = resource
    body = None if call.body is None else json.dumps(call.body)
    for key, value in (("{account}", account), ("{name}", name), ("{id}", identity)):
        body = body and body.replace(key, value)
    path = call.path.replace("{ref}", ref)
    status, _, content = node.answer(call.route[0], path, {**caller.headers, **call.headers}, body)
    return status, content.decode().replace(name, "?").replace(identity, "?")


def expected(node: Node, call: Call, name: str, caller: Someone, owner: str) -> int:
    if caller.refused is not None:
        return caller.refused
    if call.is_writing and name == "to read":
        return 403
    may_read = owner == OWN or (owner == FOREIGN and not node.directory.is_multi_tenant)
    return call.allowed if may_read else 404


@pytest.mark.parametrize("owner", [OWN, FOREIGN, ABSENT])
def test_each_caller_gets_what_their_account_and_token_allow(node: Node, owner: str) -> None:
    """What is refused says nothing of a resource that the caller may not read."""
    wrong = []
    for call in CALLS:
        for name, caller in callers(node).items():
            resource = add(node, owner)
            answer = ask(node, call, caller, resource, ref=resource[2])
            absent = ask(node, call, caller, add(node, ABSENT), ref=UNKNOWN_ID)
            status = expected(node, call, name, caller, owner)
            if answer[0] != status or (status == 404 and answer != absent):
                wrong.append((call.route, name, answer, status, absent))
    assert wrong == []


@pytest.mark.parametrize(
    "call", [call for call in CALLS if call.body is not NAMED], ids=lambda call: str(call.route)
)
def test_a_name_means_a_resource_of_the_account_that_is_asked_for(node: Node, call: Call) -> None:
    caller = Someone(headers=node.token("alice"))
    for owner in (OWN, FOREIGN):
        for pattern in ("{}?account=" + owner, owner + "%2F{}"):
            resource = add(node, owner)
            ref, _, query = pattern.format(resource[1]).partition("?")
            asked = replace(call, path=call.path + (f"?{query}" if query else ""))
            assert ask(node, asked, caller, resource, ref)[0] == expected(node, call, "alice", caller, owner)
    of_bob = add(node, FOREIGN)
    assert ask(node, call, caller, of_bob, of_bob[1])[0] == 404  # alice has none of this name


def test_a_caller_lists_and_creates_their_own(node: Node) -> None:
    wrong = []
    for call in OF_CALLER:
        for name, caller in callers(node).items():
            answer = ask(node, call, caller, add(node, ABSENT), ref="")
            status = expected(node, call, name, caller, OWN)
            if answer[0] != status:
                wrong.append((call.route, name, answer, status))
    assert wrong == []


def test_nobody_lists_or_creates_in_the_account_of_another(node: Node) -> None:
    _, name, _ = add(node, FOREIGN)
    alice = {**node.token("alice"), **JSON}
    is_admin = not node.directory.is_multi_tenant
    for query, is_found in ((f"?name={name}", False), (f"?account=bob&name={name}", is_admin)):
        status, _, body = node.answer("GET", VARIABLES + query, alice)
        assert (status, name in body.decode()) == (200, is_found)
    new = json.dumps(manifest(f"new-{name}", account="bob"))
    for path, created in ((APPLY[1] + "?dryRun=true", 200), (VARIABLES, 201)):
        assert node.answer("POST", path, alice, new)[0] == (created if is_admin else 403)
    assert node.answer("POST", APPLY[1] + "?account=nobody", alice, json.dumps(manifest("x")))[0] == 404
