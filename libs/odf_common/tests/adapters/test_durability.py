"""What a store has done when it returns survives a power cut: bytes, names and removals."""

import errno
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from odf_testing.contracts import CONTENT, NAME, a_dataset, a_hash, an_entry
from odf_testing.power_cut import Recorder

from odf_common.adapters.local import durable
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.key_files import keep_dataset_key, node_key
from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.adapters.memory import DecodeBudget, MemoryInUse, max_decoded_bytes
from odf_common.adapters.reserve import MIN_FREE_BYTES, RESERVE_BYTES, Reserve
from odf_common.errors import StorageUnavailable
from odf_common.identity.dataset_refs import HEAD
from odf_common.identity.keys import PrivateKey
from odf_common.ports.store import ObjectKind

DATASET, DATA = a_dataset(), ObjectKind.DATA


@dataclass(frozen=True)
class Home:
    """The stores of a node, and a folder on another file system."""

    folder: Path
    elsewhere: Path

    @property
    def blobs(self) -> LocalBlobStore:
        return LocalBlobStore(self.folder)

    @property
    def refs(self) -> LocalRefStore:
        return LocalRefStore(self.folder)

    @property
    def catalog(self) -> LocalCatalog:
        return LocalCatalog(self.folder)

    @property
    def keys(self) -> Path:
        return self.folder / "keys"


def put_file(home: Home) -> None:
    file = home.blobs.scratch() / "slice"
    file.write_bytes(CONTENT)
    home.blobs.put_file(DATASET, DATA, NAME, file)


def copy_file(home: Home) -> None:
    file = home.elsewhere / "slice"
    file.write_bytes(CONTENT)
    home.blobs.put_file(DATASET, DATA, NAME, file)
    assert not file.exists()


def name_only(home: Home) -> None:
    """Store an object as a process does that is killed before it has synced the folder."""
    home.blobs.put(DATASET, DATA, a_hash(2), b"")
    folder = home.folder / "datasets" / DATASET.folder / DATA
    with (folder / ".pending-1").open("wb") as file:
        file.write(CONTENT)
        file.flush()
        os.fsync(file.fileno())
    (folder / ".pending-1").rename(folder / str(NAME))


def put_again(home: Home) -> None:
    name_only(home)
    home.blobs.put(DATASET, DATA, NAME, CONTENT)


def put_all(home: Home) -> None:
    home.blobs.put_all(DATASET, DATA, [(NAME, CONTENT), (a_hash(2), b""), (a_hash(3), b"3")])


def put_all_again(home: Home) -> None:
    name_only(home)
    home.blobs.put_all(DATASET, DATA, [(NAME, CONTENT)])


def put_file_again(home: Home) -> None:
    name_only(home)
    put_file(home)


def remove_object(home: Home) -> None:
    put_file(home)
    home.blobs.remove(DATASET, DATA, [NAME])


def move_reference(home: Home) -> None:
    home.refs.compare_and_set(DATASET, expected=None, new=a_hash(1))
    home.refs.compare_and_set(DATASET, expected=a_hash(1), new=a_hash(2))


def remove_reference(home: Home) -> None:
    move_reference(home)
    home.refs.remove(DATASET, HEAD, expected=a_hash(2))


def set_note(home: Home) -> None:
    home.blobs.set_note(DATASET, "dropped", "yes")


def remove_note(home: Home) -> None:
    set_note(home)
    home.blobs.set_note(DATASET, "dropped", None)


def add_name(home: Home) -> None:
    home.catalog.add(an_entry())


def replace_name(home: Home) -> None:
    add_name(home)
    home.catalog.replace(an_entry(default="topic"))


def rename(home: Home) -> None:
    add_name(home)
    home.catalog.rename("cities", an_entry("towns"))


def remove_name(home: Home) -> None:
    add_name(home)
    home.catalog.remove("cities")


def keep_key(home: Home) -> None:
    keep_dataset_key(home.keys, PrivateKey.from_bytes(bytes(31) + b"1"))


def make_node_key(home: Home) -> None:
    node_key(home.keys)


def delete(home: Home) -> None:
    put_file(home)
    move_reference(home)
    home.blobs.delete_dataset(DATASET)


ACTS = (
    put_file, copy_file, put_again, put_all, put_all_again, put_file_again, remove_object, move_reference, remove_reference, set_note, remove_note,
    add_name, replace_name, rename, remove_name, keep_key, make_node_key, delete,
)  # fmt: skip


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_completed_operations_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Home], None]
) -> None:
    home = Home(tmp_path / "home", tmp_path / "elsewhere")
    home.folder.mkdir()
    home.elsewhere.mkdir()
    recorder = Recorder(home.folder)
    with recorder.recording(monkeypatch), monkeypatch.context() as patch:
        replace = os.replace

        def on_one_file_system(source: Path, target: Path) -> None:
            if home.elsewhere in source.parents:
                raise OSError(errno.EXDEV, "another file system")
            replace(source, target)

        patch.setattr(os, "replace", on_one_file_system)
        act(home)

    *_, disk = recorder.disks()
    left = disk.after_cut(lambda _: False)
    # What a deletion has hidden is deleted by the next start.
    left = {path: content for path, content in left.items() if not path.startswith("datasets/.pending-")}
    assert left == files_of(home.folder)


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files but for locks and scratch space."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.relative_to(folder).parts[0] not in ("locks", "scratch")
    }


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "datasets").write_bytes(b"")
    with pytest.raises(FileExistsError):
        durable.make_folder(tmp_path / "datasets")


def test_syncing_a_folder_leaves_no_file_open(tmp_path: Path) -> None:
    durable.sync_folder(tmp_path)
    assert not [one for one in Path("/proc/self/fd").iterdir() if _target(one) == str(tmp_path)]


def _target(handle: Path) -> str:
    try:
        return str(handle.readlink())
    except FileNotFoundError:  # other threads close files meanwhile
        return ""


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


GIB = 1 << 30


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("4294967296\n", GIB // 2),
        ("max\n", None),
        ("1125899906842624\n", None),
        (None, None),
    ],
)
def test_a_table_may_take_an_eighth_of_the_memory(
    tmp_path: Path, limit: str | None, expected: int | None
) -> None:
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert max_decoded_bytes(1 << 50, file) == (expected or machine // 8)
    assert max_decoded_bytes(1000, file) == 1000


def test_tables_are_decoded_together_up_to_a_limit() -> None:
    most = pa.total_allocated_bytes() + 1000
    budget = DecodeBudget(most, wait=0.2)
    with (
        budget.admit(600),
        pytest.raises(MemoryInUse, match="takes the memory for 0 MiB"),
        budget.admit(600),
    ):
        pass
    kept = pa.allocate_buffer(600)
    with pytest.raises(MemoryInUse), budget.admit(600):
        pass
    del kept
    with budget.admit(600):
        pass


def test_a_table_waits_until_another_one_is_released() -> None:
    budget = DecodeBudget(pa.total_allocated_bytes() + 1000)
    kept = [pa.allocate_buffer(600)]
    release = threading.Timer(0.3, kept.clear)
    release.start()
    with budget.admit(600):
        assert not kept
    release.join()
