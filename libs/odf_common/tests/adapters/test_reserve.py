"""The space reserved for deletions is really allocated on any file system."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from odf_common.adapters.reserve import MIN_FREE_BYTES, RESERVE_BYTES, Reserve
from odf_common.errors import StorageUnavailable


@pytest.fixture
def reserve(tmp_path: Path) -> Reserve:
    if shutil.disk_usage(tmp_path).free < MIN_FREE_BYTES:
        pytest.fail(f"{tmp_path} has less than {MIN_FREE_BYTES} bytes free")
    return Reserve(tmp_path / "home")


def size_of(home: Path) -> int | None:
    file = home / "home" / "reserve"
    return file.stat().st_blocks * 512 if file.exists() else None


def failing(number: int) -> object:
    def allocate(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return allocate


def test_it_is_allocated_once_and_released_once(tmp_path: Path, reserve: Reserve) -> None:
    reserve.refill()
    reserve.refill()
    assert size_of(tmp_path) == RESERVE_BYTES
    assert reserve.release()
    assert not reserve.release()
    assert size_of(tmp_path) is None
    reserve.refill()
    assert size_of(tmp_path) == RESERVE_BYTES


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_that_cannot_allocate_is_written_to(
    tmp_path: Path, reserve: Reserve, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(number))
    reserve.refill()
    os.sync()
    assert (tmp_path / "home" / "reserve").read_bytes() == bytes(RESERVE_BYTES)


def test_a_disk_that_fills_up_leaves_nothing_and_says_so(
    tmp_path: Path, reserve: Reserve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
    with pytest.raises(StorageUnavailable, match="No space left"):
        reserve.refill()
    assert size_of(tmp_path) is None


@pytest.mark.parametrize(("free", "is_allocated"), [(MIN_FREE_BYTES - 1, False), (MIN_FREE_BYTES, True)])
def test_the_last_free_bytes_are_not_reserved(
    tmp_path: Path, reserve: Reserve, monkeypatch: pytest.MonkeyPatch, free: int, is_allocated: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    reserve.refill()
    assert (size_of(tmp_path) == RESERVE_BYTES) == is_allocated


def test_no_file_stays_open(tmp_path: Path, reserve: Reserve, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve.refill()
    reserve.release()
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
    with pytest.raises(StorageUnavailable):
        reserve.refill()
    open_files = [str(handle.resolve()) for handle in Path("/proc/self/fd").iterdir()]
    assert not [file for file in open_files if file.startswith(f"{tmp_path}/")]
