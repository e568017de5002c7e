"""Copies are private if their source is, also one in the home of a node, and follow it when that changes."""

from pathlib import Path

import pytest
from odf_testing.builders import AChain, a_chain, a_dataset, a_seed, a_transform
from odf_testing.node_datasets import hold

from odf_common.errors import OdfError
from odf_common.metadata.events import DatasetKind, SetInfo
from odf_common.ports.store import ObjectKind, require_entry
from odf_sync.access.rules import Visibility as Rule
from odf_sync.transfer.remote_chain import ChainsDiverged

from .node_with_account import Node, a_node_with_derivatives, define, folder_of, visibilities

PUBLIC, PRIVATE = Rule.PUBLIC, Rule.PRIVATE


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return a_node_with_derivatives(tmp_path / "home")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, PUBLIC),
        ({"towns": PRIVATE}, PUBLIC),
        ({"cities": PRIVATE}, PRIVATE),
        ({"cities": PRIVATE, "second": PUBLIC}, PRIVATE),
    ],
)
def test_a_copy_from_a_home_is_private_if_it_comes_from_what_is_private_there(
    node: Node, tmp_path: Path, choice: dict[str, Rule], expected: Rule
) -> None:
    here = Node(tmp_path / "here", is_multi_tenant=False)
    for name, visibility in choice.items():
        node.set_visibility(name, visibility)
    folder = folder_of(node, "second")

    *_, last = here.pull(folder.as_uri(), "copy", privacy=here.privacy)

    assert (here.visibility("copy"), last.is_private) == (expected, expected is PRIVATE)


def test_a_copy_from_a_home_with_a_damaged_origin_is_private(node: Node, tmp_path: Path) -> None:
    here, entry, head = (
        Node(tmp_path / "here", is_multi_tenant=False),
        require_entry(node.catalog, "first"),
        node.head("first"),
    )
    assert head is not None
    node.blobs.local_path(entry.dataset_id, ObjectKind.BLOCK, head).unlink()
    node.set_visibility("towns", PRIVATE)
    folder = folder_of(node, "second")

    assert here.pull(folder.as_uri(), "copy", privacy=here.privacy)[-1].is_private


def test_a_copy_follows_its_source_also_without_a_new_block(node: Node, tmp_path: Path) -> None:
    here = Node(tmp_path / "here", is_multi_tenant=False)
    folder = folder_of(node, "towns")
    here.pull(folder.as_uri(), "copy", privacy=here.privacy)
    node.set_visibility("towns", PRIVATE)

    steps = list(here.pull(folder.as_uri(), "copy", privacy=here.privacy))

    states = [step.state for step in steps if step.is_private]
    assert states == ["blocks", "up-to-date"], "before anything is fetched"
    assert here.visibility("copy") is PRIVATE


def test_a_pull_of_another_dataset_under_its_name_leaves_a_dataset_as_it_is(
    node: Node, tmp_path: Path
) -> None:
    here = Node(tmp_path / "here", is_multi_tenant=False)
    define(here, "cities")
    node.set_visibility("towns", PRIVATE)
    folder = folder_of(node, "towns")
    for is_forced in (False, True):
        with pytest.raises(OdfError):
            here.pull(folder.as_uri(), "cities", privacy=here.privacy, is_forced=is_forced)
    assert visibilities(here) == {"cities": "public"}


def test_a_copy_follows_its_source_also_if_that_begins_anew(tmp_path: Path) -> None:
    there, here = (Node(tmp_path / name, is_multi_tenant=False) for name in ("there", "here"))
    hold(there.datasets, "cities", AChain().add(a_seed()))
    folder = there.blobs.index_folder(a_dataset()).parent
    here.pull(folder.as_uri(), "copy", privacy=here.privacy)
    hold(there.datasets, "cities", AChain().add(a_seed(), version=2))
    there.set_visibility("cities", PRIVATE)

    *_, last = here.pull(folder.as_uri(), "copy", privacy=here.privacy, is_forced=True)

    assert (last.state, last.is_private, here.visibility("copy")) == ("updated", True, PRIVATE)


def test_a_copy_from_a_home_where_a_head_is_lost_is_private(node: Node, tmp_path: Path) -> None:
    here = Node(tmp_path / "here", is_multi_tenant=False)
    node.set_visibility("towns", PRIVATE)
    (folder_of(node, "first") / "refs" / "head").unlink()
    assert here.pull(folder_of(node, "second").as_uri(), "copy", privacy=here.privacy)[-1].is_private


def test_a_copy_follows_its_source_also_if_their_chains_diverge(tmp_path: Path) -> None:
    there, here = (Node(tmp_path / name, is_multi_tenant=False) for name in ("there", "here"))
    for node, keyword in ((there, "first"), (here, "own")):
        hold(node.datasets, "cities", a_chain(a_seed(), SetInfo(keywords=(keyword,))))
    there.set_visibility("cities", PRIVATE)
    with pytest.raises(ChainsDiverged):
        here.pull(folder_of(there, "cities").as_uri(), "cities", privacy=here.privacy)
    assert here.visibility("cities") is PRIVATE


def test_a_root_that_begins_anew_as_a_derivative_is_private_with_what_it_reads(tmp_path: Path) -> None:
    there, here = (Node(tmp_path / name, is_multi_tenant=False) for name in ("there", "here"))
    hold(there.datasets, "copy", AChain().add(a_seed()))
    hold(here.datasets, "cities", AChain().add(a_seed(dataset=a_dataset("cities"))))
    here.set_visibility("cities", PRIVATE)
    place = there.blobs.index_folder(a_dataset()).parent.as_uri()
    here.pull(place, "copy", privacy=here.privacy)
    assert here.visibility("copy") is PUBLIC
    chain = AChain().add(a_seed(DatasetKind.Derivative), a_transform(a_dataset("cities")))
    hold(there.datasets, "copy", chain)

    here.pull(place, "copy", privacy=here.privacy, is_forced=True)

    assert here.visibility("copy") is PRIVATE
