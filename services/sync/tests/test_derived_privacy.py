"""What comes from a private dataset is private, whatever came first, unless someone made it public with that input."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from odf_testing.builders import a_dataset

from odf_common.chain.walk import raw_blocks
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.errors import NotFound, StorageUnavailable, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import PUBLIC_MARK, CatalogEntry, ObjectKind, block_reader, require_entry
from odf_common.proto.odf.node.v1 import access_pb2 as pb
from odf_sync.access.access_servicer import AccessServicer
from odf_sync.access.access_store import AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.remote_login import RemoteLogins
from odf_sync.access.rules import Visibility as Rule

from .node_with_account import Node, a_node_with_derivatives, define, folder_of, visibilities

PUBLIC, PRIVATE = Rule.PUBLIC, Rule.PRIVATE


def published(home: Path, *, is_multi_tenant: bool, first: Rule) -> Node:
    """Return a node with a private dataset, and a public one, read by `a/first`, that by the published `a/second`."""
    node = Node(home, is_multi_tenant=is_multi_tenant)
    for visibility, name, *inputs in (
        (PRIVATE, "b/secret"),
        (PUBLIC, "a/open"),
        (first, "a/first", "a/open"),
        (PUBLIC, "a/second", "a/first"),
    ):
        define(node, name, *inputs)
        node.set_visibility(name, visibility)
    return node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return a_node_with_derivatives(tmp_path / "home")


ALL_PUBLIC = dict.fromkeys(("cities", "first", "second", "towns"), "public")


def make_private(node: Node) -> None:
    node.set_visibility("cities", PRIVATE)


def replace_query(node: Node) -> None:
    node.set_visibility("towns", PRIVATE)
    define(node, "first", "towns")


def roll_back(node: Node) -> None:
    before = node.head("first")
    assert before is not None
    define(node, "first", "towns")
    node.set_visibility("cities", PRIVATE)
    assert visibilities(node)["first"] == "public"
    node.coordinator.editor.reset("first", before)


@pytest.mark.parametrize("change", [make_private, replace_query, roll_back])
def test_what_comes_from_a_private_dataset_is_private_whatever_came_first(
    node: Node, change: Callable[[Node], None]
) -> None:
    assert visibilities(node) == ALL_PUBLIC
    change(node)
    found = visibilities(node)
    assert (found["first"], found["second"]) == ("private", "private")
    assert sorted(found.values()) == ["private", "private", "private", "public"]


def test_it_is_public_again_with_its_input(node: Node) -> None:
    for visibility in (PRIVATE, PUBLIC):
        node.set_visibility("cities", visibility)
        assert {visibilities(node)[name] for name in ("cities", "first", "second")} == {visibility.value}


def test_a_copy_without_data_is_private_once_its_private_input_arrives(node: Node, tmp_path: Path) -> None:
    here = Node(tmp_path / "here", is_multi_tenant=False)
    place = (tmp_path / "exported").as_uri()
    node.push("first", place)
    assert not here.pull(place, "first", privacy=here.privacy)[-1].is_private
    assert visibilities(here) == {"first": "public"}
    node.set_visibility("cities", PRIVATE)
    home = folder_of(node, "cities")

    here.pull(home.as_uri(), "cities", privacy=here.privacy)

    assert visibilities(here) == {"cities": "private", "first": "private"}


@pytest.mark.parametrize("is_new", [True, False])
def test_a_copy_whose_chain_reads_what_is_private_here_is_private_and_that_is_said(
    node: Node, tmp_path: Path, is_new: bool
) -> None:
    here = Node(tmp_path / "here", is_multi_tenant=False)
    place = (tmp_path / "exported").as_uri()
    cities = folder_of(node, "cities")
    here.pull(cities.as_uri(), "cities", privacy=here.privacy)
    if not is_new:
        define(node, "first", "towns")
        node.push("first", place)
        here.pull(place, "copy", privacy=here.privacy)
        define(node, "first", "cities")
    node.push("first", place)
    here.set_visibility("cities", PRIVATE)

    steps = list(here.pull(place, "copy", privacy=here.privacy))

    assert [step.state for step in steps if step.is_private] == ["updated"]
    assert visibilities(here) == {"cities": "private", "copy": "private"}


def test_who_makes_a_dataset_public_publishes_what_it_leaves_of_private_ones_of_that_moment(
    node: Node,
) -> None:
    node.set_visibility("cities", PRIVATE)
    node.set_visibility("towns", PRIVATE)
    node.set_visibility("first", PUBLIC)
    expected = {"cities": "private", "first": "public", "second": "public", "towns": "private"}
    assert visibilities(node) == expected
    define(node, "first", "cities", "towns")
    assert visibilities(node) == expected | {"first": "private", "second": "private"}
    node.set_visibility("first", PUBLIC)
    assert visibilities(node) == expected


@pytest.mark.parametrize("is_multi_tenant", [False, True])
def test_who_makes_a_dataset_public_publishes_nothing_that_reaches_it_later_by_others(
    tmp_path: Path, is_multi_tenant: bool
) -> None:
    node = published(tmp_path, is_multi_tenant=is_multi_tenant, first=PUBLIC)
    assert node.visibility("a/second") is PUBLIC
    define(node, "a/first", "b/secret")
    assert (node.visibility("a/first"), node.visibility("a/second")) == (PRIVATE, PRIVATE)
    node.set_visibility("a/second", PUBLIC)
    assert (node.visibility("a/first"), node.visibility("a/second")) == (PRIVATE, PUBLIC)


def test_a_public_derivative_of_another_account_gets_no_private_input_in_silence(tmp_path: Path) -> None:
    node = Node(tmp_path, is_multi_tenant=True)
    for name, *inputs in (("bob/secret",), ("ann/open",), ("ann/derived", "ann/open")):
        define(node, name, *inputs)
    for name in ("ann/open", "ann/derived"):
        node.set_visibility(name, PUBLIC)
    assert node.visibility("ann/derived") is PUBLIC

    define(node, "ann/derived", "bob/secret")

    assert node.visibility("ann/derived") is PRIVATE


def test_a_choice_ends_with_the_dataset_also_if_its_note_is_left_behind(node: Node) -> None:
    entry = require_entry(node.catalog, "first")
    node.set_visibility("cities", PRIVATE)
    node.set_visibility("first", PUBLIC)
    again = replace(entry, creation="another")
    node.catalog.replace(again)
    assert node.blobs.note(entry.dataset_id, PUBLIC_MARK) is not None
    assert node.directory.visibility(again.incarnation) is PRIVATE


def test_a_choice_stays_without_the_database(node: Node) -> None:
    node.set_visibility("cities", PRIVATE)
    node.set_visibility("first", PUBLIC)
    lost = Directory(AccessStore(None), is_multi_tenant=True, datasets=node.datasets)
    first = require_entry(node.catalog, "first").incarnation
    assert lost.visibility(first) is PUBLIC
    lost.make_private_by_default(first)
    assert lost.visibility(first) is PUBLIC
    assert lost.visibility(require_entry(node.catalog, "towns").incarnation) is PRIVATE


def test_a_damaged_chain_makes_only_its_dataset_and_what_comes_from_it_private(node: Node) -> None:
    entry, head = require_entry(node.catalog, "first"), node.head("first")
    assert head is not None
    node.blobs.local_path(entry.dataset_id, ObjectKind.BLOCK, head).unlink()
    states = ChainStates(node.blobs, node.refs, NoStateCache())
    cold = Directory(AccessStore(None), is_multi_tenant=False, datasets=replace(node.datasets, states=states))
    found = {entry.alias: cold.visibility(entry.incarnation).value for entry in node.catalog.entries()}
    assert found == ALL_PUBLIC | {"first": "private", "second": "private"}
    cities = require_entry(node.catalog, "cities").dataset_id
    assert not list(cold.derivatives(cities)), "what cannot be read is left out"


@pytest.mark.parametrize("is_multi_tenant", [False, True])
def test_what_reaches_a_private_dataset_later_is_not_published_by_those_it_was_published_with(
    tmp_path: Path, is_multi_tenant: bool
) -> None:
    node = published(tmp_path, is_multi_tenant=is_multi_tenant, first=PRIVATE)
    second = require_entry(node.catalog, "a/second").incarnation
    assert node.directory.published_origins(second) == ["a/first"]
    assert node.visibility("a/second") is PUBLIC
    define(node, "a/first", "b/secret")
    assert node.directory.private_origins(second) == ["b/secret"]
    assert node.visibility("a/second") is PRIVATE
    (folder_of(node, "a/first") / "refs" / "head").unlink()
    assert node.visibility("a/second") is PRIVATE, "nobody knows what it reads now"


@pytest.mark.parametrize("lost", ["cities", "first"])
def test_a_lost_name_makes_nothing_public(node: Node, lost: str) -> None:
    node.set_visibility("cities", PRIVATE)
    node.catalog.remove(lost)
    expected = {"cities": "private", "first": "private", "second": "private", "towns": "public"}
    del expected[lost]
    assert visibilities(node) == expected


def test_a_lost_head_makes_nothing_public(node: Node) -> None:
    node.set_visibility("cities", PRIVATE)
    (folder_of(node, "first") / "refs" / "head").unlink()
    assert visibilities(node) == {
        "cities": "private",
        "first": "private",
        "second": "private",
        "towns": "public",
    }


def test_a_lost_name_and_head_make_nothing_public(node: Node) -> None:
    node.set_visibility("cities", PRIVATE)
    (folder_of(node, "first") / "refs" / "head").unlink()
    node.catalog.remove("first")
    assert visibilities(node) == {"cities": "private", "second": "private", "towns": "public"}


def test_what_a_deleted_private_dataset_has_left_in_others_is_private(node: Node) -> None:
    node.set_visibility("cities", PRIVATE)
    parts, head = node.coordinator, node.head("first")
    assert head is not None
    first = require_entry(node.catalog, "first").dataset_id
    *_, (seed, _, _) = raw_blocks(block_reader(node.blobs, first), head)
    parts.references.set("first@keep", str(head), None)
    parts.editor.reset("first", seed)
    parts.names.delete("cities")

    parts.references.fast_forward("first@keep")

    assert visibilities(node) == {"first": "private", "second": "private", "towns": "public"}


@pytest.mark.parametrize("is_first_chosen", [False, True])
def test_damage_is_not_published(node: Node, is_first_chosen: bool) -> None:
    node.set_visibility("cities", PRIVATE)
    if is_first_chosen:
        node.set_visibility("first", PRIVATE)
    head = folder_of(node, "first") / "refs" / "head"
    text = head.read_text()
    head.unlink()
    for name in ("second",) if is_first_chosen else ("first", "second"):
        node.set_visibility(name, PUBLIC)
    assert (visibilities(node)["first"], visibilities(node)["second"]) == ("private", "private")
    for _ in range(2):
        head.write_text(text)
        assert (visibilities(node)["first"], visibilities(node)["second"]) == ("private", "private")
        head.unlink()
        assert (visibilities(node)["first"], visibilities(node)["second"]) == ("private", "private")


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_lost_name_on_a_multi_tenant_node_makes_nothing_public_and_breaks_nothing_else(
    tmp_path: Path, is_damaged: bool
) -> None:
    node = Node(tmp_path, is_multi_tenant=True)
    for name, *inputs in (("a/open",), ("a/other",), ("a/derived", "a/open")):
        define(node, name, *inputs)
        node.set_visibility(name, PUBLIC)
    if is_damaged:
        (folder_of(node, "a/open") / "refs" / "head").write_text("damaged")
    node.catalog.remove("a/open")
    assert visibilities(node) == {"a/derived": "private", "a/other": "public"}


def test_damaged_notes_leave_a_dataset_private_and_no_other(node: Node) -> None:
    node.set_visibility("cities", PRIVATE)
    node.set_visibility("first", PUBLIC)
    first = require_entry(node.catalog, "first")
    node.blobs.set_note(first.dataset_id, PUBLIC_MARK, f"{first.incarnation}\nno id")
    assert visibilities(node)["first"] == "private"
    folder = folder_of(node, "towns") / "notes"
    (folder / "private").mkdir(parents=True)
    assert visibilities(node)["towns"] == "private"
    assert visibilities(node)["cities"] == "private"


class Graph:
    """Chains of a node that only have inputs, and can be unavailable."""

    def __init__(self, inputs: dict[DatasetId, tuple[DatasetId, ...]]) -> None:
        self.inputs, self.asked = inputs, 0
        self.error: Exception | None = None
        self.catalog = self.blobs = self.states = self

    def by_id(self, dataset: DatasetId) -> CatalogEntry:
        return CatalogEntry(alias="x", dataset_id=dataset)

    def note(self, *_: object) -> None:
        return None

    def entries(self) -> list[CatalogEntry]:
        return [self.by_id(dataset) for dataset in self.inputs]

    def current(self, dataset: DatasetId) -> Any:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return SimpleNamespace(inputs=self.inputs[dataset])


def directory_of(graph: Any) -> Directory:
    return Directory(AccessStore(None), is_multi_tenant=False, datasets=graph)


def test_each_dataset_of_a_deep_graph_with_cycles_is_asked_once() -> None:
    ids = [a_dataset(f"level {number}") for number in range(1500)]
    cycles = (tuple(ids[:1]) if index % 2 else () for index in range(len(ids)))
    inputs = {
        dataset: (*ids[index + 1 : index + 4], *cycle)
        for index, (dataset, cycle) in enumerate(zip(ids, cycles, strict=True))
    }
    graph = Graph(inputs)
    directory = directory_of(graph)
    assert directory.visibility(graph.by_id(ids[0]).incarnation) is PUBLIC
    assert graph.asked == len(ids)
    graph.asked = 0
    with directory.one_moment():
        assert all(directory.visibility(graph.by_id(dataset).incarnation) is PUBLIC for dataset in ids[:5])
    assert graph.asked <= len(ids) + 5


def test_what_is_unavailable_is_not_decided() -> None:
    graph = Graph({a_dataset(): (), a_dataset("derived"): (a_dataset(),)})
    directory = directory_of(graph)
    graph.error = StorageUnavailable(file="refs", why="?")
    with pytest.raises(Unavailable):
        directory.visibility(graph.by_id(a_dataset("derived")).incarnation)
    graph.error = NotFound(what="block")
    assert directory.visibility(graph.by_id(a_dataset("derived")).incarnation) is PRIVATE


def test_access_names_what_makes_a_dataset_private_and_what_comes_from_it(node: Node) -> None:
    servicer = AccessServicer(node.directory, RemoteLogins(node.directory.store), node.catalog)
    context: Any = None
    shown = servicer.ChangeAccess(pb.ChangeAccessRequest(ref="cities", visibility="private"), context)
    assert [(item.dataset, item.visibility) for item in shown.derivatives] == [
        ("first", "private"),
        ("second", "private"),
    ]
    shown = servicer.ShowAccess(pb.ShowAccessRequest(ref="second"), context)
    assert (list(shown.private_origins), shown.visibility) == (["cities"], "private")
    assert not shown.derivatives
    shown = servicer.ChangeAccess(pb.ChangeAccessRequest(ref="second", visibility="public"), context)
    assert (list(shown.published_origins), list(shown.private_origins)) == (["cities"], [])
    shown = servicer.ShowAccess(pb.ShowAccessRequest(ref="cities", with_derivatives=True), context)
    assert [(item.dataset, item.visibility) for item in shown.derivatives] == [
        ("first", "private"),
        ("second", "public"),
    ]


def test_access_is_changed_and_shown_while_a_chain_cannot_be_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    servicer = AccessServicer(node.directory, RemoteLogins(node.directory.store), node.catalog)
    context: Any = None
    current = node.datasets.states.current

    def refused(dataset: DatasetId) -> object:
        if dataset == require_entry(node.catalog, "first").dataset_id:
            raise StorageUnavailable(file="refs", why="?")
        return current(dataset)

    monkeypatch.setattr(node.datasets.states, "current", refused)
    shown = servicer.ShowAccess(pb.ShowAccessRequest(ref="second"), context)
    assert (shown.visibility, list(shown.private_origins)) == ("unknown", [])
    shown = servicer.ChangeAccess(pb.ChangeAccessRequest(ref="second", visibility="private"), context)
    assert shown.visibility == "private"
