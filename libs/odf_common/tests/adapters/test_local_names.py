"""Names that are damaged, doubled or missing, and how they are restored from the datasets' folders."""

import errno
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from odf_testing.contracts import CONTENT, NAME, a_dataset, an_entry

from odf_common.adapters.local import catalog as catalog_module
from odf_common.adapters.local import faults, stores
from odf_common.adapters.local.catalog import CorruptName, LocalCatalog
from odf_common.adapters.local.stores import LocalBlobStore
from odf_common.errors import AlreadyExists, StorageUnavailable
from odf_common.ports.store import CatalogEntry, ObjectKind

ENTRY = an_entry("Cities", a="odf.push.a")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with two datasets."""
    LocalCatalog(tmp_path).add(ENTRY)
    LocalCatalog(tmp_path).add(an_entry("towns", 2))
    return tmp_path


def copy_of(home: Path, number: int = 1) -> Path:
    return stores.note_file(home, a_dataset(number), "name")


def published(home: Path, number: int = 1) -> Path:
    return stores.dataset_folder(home, a_dataset(number)) / "info" / "alias"


def aliases(home: Path) -> list[str]:
    return [entry.alias for entry in LocalCatalog(home).entries()]


@pytest.mark.parametrize("damage", [b"", b"[]"])
def test_a_damaged_name_is_found_by_its_copy_and_repaired_from_it(home: Path, damage: bytes) -> None:
    (home / "names" / "cities").write_bytes(damage)
    catalog = LocalCatalog(home)
    assert catalog.by_alias("cities") == catalog.by_id(a_dataset()) == ENTRY
    assert catalog.unreadable() == ()
    catalog.repair_names()
    shutil.rmtree(home / "datasets")
    assert LocalCatalog(home).by_alias("cities") == ENTRY


def test_a_damaged_name_with_only_its_published_copy_left_is_restored_without_topics(
    home: Path,
) -> None:
    (home / "names" / "cities").write_bytes(b"")
    copy_of(home).unlink()
    assert LocalCatalog(home).by_alias("cities") == replace(ENTRY, push_topics={})


def test_a_damaged_name_that_no_dataset_or_two_may_have_is_unreadable(home: Path) -> None:
    for name in ("cities", "rivers"):
        (home / "names" / name).write_bytes(b"")
    shutil.copytree(stores.dataset_folder(home, a_dataset()), stores.dataset_folder(home, a_dataset(3)))
    catalog = LocalCatalog(home)
    assert catalog.unreadable() == ("cities", "rivers")
    with pytest.raises(CorruptName):
        catalog.by_alias("cities")
    assert aliases(home) == ["towns"]


def test_a_damaged_name_is_not_that_of_a_dataset_that_has_another(home: Path) -> None:
    (home / "names" / "rivers").write_bytes(b"")
    published(home, 2).write_bytes(b"rivers")
    assert LocalCatalog(home).unreadable() == ("rivers",)
    assert aliases(home) == ["Cities", "towns"]


@pytest.mark.parametrize("recorded", ["cities", "rivers", None], ids=str)
def test_of_two_names_of_a_dataset_the_recorded_one_stays_or_else_the_newer_one(
    home: Path, recorded: str | None
) -> None:
    names = home / "names"
    shutil.copy(names / "cities", names / "rivers")
    for name, written in (
        (("cities", 2000), ("rivers", 1000)) if recorded else (("cities", 1000), ("rivers", 2000))
    ):
        os.utime(names / name, (written, written))
    published(home).write_bytes((recorded or "other").encode())

    LocalCatalog(home).repair_names()

    stays = recorded or "rivers"
    assert sorted(file.name for file in names.iterdir()) == sorted([stays, "towns"])
    assert published(home).read_text().lower() == stays
    found = LocalCatalog(home).by_id(a_dataset())
    assert found is not None
    assert found.push_topics == ENTRY.push_topics


@pytest.mark.parametrize("lost", ["copy", "published", "both"])
def test_the_name_is_restored_in_a_datasets_folder_that_has_lost_it(home: Path, lost: str) -> None:
    before = [file.read_bytes() for file in (copy_of(home), published(home))]
    if lost != "published":
        copy_of(home).unlink()
    if lost != "copy":
        published(home).write_bytes(b"other")
    LocalCatalog(home).repair_names()
    assert [file.read_bytes() for file in (copy_of(home), published(home))] == before


def test_valid_names_are_left_unchanged(home: Path) -> None:
    files = [file for file in home.rglob("*") if file.is_file() and file.parent.name != "locks"]
    before = {file: file.stat().st_ino for file in files}
    LocalCatalog(home).repair_names()
    assert {file: file.stat().st_ino for file in files} == before


def test_a_replaced_entry_is_recorded_in_its_datasets_folder(home: Path) -> None:
    changed = replace(ENTRY, push_topics={"b": "odf.push.b"})
    LocalCatalog(home).replace(changed)
    (home / "names" / "cities").write_bytes(b"")
    assert LocalCatalog(home).by_alias("cities") == changed


def test_removing_a_name_that_is_not_taken_does_nothing(home: Path) -> None:
    LocalCatalog(home).remove("rivers")
    LocalCatalog(home / "none").remove("rivers")
    assert aliases(home) == ["Cities", "towns"]


def test_strays_are_old_folders_that_never_had_a_name(home: Path) -> None:
    blobs = LocalBlobStore(home)
    for number in range(1, 6):
        blobs.put(a_dataset(number), ObjectKind.DATA, NAME, CONTENT)
    for number, record in ((3, published(home, 3)), (4, copy_of(home, 4))):
        record.parent.mkdir()
        record.write_bytes(str(number).encode())
    (home / "datasets" / "readme").mkdir()
    for name in ("cities", "towns"):
        assert LocalCatalog(home).by_alias(name) is not None
    for number in (1, 2):
        shutil.rmtree(copy_of(home, number).parent)
        shutil.rmtree(published(home, number).parent)
    catalog, newest = LocalCatalog(home), stores.dataset_folder(home, a_dataset(5)) / "data"
    written = newest.stat().st_mtime

    assert list(catalog.strays(written + 10)) == [a_dataset(5)]
    assert list(catalog.strays(written + 10, [a_dataset(1), a_dataset(4), a_dataset(5)])) == [a_dataset(5)]
    os.utime(stores.dataset_folder(home, a_dataset(5)), (1000, 1000))
    assert list(catalog.strays(written)) == [], "something in it is not older"


def test_a_temporarily_unreadable_name_is_kept_and_a_new_one_is_reported_as_unreadable(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, names = LocalCatalog(home), home / "names"
    assert catalog.by_id(a_dataset()) == ENTRY
    LocalCatalog(home).add(an_entry("rivers", 3))
    changed = replace(ENTRY, push_topics={"b": "odf.push.b"})
    LocalCatalog(home).replace(changed)
    read = faults.read_file

    def unreadable(file: Path) -> bytes:
        if file in (names / "cities", names / "rivers"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(file)

    with monkeypatch.context() as patch:
        patch.setattr(catalog_module, "read_file", unreadable)
        assert catalog.by_id(a_dataset()) == ENTRY
        assert catalog.unreadable() == ("rivers",)
        assert catalog.by_id(a_dataset(3)) is None
    later = time.monotonic() + 60
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert catalog.by_id(a_dataset()) == changed
    assert catalog.unreadable() == ()


def test_names_that_are_removed_while_all_are_read_hide_no_other(home: Path) -> None:
    for number in range(20):
        (home / "names" / f"gone{number}").symlink_to("nowhere")
    assert aliases(home) == ["Cities", "towns"]


def test_a_rename_that_is_interrupted_leaves_the_name_as_it_was_spelled(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            LocalCatalog(home).rename("cities", replace(ENTRY, alias="Rivers", formerly="Cities"))
    assert aliases(home) == ["Cities", "towns"]
    LocalCatalog(home).repair_names()
    assert published(home).read_text() == "Cities"


def test_a_dataset_whose_name_is_taken_leaves_no_record_of_it(home: Path) -> None:
    with pytest.raises(AlreadyExists):
        LocalCatalog(home).add(an_entry("CITIES", 3))
    assert not stores.dataset_folder(home, a_dataset(3)).exists()


@pytest.mark.parametrize("write", range(3))
def test_an_entry_that_finds_the_disk_full_is_not_replaced(
    home: Path, full_disk: Callable[[int], AbstractContextManager[None]], write: int
) -> None:
    with full_disk(write), pytest.raises(StorageUnavailable):
        LocalCatalog(home).replace(replace(ENTRY, push_topics={}))
    assert LocalCatalog(home).by_alias("cities") == ENTRY
    LocalCatalog(home).repair_names()
    (home / "names" / "cities").write_bytes(b"")
    assert LocalCatalog(home).by_alias("cities") == ENTRY


def test_a_name_that_is_repaired_in_place_is_read_again_after_a_while(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, clock = home / "names" / "cities", [100.0]
    sound = file.read_bytes()
    file.write_bytes(b"")
    shutil.rmtree(home / "datasets")
    os.utime(file.parent, (0, 0))  # long ago: from here on the folder's content is remembered
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    catalog = LocalCatalog(home)
    assert catalog.unreadable() == ("cities",)
    file.write_bytes(sound)

    def is_found_at(now: float) -> bool:
        clock[0] = now
        return catalog.by_id(a_dataset()) is not None

    assert [is_found_at(now) for now in (100.1, 104.0, 106.0)] == [False, False, True]
    assert catalog.unreadable() == ()


def test_names_are_read_by_one_thread_at_a_time(home: Path) -> None:
    class Watched(LocalCatalog):
        scans = 0

        def _scan(self) -> tuple[dict[str, CatalogEntry], list[str]]:
            assert self._guard.locked()
            self.scans += 1
            return super()._scan()

    catalog = Watched(home)
    assert catalog.by_id(a_dataset()) == ENTRY
    assert catalog.scans == 1


def test_a_folder_in_the_place_of_a_name_is_damage_and_no_free_name(home: Path) -> None:
    (home / "names" / "cities").unlink()
    (home / "names" / "cities").mkdir()
    assert LocalCatalog(home).by_alias("cities") == ENTRY
    shutil.rmtree(home / "datasets")
    assert LocalCatalog(home).unreadable() == ("cities",)
    with pytest.raises(CorruptName):
        LocalCatalog(home).by_alias("cities")
    with pytest.raises(AlreadyExists):
        LocalCatalog(home).add(an_entry("cities", 3))
