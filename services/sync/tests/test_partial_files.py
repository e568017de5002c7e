"""Partial files of transfers are kept for the next attempt, and removed after a long time without one."""

import errno
import os
import threading
import time
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from odf_common.errors import Damaged, NotFound, StorageUnavailable, Unavailable
from odf_sync.transfer import partial_files
from odf_sync.transfer.partial_files import (
    KEPT_SECONDS,
    keep_swept,
    kept_blocks,
    own_partial_file,
    partial_file,
    sweep,
)


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
