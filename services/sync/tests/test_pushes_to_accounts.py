"""A push sets the visibility of the dataset that it creates, and of no other; a refusal reveals nothing about others."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import urllib3
from odf_testing.bus import MemoryBus
from odf_testing.sync_node import SyncNode

from odf_common.codec.envelopes import decode
from odf_common.errors import AlreadyExists, NotFound
from odf_common.identity.dataset_refs import Name
from odf_common.ports.bus import AUDIT
from odf_common.ports.store import require_entry
from odf_common.service.audit import Audit
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.remote_login import AccessForbidden
from odf_sync.access.rules import Role
from odf_sync.access.rules import Visibility as Rule
from odf_sync.http.authorization import Authorizer
from odf_sync.smart.exchange import TransferRefused
from odf_sync.smart.messages import DatasetVisibility
from odf_sync.transfer import accept_push
from odf_sync.transfer.local_copy import Privacy
from odf_sync.transfer.objects import check_stored
from odf_sync.transfer.push_dataset import push
from odf_sync.transfer.push_source import AnotherVisibility, Push, Uploader

ACCOUNTS = ("ann", "bob", "carl")


class Node(SyncNode):
    """A multi-tenant node."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.directory = Directory(AccessStore(home), is_multi_tenant=True)
        for name in ACCOUNTS:
            self.directory.add_account(Name(name), None)
        self.authorizer = Authorizer(catalog=self.catalog, local_writers="off", directory=self.directory)
        self.audit, self.bus = Audit(), MemoryBus()

    def token(self, account: str) -> str:
        return self.directory.create_token(Name(account), label="")[0].text()

    def visibility(self, alias: str) -> Rule:
        return self.directory.visibility(require_entry(self.catalog, alias).incarnation)

    @contextmanager
    def running(self) -> Iterator[str]:
        with self.served(self.authorizer, self.audit) as base:
            yield base

    def refused(self) -> list[tuple[str, str, str, int]]:
        """Return what the audit has of requests that were refused since the last call."""
        self.audit.finish(self.bus)
        noted = [decode(*message).access_decision for message in self.bus.topics.pop(AUDIT, [])]
        return [
            (one.account, one.route.rpartition("/")[2], one.action, one.status)
            for one in noted
            if not one.is_allowed
        ]


@pytest.fixture
def here(tmp_path: Path) -> SyncNode:
    node = SyncNode(tmp_path / "here")
    node.add_cities(["Kyiv"])
    return node


@pytest.fixture
def there(tmp_path: Path) -> Node:
    return Node(tmp_path / "there")


@pytest.mark.parametrize("visibility", DatasetVisibility)
def test_a_new_dataset_has_the_visibility_that_its_push_asks_for(
    here: SyncNode, there: Node, visibility: DatasetVisibility
) -> None:
    with there.running() as base:
        target = f"odf+{base}/ann/cities"
        for wanted in (
            visibility,
            DatasetVisibility.PUBLIC,
            DatasetVisibility.PRIVATE,
        ):  # only the creation sets it
            here.push("cities", target, visibility=wanted, token=there.token("ann"))
            here.coordinator.push("cities", "Oslo", minute=9)
            assert there.visibility("ann/cities") == visibility.value.lower()


@pytest.mark.parametrize("visibility", DatasetVisibility)
def test_a_dataset_that_exists_is_not_pushed_under_another_visibility(
    here: SyncNode, there: Node, visibility: DatasetVisibility
) -> None:
    (other,) = set(DatasetVisibility) - {visibility}
    with there.running() as base:
        to: dict[str, Any] = {
            "target": f"odf+{base}/ann/cities",
            "token": there.token("ann"),
            "is_chosen": True,
        }
        here.push("cities", **to, visibility=visibility)
        pushed = there.head("ann/cities")
        for _ in ("nothing is new", "a block is new"):
            with pytest.raises(
                AnotherVisibility, match=f"cities is to be {other.value.lower()}, but "
            ) as refused:
                here.push("cities", **to, visibility=other)
            assert f"`odf access set DATASET --visibility {other.value.lower()}`" in refused.value.advice()
            assert there.head("ann/cities") == pushed
            here.coordinator.push("cities", "Oslo", minute=9)
        assert here.push("cities", **to, visibility=visibility)[-1].state == "updated"


def test_a_dataset_that_is_private_here_is_not_pushed_to_where_everyone_reads_it(
    here: SyncNode, there: Node, tmp_path: Path
) -> None:
    directory = Directory(AccessStore(tmp_path / "here"), is_multi_tenant=False)
    with there.running() as base:
        to: dict[str, Any] = {
            "target": f"odf+{base}/ann/cities",
            "token": there.token("ann"),
            "privacy": Privacy(directory),
        }
        here.push("cities", **to, visibility=DatasetVisibility.PUBLIC, is_chosen=True)
        entry = require_entry(here.catalog, "cities")
        directory.set_visibility(entry.incarnation, Rule.PRIVATE)
        here.coordinator.push("cities", "Oslo", minute=9)
        with pytest.raises(AnotherVisibility, match="cities is to be private, but everyone can read it at"):
            here.push("cities", **to)
        assert there.head("ann/cities") != here.head("cities")
        here.push("cities", **to, visibility=DatasetVisibility.PUBLIC, is_chosen=True)
        assert there.head("ann/cities") == here.head("cities")


def test_the_visibility_is_set_before_the_name_becomes_visible(
    here: SyncNode, there: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, seen = there.catalog.add, list[Rule]()

    def watched(entry: Any) -> None:
        seen.append(there.directory.visibility(entry.incarnation))
        add(entry)

    monkeypatch.setattr(there.catalog, "add", watched)
    with there.running() as base:
        target = f"odf+{base}/ann/cities"
        here.push("cities", target, visibility=DatasetVisibility.PUBLIC, token=there.token("ann"))
    assert seen == [Rule.PUBLIC]


def test_a_dataset_that_another_account_has_pushed_meanwhile_keeps_its_visibility_and_roles(
    here: SyncNode, there: Node
) -> None:
    with there.running() as base:
        wanted = Push(dataset="cities", target=f"odf+{base}/bob/cities", visibility=DatasetVisibility.PUBLIC)
        bobs = there.token("bob")
        steps = push(here.datasets, here.settings, wanted, lambda _: bobs)
        assert "objects" in {next(steps).state for _ in range(3)}
        here.push("cities", f"odf+{base}/ann/cities", token=there.token("ann"))
        created = require_entry(there.catalog, "ann/cities").incarnation
        carl = there.directory.store.account(Name("carl"))
        there.directory.store.set_role(created, carl, Role.READER)
        with pytest.raises(TransferRefused) as refused:
            list(steps)
        assert "ann" not in str(refused.value)
        assert str(there.head("ann/cities")) not in str(refused.value)
        assert urllib3.request("GET", f"{base}/ann/cities/refs/head").status == 404
    assert there.visibility("ann/cities") is Rule.PRIVATE
    assert there.directory.store.roles(created) == {carl: Role.READER}


def test_only_those_who_may_read_a_dataset_learn_that_it_has_another_name(
    here: SyncNode, there: Node
) -> None:
    with there.running() as base:
        here.push("cities", f"odf+{base}/ann/cities", token=there.token("ann"))
        with pytest.raises(TransferRefused, match=r"refused: it cannot be created under this name now$"):
            here.push("cities", f"odf+{base}/bob/cities", token=there.token("bob"))
        entry = require_entry(there.catalog, "ann/cities")
        bob = there.directory.store.account(Name("bob"))
        there.directory.store.set_role(entry.incarnation, bob, Role.READER)
        with pytest.raises(TransferRefused, match=r"refused: it has this dataset as ann/cities$"):
            here.push("cities", f"odf+{base}/bob/cities", token=there.token("bob"))


@pytest.mark.parametrize("is_new", [True, False])
def test_a_token_that_is_revoked_while_objects_are_sent_moves_no_head(
    here: SyncNode, there: Node, is_new: bool
) -> None:
    with there.running() as base:
        target = f"odf+{base}/ann/cities"
        if not is_new:
            here.push("cities", target, token=there.token("ann"))
            here.coordinator.push("cities", "Oslo", minute=9)
        before = there.head("ann/cities")
        token, stored = there.directory.create_token(Name("ann"), label="")
        steps = push(
            here.datasets, here.settings, Push(dataset="cities", target=target), lambda _: token.text()
        )
        while next(steps).state != "committing":
            pass
        there.directory.store.revoke(stored.id)
        there.refused()
        with pytest.raises(TransferRefused, match="may no longer push"):
            list(steps)
    assert there.head("ann/cities") == before
    assert there.refused() == [("ann", "push", "create", 401)]


def test_a_token_that_is_revoked_while_objects_are_checked_moves_no_head(
    here: SyncNode, there: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, stored = there.directory.create_token(Name("ann"), label="")

    def revoking(*arguments: Any) -> None:
        check_stored(*arguments)
        time.sleep(0.2)  # the client asks for the commit meanwhile
        there.directory.store.revoke(stored.id)

    monkeypatch.setattr(accept_push, "check_stored", revoking)
    with there.running() as base, pytest.raises(TransferRefused, match="may no longer push"):
        here.push("cities", f"odf+{base}/ann/cities", token=token.text())
    assert there.head("ann/cities") is None


def test_a_dataset_that_was_given_away_during_a_push_is_not_moved(here: SyncNode, there: Node) -> None:
    """The name is free then, so its former owner may create a dataset there."""
    with there.running() as base:
        target = f"odf+{base}/ann/cities"
        here.push("cities", target, token=there.token("ann"))
        here.coordinator.push("cities", "Oslo", minute=9)
        before = there.head("ann/cities")
        steps = push(
            here.datasets, here.settings, Push(dataset="cities", target=target), lambda _: there.token("ann")
        )
        while next(steps).state != "committing":
            pass
        there.coordinator.names.rename("ann/cities", "bob/cities")
        with pytest.raises(TransferRefused, match="may no longer push"):
            list(steps)
    assert there.head("bob/cities") == before
    assert there.catalog.by_alias("ann/cities") is None
    assert there.refused()[-1] == ("ann", "push", "create", 404)


def test_an_editor_who_is_no_longer_a_maintainer_replaces_nothing(here: SyncNode, there: Node) -> None:
    with there.running() as base:
        target = f"odf+{base}/ann/cities"
        here.push("cities", target, token=there.token("ann"))
        here.coordinator.push("cities", "Oslo", minute=9)
        created = require_entry(there.catalog, "ann/cities").incarnation
        bob, token = there.directory.store.account(Name("bob")), there.token("bob")
        there.directory.store.set_role(created, bob, Role.MAINTAINER)
        wanted = Push(dataset="cities", target=target, is_forced=True)
        steps = push(here.datasets, here.settings, wanted, lambda _: token)
        while next(steps).state != "committing":
            pass
        there.directory.store.set_role(created, bob, Role.EDITOR)
        before = there.head("ann/cities")
        with pytest.raises(TransferRefused, match="may no longer push"):
            list(steps)
        assert there.head("ann/cities") == before
    assert there.refused()[-1] == ("bob", "push", "manage", 403)


def test_a_push_to_a_name_without_an_account_says_what_names_are(here: SyncNode, there: Node) -> None:
    with there.running() as base:
        with pytest.raises(NotFound, match="/cities/push does not exist") as missing:
            here.push("cities", f"odf+{base}/cities", token=there.token("ann"))
        with pytest.raises(AccessForbidden, match="you may not write it") as refused:
            here.push("cities", f"odf+{base}/bob/cities", token=there.token("ann"))
    assert "ACCOUNT/DATASET on a node with accounts" in missing.value.advice()
    assert "ask its owner for a role" in refused.value.advice()
    assert "under its own name only" in refused.value.advice()


@pytest.mark.parametrize("alias", ["bob/cities", "ann/cities"])
def test_a_copy_is_private_after_a_refused_push_of_it_as_public(
    here: SyncNode, there: Node, monkeypatch: pytest.MonkeyPatch, alias: str
) -> None:
    with there.running() as base, monkeypatch.context() as patch:
        patch.setattr(Uploader, "send", lambda *_: None)
        target = f"odf+{base}/bob/cities"
        with pytest.raises(TransferRefused, match="not sent"):
            here.push("cities", target, visibility=DatasetVisibility.PUBLIC, token=there.token("bob"))
    with here.served() as base:
        there.pull(f"{base}/cities", alias)
    assert there.visibility(alias) is Rule.PRIVATE


def test_a_deleted_dataset_that_is_pulled_again_is_private_and_has_no_roles(
    here: SyncNode, there: Node
) -> None:
    with there.running() as base:
        target = f"odf+{base}/bob/cities"
        here.push("cities", target, visibility=DatasetVisibility.PUBLIC, token=there.token("bob"))
    entry = require_entry(there.catalog, "bob/cities")
    there.directory.store.set_role(
        entry.incarnation, there.directory.store.account(Name("carl")), Role.EDITOR
    )
    there.coordinator.names.delete("bob/cities")
    with here.served() as base:
        there.pull(f"{base}/cities", "ann/cities")
    again = require_entry(there.catalog, "ann/cities")
    assert again.dataset_id == entry.dataset_id
    assert there.visibility("ann/cities") is Rule.PRIVATE
    assert there.directory.store.roles(again.incarnation) == {}


def test_a_pull_reports_the_local_name_of_its_dataset(here: SyncNode, there: Node) -> None:
    with here.served() as base:
        there.pull(f"{base}/cities", "ann/cities")
        with pytest.raises(AlreadyExists, match="locally named ann/cities"):
            there.pull(f"{base}/cities", "bob/cities")
