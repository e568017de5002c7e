"""A folder that is pushed to: whole files, in order, under their own hashes; a head that is moved by compare-and-set."""

import os
import stat
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
from odf_testing.builders import a_chain, a_hash, a_seed
from odf_testing.memory_store import MemoryBlobStore

from odf_common.adapters.local import durable
from odf_common.errors import Damaged, HeadMoved, InvalidInput, NotFound, StorageUnavailable
from odf_common.hashing.physical import physical_hash_of
from odf_common.metadata.events import SetInfo
from odf_common.ports.store import ObjectKind
from odf_sync.repositories import RemoteFolder
from odf_sync.repositories.folder import LOCK, FolderTarget
from odf_sync.smart.messages import ObjectFile, ObjectType
from odf_sync.transfer.push_dataset import send_blocks, send_objects

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


def test_the_head_moves_only_from_where_it_is_expected(tmp_path: Path) -> None:
    target = FolderTarget((tmp_path / "cities").as_uri())
    assert target.head() is None
    target.move_head(DATASET, expected=None, new=a_hash("one"))
    for expected in (None, a_hash("other")):
        with pytest.raises(HeadMoved):
            target.move_head(DATASET, expected=expected, new=a_hash("two"))
    assert target.head() == a_hash("one")
    target.move_head(DATASET, expected=a_hash("one"), new=a_hash("two"))
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
