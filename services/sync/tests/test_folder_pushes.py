"""Pushes to a folder."""

import os
import stat
import time
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from odf_testing.builders import a_chain, a_hash, a_seed
from odf_testing.memory_store import MemoryBlobStore
from odf_testing.sync_node import SyncNode

from odf_common.adapters.local import durable
from odf_common.dataset.dataset_notes import RemoteAliases, change_aliases, remote_aliases
from odf_common.errors import Damaged, InvalidInput, NotFound, StorageUnavailable, Unavailable
from odf_common.hashing.multihash import physical_hash_of
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import ObjectKind
from odf_sync.repositories import RemoteFolder
from odf_sync.repositories.folder import LOCK, FolderTarget
from odf_sync.smart.messages import DatasetVisibility, ObjectFile, ObjectType
from odf_sync.transfer.push_dataset import _together, push, send_blocks, send_objects
from odf_sync.transfer.push_source import NoVisibilityThere, Push

CONTENT = b"a checkpoint"
NAME = physical_hash_of(CONTENT)
CHAIN = a_chain(a_seed(), *(SetInfo(description=f"number {number}") for number in range(500)))
DATASET = CHAIN.state.dataset_id
HEAD = CHAIN.state.head


def test_an_object_is_stored_under_its_hash_and_only_there(tmp_path: Path) -> None:
    target = FolderTarget((tmp_path / "new" / "cities").as_uri())
    for _ in range(2):
        target.put(ObjectKind.CHECKPOINT, NAME, BytesIO(CONTENT))
    assert (tmp_path / "new" / "cities" / "checkpoints" / str(NAME)).read_bytes() == CONTENT
    assert target.has(ObjectKind.CHECKPOINT, NAME)
    with pytest.raises(Damaged, match=str(a_hash("other"))):
        target.put(ObjectKind.CHECKPOINT, a_hash("other"), BytesIO(CONTENT))
    assert [file.name for file in (tmp_path / "new" / "cities" / "checkpoints").iterdir()] == [str(NAME)]


def test_a_head_that_is_damaged_is_not_moved(tmp_path: Path) -> None:
    target = FolderTarget((tmp_path / "cities").as_uri())
    target.move_head(DATASET, expected=None, new=a_hash("two"))
    assert (tmp_path / "cities" / "refs" / "head").read_text() == str(a_hash("two"))
    (tmp_path / "cities" / "refs" / "head").write_text("damaged")
    with pytest.raises(InvalidInput, match="not a hash: b'damaged'"):
        target.move_head(DATASET, expected=a_hash("two"), new=a_hash("three"))


def test_the_head_is_compared_and_moved_while_no_other_push_moves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, write = FolderTarget((tmp_path / "cities").as_uri()), durable.write

    def write_alone(file: Path, content: bytes) -> None:
        with pytest.raises(durable.LockHeld), durable.lock_file(tmp_path / "cities" / LOCK, wait_seconds=0):
            pass
        write(file, content)

    monkeypatch.setattr(durable, "write", write_alone)
    target.move_head(DATASET, expected=None, new=HEAD)
    assert target.head() == HEAD


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    target = FolderTarget((tmp_path / "file").as_uri())
    for work in (
        lambda: target.put(ObjectKind.CHECKPOINT, NAME, BytesIO(CONTENT)),
        lambda: target.move_head(DATASET, expected=None, new=NAME),
        target.head,
    ):
        with pytest.raises((StorageUnavailable, Damaged, NotFound), match=r"checkpoints/|refs/|folder"):
            work()


def test_blocks_of_a_range_are_sent_and_make_a_repository(tmp_path: Path) -> None:
    blobs = MemoryBlobStore()
    for block in CHAIN.blocks:
        blobs.put(DATASET, ObjectKind.BLOCK, block.hash, block.raw)
    target, middle = FolderTarget((tmp_path / "cities").as_uri()), CHAIN.blocks[300].hash
    assert send_blocks(blobs, DATASET, target, middle, None) == 301
    assert send_blocks(blobs, DATASET, target, HEAD, middle) == 200
    assert send_blocks(blobs, DATASET, target, HEAD, HEAD) == 0
    target.move_head(DATASET, expected=None, new=HEAD)
    there = RemoteFolder((tmp_path / "cities").as_uri())
    assert there.head() == HEAD
    assert [there.block(block.hash) for block in CHAIN.blocks] == [block.raw for block in CHAIN.blocks]


def test_objects_are_sent_unless_they_exist(tmp_path: Path) -> None:
    blobs, target = MemoryBlobStore(), FolderTarget((tmp_path / "cities").as_uri())
    blobs.put(DATASET, ObjectKind.CHECKPOINT, NAME, CONTENT)
    one = ObjectFile(object_type=ObjectType.CHECKPOINT, physical_hash=NAME, size=len(CONTENT))
    assert list(send_objects(blobs, DATASET, target, [one])) == [1]
    blobs.remove(DATASET, ObjectKind.CHECKPOINT, [NAME])
    assert list(send_objects(blobs, DATASET, target, [one])) == [1], "it is there"
    with pytest.raises(NotFound):
        list(send_objects(blobs, DATASET, target, [replace(one, object_type=ObjectType.DATA_SLICE)]))


@pytest.mark.parametrize(("umask", "expected"), [(0o022, {0o644, 0o755}), (0o027, {0o640, 0o750})])
def test_a_pushed_copy_has_the_modes_of_the_user_s_umask(
    tmp_path: Path, umask: int, expected: set[int]
) -> None:
    before = os.umask(umask)
    try:
        durable.keep_files_private()
        target = FolderTarget((tmp_path / "exports" / "orders").as_uri())
        target.put(ObjectKind.CHECKPOINT, NAME, BytesIO(CONTENT))
        target.move_head(DATASET, expected=None, new=HEAD)
    finally:
        os.umask(before)
    copied = [path for path in (tmp_path / "exports", *tmp_path.glob("exports/**/*")) if path.name != ".lock"]
    assert len(copied) == 6
    assert {stat.S_IMODE(path.stat().st_mode) for path in copied} == expected


@pytest.fixture
def here(tmp_path: Path) -> SyncNode:
    """A node with a dataset of a few blocks and slices."""
    node = SyncNode(tmp_path / "here")
    node.add_cities(["Kyiv", "Osaka"], ["Quito"], ["Accra", "Turin", "Lima"])
    return node


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "shared folder" / "cities"


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
