"""The visibility of pushed datasets, and that of copies, which follows their sources."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from odf_testing.builders import AChain, a_chain, a_dataset, a_seed, a_transform
from odf_testing.memory_store import hold, in_files

from odf_common.adapters.local.stores import LocalBlobStore
from odf_common.errors import AlreadyExists, OdfError, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import DatasetKind, SetInfo
from odf_common.ports.store import (
    PRIVATE_MARK,
    PUBLIC_MARK,
    CatalogEntry,
    Incarnation,
    ObjectKind,
    id_of,
    incarnation,
    require_entry,
)
from odf_sync.access.access_store import FILE, AccessStore
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Visibility
from odf_sync.access.rules import Visibility as Rule
from odf_sync.transfer.remote_chain import ChainsDiverged

from .node_with_account import Node, a_node_with_derivatives, define, folder_of, visibilities

ID = a_dataset()
HERE = incarnation(ID, "c0ffee")
LATER = incarnation(ID, "later")


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[], Directory]:
    """Open the directory of a single-tenant node anew."""
    return lambda: Directory(AccessStore(tmp_path), is_multi_tenant=False, datasets=in_files(tmp_path))


def without_database(folder: Path, directory: Directory, dataset: Incarnation) -> Visibility:
    for file in folder.glob(f"{FILE}*"):
        file.unlink()
    return directory.visibility(dataset)


@pytest.mark.parametrize("first", Visibility)
def test_a_choice_before_a_creation_is_over_holds(
    opened: Callable[[], Directory], tmp_path: Path, first: Visibility
) -> None:
    second = Visibility.PUBLIC if first is Visibility.PRIVATE else Visibility.PRIVATE
    with opened().creating(ID, first) as creation:
        created = incarnation(ID, creation)
        opened().set_visibility(created, second)
    assert opened().visibility(created) is second
    assert without_database(tmp_path, opened(), created) is second


@pytest.mark.parametrize("first", Visibility)
def test_of_two_choices_at_once_the_last_one_holds_with_and_without_the_database(
    opened: Callable[[], Directory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Visibility
) -> None:
    second = Visibility.PUBLIC if first is Visibility.PRIVATE else Visibility.PRIVATE
    directory = opened()
    other = threading.Thread(target=opened().set_visibility, args=(HERE, second))
    write = directory.store.set_visibility

    def write_and_let_the_other_go(dataset: Incarnation, visibility: Visibility) -> None:
        write(dataset, visibility)
        other.start()
        other.join(0.3)

    monkeypatch.setattr(directory.store, "set_visibility", write_and_let_the_other_go)
    directory.set_visibility(HERE, first)
    other.join()
    assert opened().visibility(HERE) is second
    assert without_database(tmp_path, opened(), HERE) is second


def test_the_default_of_a_copy_does_not_replace_a_choice_at_the_same_time(
    opened: Callable[[], Directory], monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = LocalBlobStore.lock_notes

    def lock_after_the_other(blobs: LocalBlobStore, dataset: DatasetId) -> AbstractContextManager[None]:
        monkeypatch.setattr(LocalBlobStore, "lock_notes", lock)
        opened().set_visibility(HERE, Visibility.PUBLIC)
        return lock(blobs, dataset)

    monkeypatch.setattr(LocalBlobStore, "lock_notes", lock_after_the_other)
    opened().make_private_by_default(HERE)
    assert opened().visibility(HERE) is Visibility.PUBLIC


def test_a_creation_that_fails_leaves_the_mark_of_another(
    opened: Callable[[], Directory], tmp_path: Path
) -> None:
    created = list[Incarnation]()

    def create_and_lose(failed: str) -> None:
        with opened().creating(ID, Visibility.PRIVATE) as creation:
            created.extend((incarnation(ID, creation), incarnation(ID, failed)))
        raise AlreadyExists(what="the name")

    with pytest.raises(AlreadyExists), opened().creating(ID, Visibility.PRIVATE) as failed:
        create_and_lose(failed)
    assert without_database(tmp_path, opened(), created[0]) is Visibility.PRIVATE
    assert opened().visibility(created[1]) is Visibility.PUBLIC


def test_a_mark_of_a_creation_without_a_reply_does_not_count_for_a_later_one(
    opened: Callable[[], Directory], tmp_path: Path
) -> None:
    with pytest.raises(Unavailable), opened().creating(ID, Visibility.PRIVATE) as creation:
        raise Unavailable(what="the coordinator", why="it is restarted")
    with opened().creating(ID, Visibility.PUBLIC) as later:
        pass
    for _ in range(2):
        assert opened().visibility(incarnation(ID, later)) is Visibility.PUBLIC
        assert opened().visibility(incarnation(ID, creation)) is Visibility.PRIVATE, "it may be this one"
        (tmp_path / FILE).unlink(missing_ok=True)
    node = in_files(tmp_path)
    opened().set_visibility(incarnation(ID, later), Visibility.PUBLIC)
    assert node.blobs.note(ID, PRIVATE_MARK) is not None, "without its name, another may be being created"
    node.catalog.add(CatalogEntry(alias="cities", dataset_id=ID, creation=later))
    opened().set_visibility(incarnation(ID, later), Visibility.PUBLIC)
    assert node.blobs.note(ID, PRIVATE_MARK) is None, "it exists now, so no other can be created"


def test_a_refusal_is_told_though_the_mark_cannot_be_removed(
    opened: Callable[[], Directory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: object) -> None:
        raise Unavailable(what="the lock", why="another holds it")

    def lock_and_refuse() -> None:
        monkeypatch.setattr(LocalBlobStore, "lock_notes", unavailable)
        raise AlreadyExists(what="the name")

    for visibility in Visibility:
        with pytest.raises(AlreadyExists), opened().creating(ID, visibility):
            lock_and_refuse()
        monkeypatch.undo()
    assert in_files(tmp_path).blobs.note(ID, PRIVATE_MARK) is not None


def test_the_default_of_a_copy_needs_no_lock_once_its_visibility_is_chosen(
    opened: Callable[[], Directory], tmp_path: Path
) -> None:
    opened().set_visibility(HERE, Visibility.PUBLIC)
    with in_files(tmp_path).blobs.lock_notes(ID):
        opened().make_private_by_default(HERE)
    assert opened().visibility(HERE) is Visibility.PUBLIC


@pytest.mark.parametrize("text", ["", str(ID), f"{ID}#0123", "damaged"])
def test_a_mark_without_an_intact_creation_counts_for_all_of_them(
    opened: Callable[[], Directory], tmp_path: Path, text: str
) -> None:
    blobs = in_files(tmp_path).blobs
    blobs.set_note(ID, PRIVATE_MARK, text)
    assert opened().visibility(HERE) is opened().visibility(LATER) is Visibility.PRIVATE
    opened().set_visibility(HERE, Visibility.PUBLIC)
    assert opened().visibility(HERE) is Visibility.PUBLIC
    assert blobs.note(ID, PRIVATE_MARK) is None


def test_a_dataset_without_a_creation_is_private_by_the_mark_of_any_and_made_public_in_spite_of_it(
    opened: Callable[[], Directory],
) -> None:
    opened().set_visibility(HERE, Visibility.PRIVATE)
    restored = incarnation(ID, "")
    assert opened().visibility(restored) is Visibility.PRIVATE
    opened().set_visibility(restored, Visibility.PUBLIC)
    assert opened().visibility(restored) is Visibility.PUBLIC


def test_a_dataset_was_private_if_any_of_its_creations_was(
    opened: Callable[[], Directory], tmp_path: Path
) -> None:
    store = AccessStore(tmp_path)
    assert not store.was_private(ID)
    store.set_visibility(incarnation(ID, ""), Visibility.PUBLIC)
    store.set_visibility(incarnation(a_dataset("other"), "one"), Visibility.PRIVATE)
    assert not store.was_private(ID)
    opened().store.set_visibility(HERE, Visibility.PRIVATE)
    assert store.was_private(ID)
    assert store.was_private(id_of(incarnation(a_dataset("other"), "")))


def test_a_choice_removes_the_note_of_the_other_one(opened: Callable[[], Directory], tmp_path: Path) -> None:
    blobs = in_files(tmp_path).blobs
    for visibility, mark, other in (
        (Visibility.PRIVATE, PRIVATE_MARK, PUBLIC_MARK),
        (Visibility.PUBLIC, PUBLIC_MARK, PRIVATE_MARK),
    ):
        opened().set_visibility(HERE, visibility)
        assert blobs.note(ID, mark) == HERE
        assert blobs.note(ID, other) is None


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
