"""Rights and accounts of resources, as requests and commands meet them."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from odf_testing.resource_server import resources_in_memory, serve_resources

from odf_common.adapters.grpc.server import serve
from odf_common.errors import AlreadyExists, OdfError, Unavailable
from odf_common.identity.dataset_refs import DatasetId, Name
from odf_common.ports.store import CatalogEntry, require_entry
from odf_common.proto.odf.node.v1 import access_pb2 as pb
from odf_common.proto.odf.node.v1.resources_pb2 import DatasetGrantItem
from odf_common.resources.failures import DependencyNotReady
from odf_common.resources.node_accounts import NODE_DID, implied_spec
from odf_common.resources.passwords import hash_password, is_password
from odf_common.resources.resource_manifests import written_resources
from odf_coordinator.resources.callers import Subject
from odf_coordinator.resources.lookups import account_named
from odf_coordinator.resources.use_cases import Batch, ResourceRef, Resources
from odf_sync.access.access_servicer import AccessServicer
from odf_sync.access.account_resources import (
    AccountAnnouncements,
    AccountController,
    AccountResources,
    DescribedByResource,
)
from odf_sync.access.remote_login import RemoteLogins
from odf_sync.access.resource_rights import MAX_AGE_SECONDS, GrantWatch, ResourceRights
from odf_sync.access.rules import Account, Role, Scope, Visibility

from .access_matrix import Node as ServedNode
from .node_with_account import ANN, Node, define

NO_CONTEXT: Any = None
BOB = Name("bob")
GIVEN = "ann/shares"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return a node of several accounts with `ann/secret`, and `ann/derived`, which reads it."""
    node = Node(tmp_path / "home", is_multi_tenant=True)
    node.directory.add_account(BOB, None)
    define(node, "ann/secret")
    define(node, "ann/derived", "ann/secret")
    return node


def entry(node: Node, name: str) -> CatalogEntry:
    return require_entry(node.catalog, name)


def give(node: Node, name: str, *rights: str, account: Account | None = None) -> None:
    subject = "" if account is None else str(account.id)
    dataset = str(entry(node, name).dataset_id)
    node.directory.rights.replace(
        DatasetGrantItem(dataset=dataset, account=subject, right=right, by=GIVEN) for right in rights
    )


def role(node: Node, name: str) -> Role | None:
    return node.directory.role(node.directory.store.account(BOB), entry(node, name))


def servicer(node: Node, announcements: AccountAnnouncements | None = None) -> AccessServicer:
    logins = RemoteLogins(node.directory.store)
    return AccessServicer(node.directory, logins, node.catalog, announcements)


def test_the_highest_role_of_commands_and_resources_counts(node: Node) -> None:
    bob = node.directory.store.account(BOB)
    assert role(node, "ann/secret") is None
    give(node, "ann/secret", "editor", "reader", "owner", account=bob)  # no resource makes an owner
    assert (role(node, "ann/secret"), role(node, "ann/derived")) == (Role.EDITOR, None)
    node.directory.store.set_role(entry(node, "ann/secret").incarnation, bob, Role.MAINTAINER)
    assert role(node, "ann/secret") is Role.MAINTAINER
    node.directory.rights.replace(())
    node.directory.store.set_role(entry(node, "ann/secret").incarnation, bob, None)
    assert role(node, "ann/secret") is None


def test_an_attribute_opens_a_dataset_but_not_what_derives_from_private_data(node: Node) -> None:
    give(node, "ann/secret", "allowPublicRead")
    assert (role(node, "ann/secret"), node.visibility("ann/secret")) == (Role.READER, Visibility.PRIVATE)
    give(node, "ann/secret", "allowAnonymousRead")  # not enough
    assert (role(node, "ann/secret"), node.visibility("ann/secret")) == (None, Visibility.PRIVATE)
    give(node, "ann/secret", "allowPublicRead", "allowAnonymousRead")
    assert node.visibility("ann/secret") is Visibility.PUBLIC
    give(node, "ann/derived", "allowPublicRead", "allowAnonymousRead")
    assert (role(node, "ann/derived"), node.visibility("ann/derived")) == (None, Visibility.PRIVATE)


def test_rights_end_while_the_coordinator_cannot_be_asked(node: Node) -> None:
    clock = Clock()
    node.directory.rights = ResourceRights(clock)
    assert role(node, "ann/secret") is None
    give(node, "ann/secret", "reader", account=node.directory.store.account(BOB))
    clock.now = MAX_AGE_SECONDS
    assert role(node, "ann/secret") is Role.READER
    node.directory.rights.confirm()
    clock.now = 2 * MAX_AGE_SECONDS
    assert role(node, "ann/secret") is Role.READER
    clock.now += 0.1
    assert role(node, "ann/secret") is None
    node.directory.rights.confirm()
    assert role(node, "ann/secret") is Role.READER


def test_commands_show_what_resources_give_and_do_not_contradict_it(node: Node) -> None:
    access = servicer(node)
    give(node, "ann/secret", "reader", account=node.directory.store.account(BOB))
    shown = access.ShowAccess(pb.ShowAccessRequest(ref="ann/secret"), NO_CONTEXT)
    assert [(one.account, one.right, one.by) for one in shown.by_resources] == [("bob", "reader", GIVEN)]
    for request in ({"account": "bob", "role": "editor"}, {"account": "bob"}):
        with pytest.raises(DescribedByResource, match=f"Relations:{GIVEN} gives bob reader"):
            access.ChangeAccess(pb.ChangeAccessRequest(ref="ann/secret", **request), NO_CONTEXT)
    private = pb.ChangeAccessRequest(ref="ann/secret", visibility="private")
    access.ChangeAccess(private, NO_CONTEXT)
    give(node, "ann/secret", "allowPublicRead")
    with pytest.raises(DescribedByResource, match="allowPublicRead on ann/secret"):
        access.ChangeAccess(private, NO_CONTEXT)


def document(name: str, account: Account, password: str | None = None, **spec: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"did": str(account.id), "email": f"{name}@example.org", **spec}
    if password is not None:
        fields["password"] = {"value": hash_password(password), "contentEncoding": "argon2id"}
    return {"headers": {"name": name}, "spec": fields}


def test_a_described_account_has_the_password_of_its_manifest_and_goes_with_it(node: Node) -> None:
    store = node.directory.store
    controller = AccountController(store=store, catalog=node.catalog)
    carol = Account(id=store.account(BOB).id, name=Name("carol"))
    store.remove_account(BOB)
    controller.reconcile(document("carol", carol, "correct-horse"))
    assert is_password("correct-horse", store.password(carol.name))
    controller.reconcile(document("carol", carol, "battery-staple"))
    assert is_password("battery-staple", store.password(carol.name))
    controller.reconcile(document("carol", carol))
    assert (store.password(carol.name), store.account(carol.name)) == (None, carol)
    controller.finalize(document("carol", carol))
    controller.finalize(document("carol", carol))  # it may run again
    assert [account.name for account in store.accounts()] == [ANN]


def test_a_manifest_takes_no_account_over_and_none_goes_while_it_owns_datasets(node: Node) -> None:
    store = node.directory.store
    controller = AccountController(store=store, catalog=node.catalog)
    bob = store.account(BOB)
    with pytest.raises(AlreadyExists):
        controller.reconcile(document("ann", bob))
    with pytest.raises(AlreadyExists):
        controller.reconcile(document("dora", bob))
    controller.finalize(document("dora", bob))
    assert store.account(BOB) == bob
    with pytest.raises(DependencyNotReady, match="owns ann/"):
        controller.finalize(document("ann", store.account(ANN)))


def test_accounts_of_commands_and_of_the_node_are_left_alone(node: Node) -> None:
    store = node.directory.store
    controller = AccountController(store=store, catalog=node.catalog)
    node.directory.set_password(BOB, "correct-horse")
    bob = store.account(BOB)
    for name, did in (("bob", str(bob.id)), ("odf", NODE_DID)):
        spec = implied_spec(Name(name), did)
        controller.reconcile({"headers": {"name": name}, "spec": spec})
    controller.reconcile({"headers": {"name": "odf"}, "spec": {"did": NODE_DID, "email": "a@b.org"}})
    assert is_password("correct-horse", store.password(BOB))
    assert [account.name for account in store.accounts()] == [ANN, BOB]


@pytest.fixture
def resources() -> Resources:
    return resources_in_memory()


@pytest.fixture
def address(resources: Resources) -> Iterator[str]:
    server = serve("127.0.0.1:0", lambda server: serve_resources(server, resources))
    yield f"127.0.0.1:{server.port}"
    server.stop(0)


def apply(resources: Resources, text: str) -> None:
    resources.apply(Subject(), Batch(written=written_resources(text.encode())))


def names(resources: Resources) -> list[str]:
    with resources.store.read() as snapshot:
        return [name for name in ("ann", "bob", "carol") if account_named(snapshot, name) is not None]


def test_commands_announce_accounts_and_respect_their_manifests(
    node: Node, resources: Resources, address: str
) -> None:
    store = node.directory.store
    announcements = AccountAnnouncements(store=store, resources=AccountResources(address))
    stop = threading.Event()
    stop.set()
    announcements.run(stop)
    assert names(resources) == ["ann", "bob"]
    access = servicer(node, announcements)
    access.AddAccount(pb.AddAccountRequest(name="carol"), NO_CONTEXT)
    assert names(resources) == ["ann", "bob", "carol"]
    access.SetPassword(pb.SetPasswordRequest(name="carol", password="correct-horse"), NO_CONTEXT)
    apply(resources, "{$schema: Account, headers: {name: carol}, spec: {email: carol@example.org}}")
    with pytest.raises(DescribedByResource, match="Account:carol"):
        access.SetPassword(pb.SetPasswordRequest(name="carol"), NO_CONTEXT)
    with pytest.raises(DescribedByResource, match="Account:carol"):
        access.RemoveAccount(pb.RemoveAccountRequest(name="carol"), NO_CONTEXT)
    assert Name("carol") in [account.name for account in store.accounts()]
    apply(resources, "{$schema: Account, headers: {name: dora}, spec: {email: dora@example.org}}")
    with pytest.raises(AlreadyExists):
        access.AddAccount(pb.AddAccountRequest(name="dora"), NO_CONTEXT)
    assert Name("dora") not in [account.name for account in store.accounts()]


def test_an_account_that_owns_resources_is_not_removed(
    node: Node, resources: Resources, address: str
) -> None:
    announcements = AccountAnnouncements(store=node.directory.store, resources=AccountResources(address))
    announcements.add(node.directory.store.account(BOB))
    apply(
        resources, "{$schema: VariableSet, headers: {name: env, account: bob}, spec: {variables: {a: '1'}}}"
    )
    with pytest.raises(OdfError, match="bob owns VariableSet:env"):
        servicer(node, announcements).RemoveAccount(pb.RemoveAccountRequest(name="bob"), NO_CONTEXT)
    assert node.directory.store.account(BOB).name == BOB


def test_commands_that_a_manifest_may_forbid_are_refused_while_the_coordinator_is_away(node: Node) -> None:
    announcements = AccountAnnouncements(
        store=node.directory.store, resources=AccountResources("127.0.0.1:9")
    )
    access = servicer(node, announcements)
    with pytest.raises(Unavailable):
        access.SetPassword(pb.SetPasswordRequest(name="bob"), NO_CONTEXT)
    with pytest.raises(Unavailable):
        access.RemoveAccount(pb.RemoveAccountRequest(name="bob"), NO_CONTEXT)
    assert node.directory.store.account(BOB).name == BOB


def test_rights_follow_the_stream_of_the_coordinator(node: Node, resources: Resources, address: str) -> None:
    bob = node.directory.store.account(BOB)
    AccountResources(address).announce(bob)
    watch, stop = GrantWatch(node.directory.rights, address), threading.Event()
    thread = threading.Thread(target=watch.run, args=(stop,))
    thread.start()
    relations = (
        "{$schema: Relations, headers: {name: shares}, spec: {relations: [{subject: 'Account:bob', "
        "relation: role, value: reader, object: 'Dataset:secret'}]}}"
    )
    apply(resources, "{$schema: Dataset, headers: {name: secret}, spec: {kind: Root, metadata: []}}")
    found = resources.get(Subject(), ResourceRef(type="Dataset", ref="secret"))
    dataset, rights = DatasetId.parse(str(found.did)), node.directory.rights
    apply(resources, relations)
    eventually(lambda: rights.role(dataset, bob) is Role.READER)
    resources.delete(Subject(), ResourceRef(type="Relations", ref="shares"))
    eventually(lambda: rights.role(dataset, bob) is None)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize("is_multi_tenant", [True, False])
def test_only_tokens_that_manage_give_rights(tmp_path: Path, is_multi_tenant: bool) -> None:
    served = ServedNode(tmp_path, is_multi_tenant=is_multi_tenant)
    served.directory.add_account(Name("alice"), None)
    relations = {"$schema": "Relations", "headers": {"name": "shares"}, "spec": {"relations": []}}
    account = {"$schema": "Account", "headers": {"name": "dora"}, "spec": {"email": "d@example.org"}}
    with served.running():
        for scope, status in ((Scope.READ, 403), (Scope.WRITE, 403), (Scope.MANAGE, 202)):
            headers = {**served.token("alice", scope=scope), "Content-Type": "application/json"}
            url = "/resource/v1alpha1/apply"
            assert served.answer("POST", url, headers, json.dumps(relations))[0] == status
            added = status if scope is not Scope.MANAGE or not is_multi_tenant else 403
            assert served.answer("POST", url, headers, json.dumps(account))[0] == added
        to_write = served.token("alice", scope=Scope.WRITE)
        assert served.answer("DELETE", "/auth/v1alpha1/relations/shares", to_write)[0] == 403


def eventually(condition: Any) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)
