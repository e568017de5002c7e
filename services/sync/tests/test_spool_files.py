"""Blocks of an exchange in a file: as received, with their signatures, and removed afterwards."""

import errno
from io import BytesIO
from pathlib import Path

import pytest
from odf_testing.builders import a_hash
from odf_testing.memory_store import MemoryBlobStore

from odf_common.adapters.local.blobs import LocalBlobStore
from odf_common.errors import StorageUnavailable
from odf_sync.smart import archive
from odf_sync.smart.archive import SpooledBlocks, pieces_of, spool_file

ONE, TWO, THREE = a_hash("one"), a_hash("two"), a_hash("three")


def test_blocks_have_their_bytes_and_signatures_until_they_are_closed() -> None:
    file = BytesIO(b"before")
    file.seek(6)
    with SpooledBlocks(file, [(ONE, [b"first"], b"signed"), (TWO, [], b""), (THREE, [b"3"], b"s")]) as blocks:
        assert (list(blocks), len(blocks)) == ([ONE, TWO, THREE], 3)
        assert [blocks[name] for name in (THREE, TWO, ONE)] == [b"3", b"", b"first"]
        assert [blocks.signature(name) for name in (THREE, TWO, ONE)] == [b"s", None, b"signed"]
        for read in (blocks.__getitem__, blocks.signature):
            with pytest.raises(KeyError):
                read(a_hash("none"))
    assert file.closed


def test_a_full_disk_is_detected_before_a_block_is_requested() -> None:
    class Full(BytesIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    file = Full()
    with pytest.raises(StorageUnavailable, match="the disk is full"):
        SpooledBlocks(file, [(ONE, [b"first"], b"")])


def test_a_file_is_sent_in_pieces_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "PIECE_BYTES", 4)
    file = BytesIO(b"0123456789")
    file.read(3)
    assert list(pieces_of(file)) == [b"0123", b"4567", b"89"]
    assert list(pieces_of(BytesIO())) == []


def test_a_spool_file_has_no_name(tmp_path: Path) -> None:
    with spool_file(LocalBlobStore(tmp_path)) as file:
        file.write(b"content")
        assert [one for one in tmp_path.rglob("*") if one.is_file() and one.stat().st_size] == []
    assert file.closed


def test_a_folder_without_room_for_a_spool_file_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> object:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archive, "scratch_folder", full)
    with pytest.raises(StorageUnavailable, match="the disk is full"):
        spool_file(MemoryBlobStore())
