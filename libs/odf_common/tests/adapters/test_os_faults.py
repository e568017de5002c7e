"""No `OSError` escapes from the local store, whichever system call fails and however."""

import contextlib
import errno
import inspect
import io
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from odf_testing.contracts import CONTENT, NAME, a_dataset, a_hash, an_entry

from odf_common.adapters.local import durable, key_files, stores
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.exported_dataset import FolderDataset
from odf_common.adapters.local.faults import LASTING, fault, open_to_read, translating_os_errors
from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.data.slices import CorruptSlice, read_slice
from odf_common.errors import Damaged, NotFound, OdfError, StorageUnavailable
from odf_common.identity.dataset_refs import Name
from odf_common.identity.keys import generate
from odf_common.ports.store import CatalogEntry, ObjectKind

PASSING = ("EDQUOT", "EIO", "EMFILE", "ENFILE", "ENOMEM", "ENOSPC", "EROFS", "ESTALE")
NEEDING_A_PERSON = ("EACCES", "EISDIR", "ELOOP", "ENAMETOOLONG", "ENOTDIR", "EPERM")
TRIED = ("EACCES", "EIO", "ELOOP", "ENOTDIR")  # `pathlib` overlooks the last two
CALLS = (
    "open",
    "stat",
    "lstat",
    "scandir",
    "listdir",
    "mkdir",
    "rename",
    "replace",
    "link",
    "unlink",
    "fsync",
)
BLOCK = ObjectKind.BLOCK
KEY = generate()


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/home/ann/.odf/datasets/x/refs/head", "datasets/x/refs/head"),
        ("/proc/x", "/proc/x"),
        ("/srv", "/srv"),
        ("/srv/shared/x/refs", "…/x/refs"),
        ("shared/x", "shared/x"),
        (None, "storage"),
    ],
)
def test_a_path_is_shown_relative_to_the_home_or_described(file: str | None, shown: str) -> None:
    assert str(fault(FileNotFoundError(errno.ENOENT, "x", file))) == f"{shown} does not exist"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one of everything."""
    home = tmp_path_factory.mktemp("template")
    LocalBlobStore(home).put(a_dataset(), BLOCK, NAME, CONTENT)
    LocalBlobStore(home).set_note(a_dataset(), "late", "1")
    LocalRefStore(home).compare_and_set(a_dataset(), expected=None, new=NAME)
    LocalCatalog(home).add(an_entry())
    key_files.keep_dataset_key(home / "keys", KEY)
    key_files.node_key(home / "keys")
    LocalRepositories(home).add(Name("shop"), "https://example.org")
    (home / "moved").write_bytes(b"more")
    return home


class Home:
    """A copy of the template, and its stores."""

    def __init__(self, template: Path, path: Path) -> None:
        self.path = path
        shutil.copytree(template, path)
        self.blobs, self.refs = LocalBlobStore(path), LocalRefStore(path)
        self.folder = FolderDataset(stores.dataset_folder(path, a_dataset()))


class Homes:
    """Homes that are each damaged in some way after opening; one is reused until an action changes it."""

    def __init__(self, template: Path, folder: Path, spoil: Callable[[Path], None] | None = None) -> None:
        self._template, self._folder, self._spoil = template, folder, spoil
        self._home: Home | None = None
        self._state: set[tuple[str, int, int, int]] = set()

    def unchanged(self) -> Home:
        """Return a home that no action has changed."""
        if self._home is None or _state(self._home.path) != self._state:
            count = 0 if self._home is None else int(self._home.path.name) + 1
            self._home = Home(self._template, self._folder / str(count))
            if self._spoil is not None:
                self._spoil(self._home.path)
            self._state = _state(self._home.path)
        return self._home


def _state(folder: Path) -> set[tuple[str, int, int, int]]:
    """Return name, type, size and change time of everything in a folder."""
    found, waiting = set(), [os.fspath(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                state = entry.stat(follow_symlinks=False)
                found.add((entry.path, state.st_mode, state.st_size, state.st_mtime_ns))
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return found


def blob_calls(home: Home) -> dict[str, Callable[[], object]]:
    blobs, one = home.blobs, a_dataset()
    return {
        "has": lambda: blobs.has(one, BLOCK, NAME),
        "size": lambda: blobs.size(one, BLOCK, NAME),
        "read": lambda: blobs.read(one, BLOCK, NAME),
        "open": lambda: blobs.open(one, BLOCK, NAME).close(),
        "names": lambda: list(blobs.names(one, BLOCK)),
        "put": lambda: blobs.put(one, BLOCK, a_hash(2), b"x"),
        "put_all": lambda: blobs.put_all(one, BLOCK, [(a_hash(4), b"y"), (a_hash(5), b"z")]),
        "put_file": lambda: blobs.put_file(one, BLOCK, a_hash(3), home.path / "moved"),
        "remove": lambda: blobs.remove(one, BLOCK, (NAME,)),
        "note": lambda: blobs.note(one, "late"),
        "set_note": lambda: blobs.set_note(one, "late", "2"),
        "lock_notes": lambda: _note(blobs),
        "local_path": lambda: blobs.local_path(one, BLOCK, NAME),
        "local_copy": lambda: blobs.local_copy(one, BLOCK, NAME),
        "index_folder": lambda: blobs.index_folder(one),
        "scratch": blobs.scratch,
        "datasets": lambda: list(blobs.datasets()),
        "sweep": lambda: blobs.sweep(0.0),
        "finish_deletions": blobs.finish_deletions,
        "delete_dataset": lambda: blobs.delete_dataset(one),
    }


def _note(blobs: LocalBlobStore) -> None:
    with blobs.lock_notes(a_dataset()):
        pass


def ref_calls(home: Home) -> dict[str, Callable[[], object]]:
    refs, one = home.refs, a_dataset()
    return {
        "head": lambda: refs.head(one),
        "compare_and_set": lambda: refs.compare_and_set(one, expected=NAME, new=a_hash(2)),
        "remove": lambda: refs.remove(one, "head", expected=None),
        "names": lambda: refs.names(one),
    }


def catalog_calls(home: Home) -> dict[str, Callable[[], object]]:
    catalog = LocalCatalog(home.path)  # with empty caches
    return {
        "entries": lambda: list(catalog.entries()),
        "by_alias": lambda: catalog.by_alias("cities"),
        "by_id": lambda: catalog.by_id(a_dataset()),
        "add": lambda: catalog.add(an_entry("rivers", 2)),
        "replace": lambda: catalog.replace(an_entry("cities", source="topic")),
        "rename": lambda: catalog.rename("cities", an_entry("towns")),
        "remove": lambda: catalog.remove("cities"),
        "claim": lambda: _settle(catalog),
        "claims": catalog.claims,
        "unreadable": catalog.unreadable,
        "strays": lambda: list(catalog.strays(0.0)),
        "repair_names": catalog.repair_names,
        "lock": lambda: _hold(catalog),
    }


def _hold(catalog: LocalCatalog) -> None:
    with catalog.lock():
        pass


def _settle(catalog: LocalCatalog) -> None:
    claim = catalog.claim(a_dataset())
    if claim is not None:
        claim.write(an_entry())
        claim.release()
        claim.settle()


def key_calls(home: Home) -> dict[str, Callable[[], object]]:
    folder = home.path / "keys"
    return {
        "dataset_key": lambda: key_files.dataset_key(folder, KEY.dataset_id),
        "has_dataset_key": lambda: key_files.has_dataset_key(folder, KEY.dataset_id),
        "require_owned": lambda: key_files.require_owned(folder, LocalCatalog(home.path), KEY.dataset_id),
        "keep_dataset_key": lambda: key_files.keep_dataset_key(folder, generate()),
        "node_key": lambda: key_files.node_key(folder),
        "mark_imported": lambda: key_files.mark_imported(folder, KEY.dataset_id),
        "is_imported": lambda: key_files.is_imported(folder, KEY.dataset_id),
    }


def repository_calls(home: Home) -> dict[str, Callable[[], object]]:
    repositories = LocalRepositories(home.path)
    return {
        "__init__": lambda: LocalRepositories(home.path),
        "names": repositories.names,
        "find": lambda: repositories.find(Name("shop")),
        "add": lambda: repositories.add(Name("other"), "https://example.org"),
        "remove": lambda: repositories.remove(Name("shop")),
    }


def folder_calls(home: Home) -> dict[str, Callable[[], object]]:
    store = home.folder
    return {
        "__init__": lambda: FolderDataset(store.folder),
        "head": store.head,
        "has": lambda: store.has(BLOCK, NAME),
        "may_have": lambda: store.may_have("notes/private"),
        "any_sibling_may_have": lambda: store.any_sibling_may_have("notes/private"),
        "size": lambda: store.size(BLOCK, NAME),
        "read_block": lambda: store.read_block(NAME),
        "open": lambda: store.open(BLOCK, NAME).close(),
        "open_stored": lambda: store.open_stored(BLOCK, NAME).close(),
        "local_path": lambda: store.local_path(BLOCK, NAME),
        "names": lambda: list(store.names(BLOCK)),
    }


STORES: dict[str, tuple[object, Callable[[Home], dict[str, Callable[[], object]]]]] = {
    "blobs": (LocalBlobStore, blob_calls),
    "refs": (LocalRefStore, ref_calls),
    "catalog": (LocalCatalog, catalog_calls),
    "keys": (key_files, key_calls),
    "repositories": (LocalRepositories, repository_calls),
    "folder": (FolderDataset, folder_calls),
}


@contextlib.contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> Iterator[list[str]]:
    """Make one call of the operating system fail with an errno wherever it is used; yields what failed."""
    failed: list[str] = []

    def fail(*args: Any, **kwargs: Any) -> Any:
        failed.append(call)
        raise OSError(
            number, os.strerror(number), *[str(one) for one in args[:1] if isinstance(one, str | Path)]
        )

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        if call == "open":
            patch.setattr(io, "open", fail)
        yield failed


@pytest.mark.parametrize("store", STORES)
def test_every_public_method_is_covered(store: str, template: Path, tmp_path: Path) -> None:
    owner, calls = STORES[store]
    module = owner.__name__ if inspect.ismodule(owner) else owner.__module__
    functions = inspect.getmembers(owner, inspect.isfunction)
    public = {name for name, one in functions if not name.startswith("_") and one.__module__ == module}
    assert public <= set(calls(Home(template, tmp_path / "home")))


def test_a_full_disk_is_named_first_and_says_to_free_space() -> None:
    found = fault(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), Path("home/datasets/fed01/data/x"))
    assert str(found) == (
        "the disk is full (No space left on device): datasets/fed01/data/x cannot be used now"
    )
    assert found.advice().startswith("free space on the disk that holds the node's home")


@pytest.mark.parametrize("number", TRIED)
@pytest.mark.parametrize("store", STORES)
def test_no_os_error_leaves_a_store(
    store: str, number: str, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = getattr(errno, number)
    expected = Damaged if code in LASTING else StorageUnavailable
    seen = set()
    homes = Homes(template, tmp_path / "homes")
    names = list(STORES[store][1](homes.unchanged()))
    for call in CALLS:
        for name in names:
            action = STORES[store][1](homes.unchanged())[name]
            with failing(monkeypatch, call, code):
                error = _error_of(action)
            if error is not None:
                assert isinstance(error, expected), (name, call, error)
                assert str(tmp_path) not in str(error)
                seen.add(name)
    assert seen, "no call failed: this test is blind"


def _error_of(action: Callable[[], object]) -> OdfError | None:
    try:
        action()
    except OdfError as error:
        return error
    return None


def _in_place(home: Path, place: Path, odd: str) -> None:
    file = home / place
    shutil.rmtree(file) if file.is_dir() else file.unlink()
    match odd:
        case "folder":
            file.mkdir()
        case "fifo":
            os.mkfifo(file)
        case "file":
            file.write_bytes(b"odd \xff")
        case _:
            file.symlink_to(file)


@pytest.mark.parametrize("odd", ["folder", "file", "loop", "fifo"])
@pytest.mark.parametrize("store", STORES)
def test_no_os_error_leaves_a_store_that_holds_odd_files(
    store: str, odd: str, template: Path, tmp_path: Path
) -> None:
    names = list(STORES[store][1](Home(template, tmp_path / "names")))
    for count, place in enumerate(file.relative_to(template) for file in template.rglob("*")):
        homes = Homes(template, tmp_path / str(count), partial(_in_place, place=place, odd=odd))
        for name in names:
            action = STORES[store][1](homes.unchanged())[name]
            with contextlib.suppress(OdfError):
                action()


def test_a_pipe_in_the_place_of_an_object_is_damage_and_keeps_no_reader_waiting(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    file = stores.object_file(tmp_path, a_dataset(), BLOCK, NAME)
    file.parent.mkdir(parents=True)
    os.mkfifo(file)
    for action in (
        lambda: blobs.read(a_dataset(), BLOCK, NAME),
        lambda: blobs.open(a_dataset(), BLOCK, NAME),
        lambda: blobs.put(a_dataset(), BLOCK, NAME, CONTENT),
    ):
        with pytest.raises(
            Damaged, match=rf"^datasets/.*/blocks/{NAME} cannot be used: it is not a regular file$"
        ):
            action()


def test_an_object_whose_place_is_taken_by_a_folder_is_not_regarded_as_stored(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    stores.object_file(tmp_path, a_dataset(), BLOCK, NAME).mkdir(parents=True)
    for action in (
        lambda: blobs.put(a_dataset(), BLOCK, NAME, CONTENT),
        lambda: blobs.has(a_dataset(), BLOCK, NAME),
    ):
        with pytest.raises(
            Damaged, match=rf"^datasets/.*/blocks/{NAME} cannot be used: it is not a regular file$"
        ):
            action()


def test_a_damaged_dataset_can_be_deleted(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    stores.ref_file(tmp_path, a_dataset(1), "head").mkdir(parents=True)
    folder = stores.dataset_folder(tmp_path, a_dataset(2))
    folder.write_bytes(b"a file in place of the folder")
    for number in (1, 2):
        blobs.delete_dataset(a_dataset(number))
    assert list(blobs.datasets()) == []
    assert list((tmp_path / "datasets").iterdir()) == []


def test_reading_an_open_object_fails_in_terms_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "datasets" / "slice"
    file.parent.mkdir()
    file.write_bytes(CONTENT)
    with open_to_read(file) as opened:
        os.close(opened.fileno())
        os.open(tmp_path, os.O_RDONLY)  # takes the descriptor: reading a folder fails with EISDIR
        with pytest.raises(Damaged, match="datasets/slice cannot be used: Is a directory"):
            opened.read()


def test_a_slice_that_cannot_be_opened_is_damaged_and_one_of_other_bytes_corrupt(tmp_path: Path) -> None:
    file = tmp_path / "slice"
    file.write_bytes(b"no Parquet")
    with pytest.raises(CorruptSlice):
        translating_os_errors(read_slice)(file)
    file.unlink()
    file.symlink_to(file)
    with pytest.raises(Damaged, match=r"slice cannot be used: Too many levels of symbolic links"):
        translating_os_errors(read_slice)(file)


def test_a_name_that_cannot_be_read_for_a_while_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = LocalCatalog(tmp_path)
    catalog.add(an_entry("cities", 1))
    assert [one.alias for one in catalog.entries()] == ["cities"]
    LocalCatalog(tmp_path).add(an_entry("rivers", 2))
    file = tmp_path / "names" / "cities"
    content = file.read_bytes()
    file.unlink()
    file.symlink_to(file)
    assert [one.alias for one in catalog.entries()] == ["cities", "rivers"]
    monkeypatch.setattr("odf_common.adapters.local.catalog._RETRY_SECONDS", 0.0)
    file.unlink()
    file.write_bytes(content)
    assert [one.alias for one in catalog.entries()] == ["cities", "rivers"]


def test_a_name_whose_file_cannot_be_opened_is_restored_from_the_dataset(tmp_path: Path) -> None:
    LocalCatalog(tmp_path).add(an_entry())
    file = tmp_path / "names" / "cities"
    file.unlink()
    file.mkdir()
    assert LocalCatalog(tmp_path).by_alias("cities") == an_entry()


def test_a_damaged_name_of_an_earlier_release_is_restored_from_its_published_copy(tmp_path: Path) -> None:
    LocalCatalog(tmp_path).add(an_entry())
    stores.note_file(tmp_path, a_dataset(), "name").unlink()
    (tmp_path / "names" / "cities").write_bytes(b"")
    found = LocalCatalog(tmp_path).by_alias("cities")
    assert found == CatalogEntry(alias="cities", dataset_id=a_dataset())


def test_a_write_that_fails_leaves_no_pending_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for call in ("fsync", "replace"):
        target = tmp_path / call / "file"
        target.parent.mkdir()
        with failing(monkeypatch, call, errno.ENOSPC), pytest.raises(OSError):
            durable.write(target, CONTENT)
        assert list(target.parent.iterdir()) == []


def test_transient_faults_are_distinguished_from_permanent_ones() -> None:
    assert isinstance(fault(OSError(errno.ENOENT, "no")), NotFound)
    assert isinstance(fault(OSError("without a number")), StorageUnavailable)
    for name in PASSING:
        assert isinstance(fault(OSError(getattr(errno, name), "no")), StorageUnavailable)
    for name in NEEDING_A_PERSON:
        assert isinstance(fault(OSError(getattr(errno, name), "no")), Damaged)


def test_unfinished_writes_of_killed_processes_are_swept_and_running_ones_are_not(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    blobs.put(a_dataset(), BLOCK, NAME, CONTENT)
    LocalCatalog(tmp_path).add(an_entry())
    folders = (stores.object_file(tmp_path, a_dataset(), BLOCK, NAME).parent, tmp_path / "names")
    old, young = ([durable.write_pending(folder / "x", CONTENT) for folder in folders] for _ in range(2))
    for file in old:
        os.utime(file, (1000, 1000))
    kept = {file for file in tmp_path.rglob("*") if file.is_file()} - set(old)
    assert kept >= set(young)
    blobs.sweep(2000.0)
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == kept


def test_a_writer_whose_pending_file_was_swept_fails_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = LocalBlobStore(tmp_path)
    write = durable.write_pending

    def slow(target: Path, content: bytes, *, mode: int) -> Path:
        pending = write(target, content, mode=mode)
        os.utime(pending, (1000, 1000))
        blobs.sweep(2000.0)
        return pending

    monkeypatch.setattr(durable, "write_pending", slow)
    with pytest.raises(NotFound):
        blobs.put(a_dataset(), BLOCK, NAME, CONTENT)
    assert not blobs.has(a_dataset(), BLOCK, NAME)
