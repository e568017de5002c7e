import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from odf_testing.contracts import (
    CONTENT,
    NAME,
    BlobStoreContract,
    CatalogContract,
    RefStoreContract,
    a_dataset,
    a_hash,
    an_entry,
    require_one_winner_of_processes,
)
from structlog.testing import capture_logs

from odf_common.adapters.local import durable, stores
from odf_common.adapters.local.catalog import CorruptName, LocalCatalog
from odf_common.adapters.local.durable import try_lock
from odf_common.adapters.local.stores import CorruptRef, LocalBlobStore, LocalRefStore
from odf_common.errors import InvalidInput, StorageUnavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import CatalogEntry, ObjectKind


class TestLocalBlobStore(BlobStoreContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> LocalBlobStore:
        return LocalBlobStore(tmp_path / "home")


class TestLocalRefStore(RefStoreContract):
    @pytest.fixture
    def refs(self, tmp_path: Path) -> LocalRefStore:
        return LocalRefStore(tmp_path / "home")


class TestLocalCatalog(CatalogContract):
    @pytest.fixture
    def catalog(self, tmp_path: Path) -> LocalCatalog:
        return LocalCatalog(tmp_path / "home")


def test_of_two_processes_exactly_one_moves_the_head(tmp_path: Path) -> None:
    require_one_winner_of_processes(partial(LocalRefStore, tmp_path), rounds=30)


def test_a_folder_looks_as_other_nodes_expect(tmp_path: Path) -> None:
    LocalBlobStore(tmp_path).put(a_dataset(), ObjectKind.BLOCK, NAME, CONTENT)
    LocalRefStore(tmp_path).compare_and_set(a_dataset(), expected=None, new=NAME)
    LocalCatalog(tmp_path).add(an_entry("Cities"))
    folder = tmp_path / "datasets" / f"fed01{a_dataset().public_key.hex()}"
    files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert files.pop("notes/name") == (tmp_path / "names" / "cities").read_bytes()  # for this node alone
    assert files == {
        f"blocks/{NAME}": CONTENT,
        "refs/head": str(NAME).encode(),
        "info/alias": b"Cities",
    }
    assert [file.name for file in (tmp_path / "names").iterdir()] == ["cities"]


def test_a_commit_of_one_block_costs_four_fsyncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs, refs = LocalBlobStore(tmp_path), LocalRefStore(tmp_path)
    blobs.put(a_dataset(), ObjectKind.BLOCK, a_hash(1), CONTENT)
    refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1))
    synced: list[int] = []
    fsync = os.fsync

    def counting(handle: int) -> None:
        synced.append(handle)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", counting)
    blobs.put(a_dataset(), ObjectKind.BLOCK, a_hash(2), CONTENT)
    refs.compare_and_set(a_dataset(), expected=a_hash(1), new=a_hash(2))
    assert len(synced) == 4


def test_files_that_are_no_objects_are_not_listed(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    blobs.put(a_dataset(), ObjectKind.BLOCK, NAME, CONTENT)
    folder = tmp_path / "datasets" / a_dataset().folder / "blocks"
    for name in (".pending-1", "readme.txt", "z6MkmgVreHBu2ABaD59Jq1J2JneXwzpsUWwEWXS4kLhjb4V4"):
        (folder / name).write_bytes(b"")
        (tmp_path / "datasets" / name).mkdir()
    assert list(blobs.names(a_dataset(), ObjectKind.BLOCK)) == [NAME]
    assert list(blobs.datasets()) == [a_dataset()]


def test_a_dataset_whose_folder_cannot_be_hidden_has_lost_its_head_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, refs = LocalBlobStore(tmp_path), LocalRefStore(tmp_path)
    refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1))

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(StorageUnavailable):
        blobs.delete_dataset(a_dataset())
    assert refs.head(a_dataset()) is None


def test_deleting_a_dataset_deletes_its_head(tmp_path: Path) -> None:
    blobs, refs = LocalBlobStore(tmp_path), LocalRefStore(tmp_path)
    refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1))
    blobs.delete_dataset(a_dataset())
    assert refs.head(a_dataset()) is None
    assert list((tmp_path / "datasets").iterdir()) == []
    refs.compare_and_set(a_dataset(), expected=None, new=a_hash(2))


def test_a_deleted_dataset_leaves_no_lock(tmp_path: Path) -> None:
    blobs, refs = LocalBlobStore(tmp_path), LocalRefStore(tmp_path)
    refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1))
    assert list((tmp_path / "locks").iterdir()) == [stores.lock_file(tmp_path, a_dataset())]
    blobs.delete_dataset(a_dataset())
    assert list((tmp_path / "locks").iterdir()) == []
    blobs.delete_dataset(a_dataset())
    assert list((tmp_path / "locks").iterdir()) == []


def test_locks_of_deleted_datasets_are_removed_unless_they_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits for a lock"))
    blobs, refs = LocalBlobStore(tmp_path), LocalRefStore(tmp_path)
    refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1))
    kept = stores.lock_file(tmp_path, a_dataset())
    gone = stores.lock_file(tmp_path, a_dataset(2))
    (tmp_path / "locks" / "names").touch()
    with blobs.lock_notes(a_dataset(2)):
        blobs.finish_deletions()
        assert gone.exists()
    blobs.finish_deletions()
    assert sorted(file.name for file in (tmp_path / "locks").iterdir()) == sorted([kept.name, "names"])


def test_a_lock_whose_file_is_removed_by_its_holder_still_excludes_the_others(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(100):
            with durable.lock_file(file):
                inside.append(1)
                most.append(len(inside))
                inside.pop()
                file.unlink()  # the last thing its holder does: from now on others lock another file

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 400


@pytest.mark.parametrize("text", [b"", b"f1620", b"\xff\xfe", b"no hash"])
def test_a_damaged_head_is_an_error_and_not_absence(tmp_path: Path, text: bytes) -> None:
    refs = LocalRefStore(tmp_path)
    refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1))
    (tmp_path / "datasets" / a_dataset().folder / "refs" / "head").write_bytes(text)
    with pytest.raises(CorruptRef) as damage:
        refs.head(a_dataset())
    assert "codec" not in str(damage.value)
    assert (
        "restore the file from a backup, or remove the dataset with `odf delete DATASET`"
        in damage.value.advice()
    )
    with pytest.raises(CorruptRef):
        refs.compare_and_set(a_dataset(), expected=None, new=a_hash(2))


@pytest.mark.parametrize("text", [b"", b"f1620", b"\xff\xfe"])
def test_a_damaged_reference_can_be_removed(tmp_path: Path, text: bytes) -> None:
    refs = LocalRefStore(tmp_path)
    refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1), ref="next")
    (tmp_path / "datasets" / a_dataset().folder / "refs" / "next").write_bytes(text)
    with pytest.raises(CorruptRef) as damage:
        refs.remove(a_dataset(), "next", expected=a_hash(1))
    assert "odf ref delete" in damage.value.advice()
    refs.remove(a_dataset(), "next", expected=None)
    assert refs.head(a_dataset(), "next") is None


@pytest.mark.parametrize("ref", ["", "../head", "a/b", ".hidden", "HEAD"])
def test_a_reference_stays_in_its_folder(tmp_path: Path, ref: str) -> None:
    with pytest.raises(InvalidInput, match="is not the name of a reference"):
        LocalRefStore(tmp_path).head(a_dataset(), ref)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"alias": "a", "datasetId": "x", "pushTopics": {}}'])
def test_a_damaged_name_is_an_error_and_hides_no_other(tmp_path: Path, text: bytes) -> None:
    catalog = LocalCatalog(tmp_path)
    other = an_entry("towns")
    catalog.add(other)
    (tmp_path / "names" / "cities").write_bytes(text)
    with pytest.raises(CorruptName):
        catalog.by_alias("cities")
    assert list(catalog.entries()) == [other]
    assert catalog.by_id(other.dataset_id) == other


def test_a_dataset_that_is_removed_during_the_search_for_strays_is_not_one(tmp_path: Path) -> None:
    assert list(LocalCatalog(tmp_path).strays(float("inf"), [a_dataset()])) == []


@pytest.mark.parametrize("alias", ["", ".", "..", ".hidden"])
def test_an_alias_cannot_leave_the_folder(tmp_path: Path, alias: str) -> None:
    with pytest.raises(InvalidInput, match="is not a dataset alias"):
        LocalCatalog(tmp_path).add(an_entry(alias))


def test_a_name_that_is_too_long_for_a_file_names_no_dataset_and_is_refused(tmp_path: Path) -> None:
    catalog, longest = LocalCatalog(tmp_path), an_entry("x" * 255)
    catalog.add(longest)
    assert catalog.by_alias(longest.alias) == longest
    assert catalog.by_alias("x" * 256) is None
    with pytest.raises(InvalidInput, match="at most 255"):
        catalog.add(an_entry("x" * 256))


def test_a_change_by_another_process_is_seen(tmp_path: Path) -> None:
    ours, theirs = LocalCatalog(tmp_path), LocalCatalog(tmp_path)
    ours.add(an_entry("a", 1))
    os.utime(tmp_path / "names", (0, 0))  # long ago: from here on the folder's content is remembered
    assert ours.by_id(a_dataset(1)) == an_entry("a", 1)
    theirs.add(an_entry("b", 2))
    assert ours.by_id(a_dataset(2)) == an_entry("b", 2)


def test_an_unchanged_folder_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = LocalCatalog(tmp_path)
    catalog.add(an_entry("a", 1))
    os.utime(tmp_path / "names", (0, 0))
    assert catalog.by_id(a_dataset(1)) is not None
    monkeypatch.setattr(os, "scandir", None)
    assert catalog.by_id(a_dataset(1)) == an_entry("a", 1)


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_names_are_repaired_past_a_dataset_that_cannot_be(tmp_path: Path, damaged: int) -> None:
    catalog = LocalCatalog(tmp_path)
    notes = [tmp_path / "datasets" / a_dataset(number).folder / "notes" for number in range(3)]
    for number, folder in enumerate(notes):
        catalog.add(an_entry(f"d{number}", number))
        (folder / "name").unlink()
    notes[damaged].rmdir()
    notes[damaged].write_bytes(b"")  # in place of the folder
    names = {file: file.stat().st_ino for file in (tmp_path / "names").iterdir()}

    catalog.repair_names()

    assert {file: file.stat().st_ino for file in names} == names, "the names themselves are sound"
    assert [(folder / "name").exists() for folder in notes] == [number != damaged for number in range(3)]


def test_names_are_repaired_under_the_lock_of_the_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = LocalCatalog(tmp_path)
    catalog.add(an_entry())
    (tmp_path / "datasets" / an_entry().dataset_id.folder / "notes" / "name").unlink()
    was_free, repair = list[bool](), LocalCatalog._repair_names_of

    def noted(self: LocalCatalog, dataset: DatasetId) -> None:
        handle = try_lock(tmp_path / "locks" / "names", os.O_CREAT)
        was_free.append(handle is not None)
        repair(self, dataset)

    monkeypatch.setattr(LocalCatalog, "_repair_names_of", noted)
    catalog.repair_names()
    assert was_free == [False]


@pytest.mark.parametrize("write", range(3))
def test_a_rename_that_finds_the_disk_full_has_not_renamed(
    tmp_path: Path, full_disk: Callable[[int], AbstractContextManager[None]], write: int
) -> None:
    catalog = LocalCatalog(tmp_path)
    catalog.add(an_entry())
    renamed = replace(an_entry(), alias="towns", formerly="cities")
    with full_disk(write), pytest.raises(StorageUnavailable):
        catalog.rename("cities", renamed)
    assert [entry.alias for entry in LocalCatalog(tmp_path).entries()] == ["cities"]
    again = LocalCatalog(tmp_path)
    again.repair_names()
    again.rename("cities", renamed)
    assert list(LocalCatalog(tmp_path).entries()) == [renamed]


def test_a_dataset_is_deleted_under_the_lock_that_moves_its_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, refs = LocalBlobStore(tmp_path), LocalRefStore(tmp_path)
    locked: list[Path] = []
    lock = durable.lock_file

    def noted(file: Path) -> AbstractContextManager[None]:
        locked.append(file)
        return lock(file)

    monkeypatch.setattr(durable, "lock_file", noted)
    refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1))
    refs.remove(a_dataset(), "head", expected=None)
    blobs.delete_dataset(a_dataset())
    with blobs.lock_notes(a_dataset()):
        pass
    assert locked == [stores.lock_file(tmp_path, a_dataset())] * 4


def test_the_lock_of_a_deleted_dataset_is_held_until_its_folder_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, refs = LocalBlobStore(tmp_path), LocalRefStore(tmp_path)
    refs.compare_and_set(a_dataset(), expected=None, new=a_hash(1))
    rename, hidden = Path.rename, list[Path]()

    def while_another_process_looks(source: Path, target: Path) -> Path:
        lock = stores.lock_file(tmp_path, a_dataset())
        with pytest.raises(durable.LockHeld), durable.lock_file(lock, wait_seconds=0):
            pass
        hidden.append(source)
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", while_another_process_looks)
    blobs.delete_dataset(a_dataset())
    assert hidden == [stores.dataset_folder(tmp_path, a_dataset())]


def test_a_catalog_that_was_read_just_after_a_change_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = LocalCatalog(tmp_path), LocalCatalog(tmp_path)
    ours.add(an_entry())
    folder = tmp_path / "names"
    changed = folder.stat().st_mtime_ns
    monkeypatch.setattr(time, "time_ns", lambda: changed + 1)
    assert len(list(ours.entries())) == 1

    theirs.add(an_entry("towns", 2))
    os.utime(folder, ns=(changed, changed))  # as on a file system whose times are coarse

    assert [entry.alias for entry in ours.entries()] == ["cities", "towns"]


def test_a_claim_is_durable_before_its_operation_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())
        fsync(handle)

    claim = LocalCatalog(tmp_path).claim(a_dataset())
    assert claim is not None
    monkeypatch.setattr(os, "fsync", noted)
    claim.write(an_entry())
    folder = tmp_path / "claims"
    assert synced == [folder / a_dataset().folder, folder]


def test_a_record_of_a_claim_is_read_although_a_power_cut_has_torn_the_one_before_it(tmp_path: Path) -> None:
    catalog = LocalCatalog(tmp_path)
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / a_dataset().folder).write_bytes(b'{"alias": "citi')
    claim = catalog.claim(a_dataset())
    assert claim is not None
    claim.write(an_entry("towns"))
    claim.release()

    assert [one.alias for one in catalog.claims()] == ["towns"]


def test_a_claim_is_held_until_its_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = LocalCatalog(tmp_path)
    claim = catalog.claim(a_dataset())
    assert claim is not None
    claim.write(an_entry())
    unlink, others = Path.unlink, []

    def after_a_try(file: Path, *, missing_ok: bool = False) -> None:
        others.append(catalog.claim(a_dataset()))
        unlink(file, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", after_a_try)
    claim.settle()

    assert others == [None]


def test_a_claim_that_is_settled_while_another_waits_for_it_is_not_held_by_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock
    removals = [tmp_path / "claims" / a_dataset().folder]

    def late(handle: int, operation: int) -> None:
        for file in removals[:]:
            removals.remove(file)
            file.unlink()
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert LocalCatalog(tmp_path).claim(a_dataset()) is None, "it was settled just now: ask again"
    claim = LocalCatalog(tmp_path).claim(a_dataset())
    assert claim is not None
    assert LocalCatalog(tmp_path).claim(a_dataset()) is None


@pytest.mark.parametrize("folder", ["blocks", "data", "refs", "info", "notes", "../../names", "../../keys"])
def test_a_sweep_takes_unfinished_writes_that_are_old_and_nothing_else(tmp_path: Path, folder: str) -> None:
    dataset = tmp_path / "datasets" / a_dataset().folder
    dataset.mkdir(parents=True)
    place = dataset / folder
    place.mkdir()
    old, young, whole, lock = (place / name for name in (".pending-1", ".pending-2", str(NAME), ".lock"))
    for file, written in ((old, 1000), (young, 3000), (whole, 1000), (lock, 1000)):
        file.write_bytes(CONTENT)
        os.utime(file, (written, written))
    link = place / ".pending-3"
    link.symlink_to(whole)

    LocalBlobStore(tmp_path).sweep(2000)

    assert [file.exists() for file in (old, young, whole, lock, link)] == [False, True, True, True, True]


def test_a_dataset_that_is_a_link_is_unlinked_and_its_target_is_kept(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "blocks").mkdir(parents=True)
    (tmp_path / "home" / "datasets").mkdir(parents=True)
    (tmp_path / "home" / "datasets" / a_dataset().folder).symlink_to(elsewhere)

    LocalBlobStore(tmp_path / "home").delete_dataset(a_dataset())

    assert list((tmp_path / "home" / "datasets").iterdir()) == []
    assert (elsewhere / "blocks").is_dir()


def test_a_claim_that_cannot_be_read_is_reported_and_counts_as_claimed(tmp_path: Path) -> None:
    dataset = a_dataset()
    (tmp_path / "claims" / dataset.folder).mkdir(parents=True)
    with capture_logs() as logs:
        assert LocalCatalog(tmp_path).claims() == (CatalogEntry(alias="", dataset_id=dataset),)
    assert [(one["event"], one["file"]) for one in logs] == [
        ("claim cannot be read", str(tmp_path / "claims" / dataset.folder))
    ]
