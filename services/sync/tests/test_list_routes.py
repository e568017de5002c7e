"""`GET /datasets` shows each caller the datasets that they may read, and no trace of others."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import urllib3
from odf_testing.builders import a_chain, a_dataset, a_seed
from odf_testing.http import running
from odf_testing.node_datasets import hold, in_memory

from odf_common.chain.state import ChainState
from odf_common.errors import StorageUnavailable
from odf_common.identity.dataset_refs import Name
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import ObjectKind, incarnation
from odf_sync import search
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Role, Visibility
from odf_sync.http.authorization import Authorizer
from odf_sync.http.endpoints import application
from odf_sync.http.read_routes import ListRoutes
from odf_sync.search import OwnDatasets

Headers = Mapping[str, str]
DATASETS = {
    "alice/open": Visibility.PUBLIC,
    "alice/shared": Visibility.PRIVATE,
    "alice/secret": Visibility.PRIVATE,
    "orphan": Visibility.PUBLIC,
}


class Node:
    """A server of the list alone."""

    def __init__(self, home: Path, *, is_multi_tenant: bool) -> None:
        self.datasets = in_memory()
        self.directory = Directory(AccessStore(home), is_multi_tenant=is_multi_tenant, datasets=self.datasets)
        authorizer = Authorizer(
            catalog=self.datasets.catalog, local_writers="loopback", directory=self.directory
        )
        routes = ListRoutes(OwnDatasets(datasets=self.datasets, in_bucket=False), authorizer)
        self.app = application(authorizer, tuple(routes.endpoints()))
        self.base = ""
        for name, visibility in DATASETS.items():
            hold(
                self.datasets,
                name,
                a_chain(a_seed(dataset=a_dataset(name)), SetInfo(description=f"about {name}")),
            )
            self.directory.store.set_visibility(incarnation(a_dataset(name), ""), visibility)

    def token(self, name: str, **limits: Any) -> Headers:
        token, _ = self.directory.create_token(Name(name), label="", **limits)
        return {"Authorization": f"Bearer {token.text()}"}

    def ask(self, headers: Headers, query: str = "") -> urllib3.BaseHTTPResponse:
        return urllib3.request("GET", f"{self.base}/datasets{query}", headers=dict(headers), retries=False)

    def names(self, headers: Headers) -> list[str]:
        return [one["name"] for one in json.loads(self.ask(headers).data)["datasets"]]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path, is_multi_tenant=True)
    for name in ("alice", "reader", "stranger"):
        node.directory.add_account(Name(name), None)
    reader = node.directory.store.account(Name("reader"))
    node.directory.store.set_role(incarnation(a_dataset("alice/shared"), ""), reader, Role.READER)
    with running(node.app) as node.base:
        yield node


def test_each_caller_sees_what_they_may_read(node: Node) -> None:
    everything = ["alice/open", "alice/secret", "alice/shared"]
    assert node.names({}) == ["alice/open"]
    assert node.names(node.token("stranger")) == ["alice/open"]
    assert node.names(node.token("reader")) == ["alice/open", "alice/shared"]
    assert node.names(node.token("alice")) == everything
    assert node.names(node.token("alice", dataset=incarnation(a_dataset("alice/secret"), ""))) == [
        "alice/open",
        "alice/secret",
    ]
    assert node.ask({"Authorization": "Bearer x"}).status == 401
    assert b"secret" not in node.ask({}).data


def test_caches_ask_again_and_know_callers_apart(node: Node) -> None:
    headers = node.ask({}).headers
    assert (headers["Cache-Control"], headers["Vary"]) == ("no-cache", "Authorization")


def test_a_page_ends_after_a_number_of_datasets_and_of_bytes(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = node.token("alice")
    for limit in ("PAGE_DATASETS", "PAGE_BYTES"):
        with monkeypatch.context() as patch:
            patch.setattr(search, limit, 1)
            page = json.loads(node.ask(alice).data)
            assert [one["name"] for one in page["datasets"]] == ["alice/open"]
            assert page["next"] == "alice/open"
            rest = node.ask(alice, "?after=ALICE%2FSecret")
            assert [one["name"] for one in json.loads(rest.data)["datasets"]] == ["alice/shared"]
            assert json.loads(rest.data)["next"] is None


def test_a_single_tenant_node_lists_private_datasets_to_programs_on_its_machine_only(tmp_path: Path) -> None:
    node = Node(tmp_path, is_multi_tenant=False)
    with running(node.app) as node.base:
        assert node.names({}) == sorted(DATASETS)
        assert node.names({"Via": "proxy"}) == ["alice/open", "orphan"]


def test_a_dataset_that_cannot_be_read_is_left_out(node: Node) -> None:
    dataset = a_dataset("alice/open")
    node.datasets.blobs.remove(
        dataset, ObjectKind.BLOCK, node.datasets.blobs.names(dataset, ObjectKind.BLOCK)
    )
    assert node.names({}) == []


def test_a_folder_that_cannot_be_read_is_left_out_and_a_bucket_that_cannot_be_read_is_said(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    current = node.datasets.states.current

    def refused(dataset: DatasetId) -> ChainState | None:
        if dataset == a_dataset("alice/open"):
            raise StorageUnavailable(file="datasets/x", why="permission denied")
        return current(dataset)

    shared = incarnation(a_dataset("alice/shared"), "")
    node.directory.set_visibility(shared, Visibility.PUBLIC)
    monkeypatch.setattr(node.datasets.states, "current", refused)
    assert node.names({}) == ["alice/shared"]
    monkeypatch.setattr(OwnDatasets, "in_bucket", True)
    assert node.ask({}).status == 503


def test_without_the_database_of_accounts_no_list_is_given(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: object) -> None:
        raise StorageUnavailable(file="access.db", why="disk I/O error")

    monkeypatch.setattr(node.directory.store, "visibility", refused)
    assert node.ask({}).status == 503
