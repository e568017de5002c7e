"""Blocks and objects in files: what is requested, what is kept for the next attempt, and what is removed."""

import errno
import os
import threading
import time
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from odf_testing.builders import a_chain, a_hash, a_seed
from odf_testing.memory_store import MemoryBlobStore

from odf_common.adapters.local.stores import LocalBlobStore
from odf_common.errors import Damaged, InvalidInput, NotFound, StorageUnavailable, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import SetInfo
from odf_sync.repositories.remote_dataset import frame_block
from odf_sync.smart import archive
from odf_sync.smart.archive import SpooledBlocks, pieces_of, spool_file
from odf_sync.transfer import partial_files, remote_chain
from odf_sync.transfer.partial_files import (
    KEPT_SECONDS,
    keep_swept,
    kept_blocks,
    own_partial_file,
    partial_file,
    sweep,
)
from odf_sync.transfer.remote_chain import BlockSpool, RemoteBlocks

CHAIN = a_chain(a_seed(), *(SetInfo(description=text) for text in "abc"))
FIRST, SECOND, THIRD, LAST = (block.hash for block in CHAIN.blocks)
RAW = CHAIN.store
LOST = Unavailable(what="http://x", why="the connection was lost")
Pack = Sequence[bytes | Exception]


class There:
    """A repository that responds with `packs`, one after another, and records its requests."""

    url = "http://x"

    def __init__(self, *packs: Pack) -> None:
        self.packs = list(packs)
        self.blocks = dict(RAW)
        self.stored: Pack = ()
        self.asked: list[tuple[str, Multihash]] = []
        self.ended = self.closed = 0

    def pack(self, name: Multihash, after: Multihash | None) -> Iterator[bytes]:
        assert after == FIRST
        self.asked.append(("pack", name))
        return self._sent(self.packs.pop(0) if self.packs else ())

    def stored_blocks(self, name: Multihash, after: Multihash | None) -> Iterator[bytes]:
        assert after == FIRST
        self.asked.append(("stored", name))
        return self._sent(self.stored)

    def block(self, name: Multihash) -> bytes:
        self.asked.append(("block", name))
        return self.blocks[name]

    def _sent(self, pack: Pack) -> Iterator[bytes]:
        try:
            for one in pack:
                if isinstance(one, Exception):
                    raise one
                yield one
            self.ended += 1
        finally:
            self.closed += 1


def spool(there: There, file: BytesIO | None = None) -> BlockSpool:
    return BlockSpool(cast("Any", there), after=FIRST, file=file)


def test_blocks_are_read_from_a_pack_while_it_has_the_next_one() -> None:
    there = There([RAW[LAST], RAW[THIRD]], [RAW[FIRST]])
    blocks = spool(there)
    assert [blocks.read(name) for name in (LAST, THIRD, LAST)] == [RAW[LAST], RAW[THIRD], RAW[LAST]]
    assert there.asked == [("pack", LAST)]
    assert blocks.read(SECOND) == RAW[SECOND]
    assert blocks.read(FIRST) == RAW[FIRST]
    assert there.asked[1:] == [("pack", SECOND), ("block", SECOND), ("block", FIRST)], "no third pack"


@pytest.mark.parametrize("error", [LOST, InvalidInput(text="it ends within an entry", where="pack")])
def test_an_interrupted_pack_is_followed_by_another(error: Exception) -> None:
    there = There([RAW[LAST], error], [RAW[THIRD], RAW[SECOND]])
    blocks = spool(there)
    assert [blocks.read(name) for name in (LAST, THIRD, SECOND)] == [RAW[LAST], RAW[THIRD], RAW[SECOND]]
    assert there.asked == [("pack", LAST), ("pack", THIRD)]


def test_a_block_with_other_bytes_is_read_as_stored_while_the_repository_has_such() -> None:
    there = There()
    there.blocks = dict.fromkeys(RAW, b"other")
    there.stored = [RAW[LAST], RAW[THIRD]]
    blocks = spool(there)
    assert [blocks.read(name) for name in (LAST, THIRD)] == [RAW[LAST], RAW[THIRD]]
    assert there.asked == [("pack", LAST), ("block", LAST), ("stored", LAST)]
    there.stored = ()
    assert [blocks.read(name) for name in (SECOND, FIRST)] == [b"other", b"other"]
    assert there.asked[3:] == [("block", SECOND), ("stored", SECOND), ("block", FIRST)]


def test_blocks_of_an_earlier_attempt_are_not_fetched_again_and_truncated_ones_are() -> None:
    file = BytesIO()
    before = spool(There(), file)
    for name in (LAST, THIRD):
        before.read(name)
    assert file.getvalue() == frame_block(RAW[LAST]) + frame_block(RAW[THIRD])
    file.truncate(len(file.getvalue()) - 1)

    there = There()
    blocks = spool(there, file)
    assert file.getvalue() == frame_block(RAW[LAST])
    assert [blocks.read(name) for name in (LAST, THIRD)] == [RAW[LAST], RAW[THIRD]]
    assert there.asked == [("pack", THIRD), ("block", THIRD)]
    assert file.getvalue() == frame_block(RAW[LAST]) + frame_block(RAW[THIRD])


def test_the_first_requested_names_are_known_in_that_order() -> None:
    blocks = spool(There([RAW[LAST], RAW[THIRD], RAW[SECOND]]))
    for name in (LAST, THIRD, LAST, SECOND):
        blocks.read(name)
    assert blocks.fetched_names(2) == (LAST, THIRD)
    assert blocks.fetched_names(9) == (LAST, THIRD, SECOND)
    assert blocks.fetched_names(0) == ()


def test_a_spool_has_limits_of_bytes_and_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(RAW[LAST]) + len(RAW[THIRD])
    monkeypatch.setattr(remote_chain, "BYTES_LIMIT", size)
    monkeypatch.setattr(remote_chain, "COUNT_LIMIT", 2)
    blocks = spool(There())
    for name in (LAST, THIRD):
        blocks.read(name)
    monkeypatch.setattr(remote_chain, "BYTES_LIMIT", size + len(RAW[SECOND]))
    with pytest.raises(InvalidInput, match="more than 2 blocks"):
        blocks.read(SECOND)
    monkeypatch.setattr(remote_chain, "COUNT_LIMIT", 3)
    monkeypatch.setattr(remote_chain, "BYTES_LIMIT", size + len(RAW[SECOND]) - 1)
    with pytest.raises(InvalidInput, match=f"more than {size + len(RAW[SECOND]) - 1} bytes"):
        blocks.read(SECOND)


@pytest.mark.parametrize("rest", [[], [LOST]])
def test_a_response_whose_blocks_were_all_read_is_read_to_its_end(rest: Pack) -> None:
    there = There([RAW[LAST], *rest])
    blocks = spool(there)
    blocks.read(LAST)
    assert there.ended == 0
    blocks.close()
    assert there.ended == (0 if rest else 1)


def test_a_response_with_more_blocks_is_closed() -> None:
    there = There([RAW[LAST], RAW[THIRD], RAW[SECOND]])
    blocks = spool(there)
    blocks.read(LAST)
    assert there.closed == 0
    blocks.close()
    assert (there.ended, there.closed) == (0, 1)
    assert blocks.read(LAST) == RAW[LAST]


def test_a_block_that_the_disk_does_not_take_is_not_kept() -> None:
    class Full(BytesIO):
        is_full = True

        def write(self, content: Any) -> int:
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(content)

    file = Full()
    blocks = spool(There(), file)
    with pytest.raises(OSError, match="No space"):
        blocks.read(LAST)
    file.is_full = False
    assert blocks.read(LAST) == RAW[LAST]
    assert file.getvalue() == frame_block(RAW[LAST])


def test_remote_blocks_are_decoded_when_they_are_taken() -> None:
    names = (SECOND, THIRD, LAST)
    blocks = RemoteBlocks(spool(There()), names)
    assert [block.hash for block in blocks] == list(names)
    assert [block.decoded.block.sequence_number for block in blocks] == [1, 2, 3]
    assert list(blocks.raw()) == [(name, RAW[name]) for name in names]


ONE, TWO, THREE = a_hash("one"), a_hash("two"), a_hash("three")


def test_blocks_have_their_bytes_and_signatures_until_they_are_closed() -> None:
    file = BytesIO(b"before")
    file.seek(6)
    with SpooledBlocks(file, [(ONE, [b"first"], b"signed"), (TWO, [], b""), (THREE, [b"3"], b"s")]) as blocks:
        assert (list(blocks), len(blocks), blocks.largest) == ([ONE, TWO, THREE], 3, 5)
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


def left(home: Path, folder: str, name: str, *, age_seconds: float) -> Path:
    """Leave the received part of an object."""
    with partial_file(home / folder, name) as file:
        file.write(b"begun")
    since = time.time() - age_seconds
    os.utime(file.path, (since, since))
    return file.path


@pytest.mark.parametrize("folder", ["downloads", "uploads"])
def test_abandoned_partial_files_are_removed_and_recent_or_used_ones_are_not(
    tmp_path: Path, folder: str
) -> None:
    abandoned = left(tmp_path, folder, "abandoned", age_seconds=KEPT_SECONDS + 60)
    young = left(tmp_path, folder, "young", age_seconds=KEPT_SECONDS - 60)
    in_use = left(tmp_path, folder, "in-use", age_seconds=KEPT_SECONDS + 60)
    with partial_file(in_use.parent, in_use.name):
        sweep(tmp_path)
        assert sorted(in_use.parent.iterdir()) == [in_use, young]
    sweep(tmp_path)
    assert list(abandoned.parent.iterdir()) == [young]


def test_a_service_removes_them_without_another_transfer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partial_files, "SWEEP_SECONDS", 0.01)
    stop = threading.Event()
    sweeping = threading.Thread(target=keep_swept, args=(tmp_path, stop), daemon=True)
    sweeping.start()
    try:
        abandoned = left(tmp_path, "uploads", "abandoned", age_seconds=KEPT_SECONDS + 60)
        deadline = time.monotonic() + 10
        while abandoned.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not abandoned.exists()
    finally:
        stop.set()
        sweeping.join()


class FullFile:
    """A file whose disk takes no more bytes."""

    def __init__(self, file: BinaryIO, code: int) -> None:
        self._file = file
        self._code = code

    def write(self, _: object) -> int:
        raise OSError(self._code, os.strerror(self._code))

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def filled(folder: Path, code: int) -> None:
    with partial_file(folder, "object") as file:
        file.write(b"begun")
        file._file = cast("BinaryIO", FullFile(file._file, code))
        file.write(b"more")


def test_on_a_full_disk_a_file_releases_its_space(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable):
        filled(tmp_path, errno.EIO)
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"begun"], "to be continued"
    with pytest.raises(StorageUnavailable, match="the disk is full"):
        filled(tmp_path, errno.ENOSPC)
    assert list(tmp_path.iterdir()) == []


def fill_with_blocks(folder: Path) -> None:
    with kept_blocks(folder, "http://x") as file:
        file.write(b"block")
        raise OSError(errno.ENOSPC, "No space left on device")


def test_blocks_that_fill_the_disk_are_not_kept(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="the disk is full"):
        fill_with_blocks(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_files_that_were_removed_meanwhile_hide_no_outcome(tmp_path: Path) -> None:
    def removed(error: Exception | None) -> None:
        with kept_blocks(tmp_path, "http://x") as file:
            file.write(b"block")
            for one in tmp_path.iterdir():
                one.unlink()
            if error is not None:
                raise error

    removed(None)
    for error in (NotFound(what="block"), Unavailable(what="x", why="y")):
        with pytest.raises(type(error)):
            removed(error)
    with pytest.raises(StorageUnavailable, match="the disk is full"):
        removed(OSError(errno.ENOSPC, "No space left on device"))


def test_only_blocks_of_an_attempt_that_may_be_continued_are_kept(tmp_path: Path) -> None:
    def end(error: Exception | None) -> None:
        with kept_blocks(tmp_path, "http://x") as file:
            assert file.read() == before
            file.write(b"block")
            if error is not None:
                raise error

    before = b""
    with pytest.raises(Unavailable):
        end(Unavailable(what="x", why="y"))
    before = b"block"
    with pytest.raises(NotFound):
        end(NotFound(what="block"))
    assert list(tmp_path.iterdir()) == []
    before = b""
    end(None)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for opened in (partial_file, own_partial_file, kept_blocks):
        with pytest.raises(Damaged), opened(tmp_path / "file" / "downloads", "http"):
            pass
