"""Pushes to folders, from which other nodes pull: in order, never over another chain unless forced."""

import time
from pathlib import Path
from typing import BinaryIO

import pytest
from odf_testing.chains import assert_objects_are_whole, read_chain
from odf_testing.sync_node import SyncNode

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.dataset.remote_aliases import RemoteAliases, change_aliases, remote_aliases
from odf_common.errors import Damaged, NotFound, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import Name
from odf_common.ports.store import ObjectKind, require_entry
from odf_sync.repositories.folder import FolderTarget
from odf_sync.smart.messages import DatasetVisibility
from odf_sync.transfer.push_dataset import AnotherDataset, _together, push
from odf_sync.transfer.push_source import NoVisibilityThere, Push, PushDiverged, RemoteAhead


@pytest.fixture
def here(tmp_path: Path) -> SyncNode:
    """A node with a dataset of a few blocks and slices."""
    node = SyncNode(tmp_path / "here")
    node.add_cities(["Kyiv", "Osaka"], ["Quito"], ["Accra", "Turin", "Lima"])
    return node


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "shared folder" / "cities"


def head_of(folder: Path) -> str:
    return (folder / "refs" / "head").read_text()


def rewind(node: SyncNode, block: Multihash) -> None:
    entry = node.catalog.by_alias("cities")
    assert entry is not None
    node.refs.compare_and_set(entry.dataset_id, expected=node.head("cities"), new=block)


def test_a_dataset_pushed_to_a_folder_is_pulled_from_it(here: SyncNode, folder: Path, tmp_path: Path) -> None:
    LocalRepositories(tmp_path / "here").add(Name("disk"), folder.parent.as_uri())
    *steps, last = here.push("cities", "disk/cities")
    assert list(dict.fromkeys(step.state for step in steps)) == [
        "comparing",
        "blocks",
        "objects",
        "committing",
    ]
    assert (last.state, last.head, last.new_records) == ("updated", here.head("cities"), 6)
    assert len(read_chain(folder).rows()) == 6

    here.coordinator.push("cities", "Oslo", minute=9)
    again, third = here.push("cities", "")[-1], here.push("cities", "")[-1]
    assert (again.state, again.new_blocks, again.new_records) == ("updated", 1, 1)
    assert third.state == "up-to-date"

    there = SyncNode(tmp_path / "there")
    assert there.pull(folder.as_uri(), "copy")[-1].state == "updated"
    assert there.content("copy") == here.content("cities")


def test_a_push_that_is_reported_as_done_is_remembered(here: SyncNode, folder: Path) -> None:
    """Whether it sent something, or an earlier attempt had already sent everything."""
    (entry,) = here.catalog.entries()
    for state in ("updated", "up-to-date"):
        change_aliases(here.blobs, entry.dataset_id, lambda _: RemoteAliases())
        steps = push(here.datasets, here.settings, Push(dataset="cities", target=folder.as_uri()))
        assert next(step for step in steps if step.head is not None).state == state
        assert remote_aliases(here.blobs, entry.dataset_id).push == (folder.as_uri(),)


def test_an_alias_that_is_removed_during_a_push_to_it_stays_removed(here: SyncNode, folder: Path) -> None:
    (entry,) = here.catalog.entries()
    change_aliases(here.blobs, entry.dataset_id, lambda _: RemoteAliases(push=(folder.as_uri(),)))
    for step in push(here.datasets, here.settings, Push(dataset="cities")):
        if step.state == "committing":
            change_aliases(here.blobs, entry.dataset_id, lambda _: RemoteAliases())
    assert remote_aliases(here.blobs, entry.dataset_id).push == ()


def test_a_folder_that_is_ahead_or_diverged_is_replaced_by_force_only(here: SyncNode, folder: Path) -> None:
    url, common = folder.as_uri(), here.head("cities")
    assert common is not None
    here.coordinator.push("cities", "Oslo", minute=9)
    here.push("cities", url)
    ahead = head_of(folder)

    rewind(here, common)
    with pytest.raises(RemoteAhead):
        here.push("cities", url)
    here.coordinator.push("cities", "Bern", "Rome", minute=10)
    with pytest.raises(PushDiverged) as refused:
        here.push("cities", url)
    assert refused.value.common_block == str(common)
    assert head_of(folder) == ahead

    assert here.push("cities", url, is_forced=True)[-1].state == "updated"
    assert head_of(folder) == str(here.head("cities"))
    assert [row["city"] for row in read_chain(folder).rows()][-2:] == ["Bern", "Rome"]


def test_another_dataset_is_not_replaced_even_by_force(here: SyncNode, folder: Path, tmp_path: Path) -> None:
    there = SyncNode(tmp_path / "there")
    there.add_cities()
    there.push("cities", folder.as_uri())
    before = head_of(folder)
    for is_forced in (False, True):
        with pytest.raises(AnotherDataset) as refused:
            here.push("cities", folder.as_uri(), is_forced=is_forced)
        assert str(require_entry(there.catalog, "cities").dataset_id) in str(refused.value)
        assert "--force" not in refused.value.advice()
    assert head_of(folder) == before


@pytest.mark.parametrize("kind", [ObjectKind.DATA, ObjectKind.BLOCK])
def test_an_interrupted_push_leaves_the_old_chain_and_resumes(
    here: SyncNode, folder: Path, kind: ObjectKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    here.push("cities", folder.as_uri())
    before = head_of(folder)
    here.coordinator.push("cities", "Oslo", minute=9)
    put = FolderTarget.put

    def stopping(target: FolderTarget, what: ObjectKind, name: Multihash, content: BinaryIO) -> None:
        if what is kind:
            raise Unavailable(what="the disk", why="it was pulled out")
        put(target, what, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(FolderTarget, "put", stopping)
        with pytest.raises(Unavailable):
            here.push("cities", folder.as_uri())
    assert head_of(folder) == before
    assert len(read_chain(folder).rows()) == 6
    assert here.push("cities", "")[-1].new_blocks == 1
    assert_objects_are_whole(folder)


def test_a_lost_or_damaged_object_is_named_and_the_folder_stays_without_a_head(
    here: SyncNode, folder: Path
) -> None:
    entry = here.catalog.by_alias("cities")
    assert entry is not None
    (name, *_) = here.blobs.names(entry.dataset_id, ObjectKind.DATA)
    file = here.blobs.local_path(entry.dataset_id, ObjectKind.DATA, name)
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(Damaged, match=str(name)):
        here.push("cities", folder.as_uri())
    file.unlink()
    with pytest.raises(NotFound, match=str(name)):
        here.push("cities", folder.as_uri())
    assert not (folder / "refs").exists()


@pytest.mark.parametrize("visibility", DatasetVisibility)
def test_a_folder_keeps_no_visibility_and_says_so_before_anything_is_sent(
    here: SyncNode, folder: Path, visibility: DatasetVisibility
) -> None:
    chosen = Push(dataset="cities", target=folder.as_uri(), visibility=visibility, is_chosen=True)
    with pytest.raises(NoVisibilityThere, match="anyone who can read its files"):
        list(push(here.datasets, here.settings, chosen))
    assert not folder.exists()


def test_after_an_error_no_further_file_is_sent() -> None:
    sent: list[int] = []

    def send(number: int) -> None:
        sent.append(number)
        if number == 0:
            raise Unavailable(what="the folder")
        time.sleep(0.02)

    with pytest.raises(Unavailable):
        list(_together(send, range(100), 1))
    assert len(sent) < 10
