"""Properties of the files of a home: permissions, files that are not objects, and damage next to them."""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from io import FileIO
from itertools import count
from pathlib import Path

import pytest
from odf_testing.contracts import CONTENT, NAME, a_dataset, a_hash, an_entry

from odf_common.adapters.local import claims, durable, stores
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.errors import NotFound, StorageUnavailable
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import ObjectKind


def test_notes_are_private(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    blobs.set_note(a_dataset(), "sources", "secret")
    assert stores.note_file(tmp_path, a_dataset(), "sources").stat().st_mode & 0o777 == 0o600


def test_a_file_that_spells_a_hash_in_another_way_is_no_object(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    blobs.put(a_dataset(), ObjectKind.DATA, NAME, CONTENT)
    folder = stores.object_file(tmp_path, a_dataset(), ObjectKind.DATA, NAME).parent
    other = str(a_hash(2)).upper()
    (folder / other).write_bytes(b"")
    (folder / "x").write_bytes(b"")
    assert str(Multihash.parse(other)) != other
    assert list(blobs.names(a_dataset(), ObjectKind.DATA)) == [NAME]


def test_an_object_that_is_missing_is_named_by_its_kind_and_hash(tmp_path: Path) -> None:
    blobs, missing = LocalBlobStore(tmp_path), f"object data/{NAME} "
    for ask in (blobs.read, blobs.open, blobs.size, blobs.local_path):
        with pytest.raises(NotFound, match=missing):
            ask(a_dataset(), ObjectKind.DATA, NAME)


def test_an_index_is_removed_with_its_dataset(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    file = blobs.index_folder(a_dataset()) / "words"
    durable.write(file, b"")
    blobs.delete_dataset(a_dataset())
    assert not file.exists()


def open_in(folder: Path) -> int:
    """Return how many files of a folder this process has open, removed ones too."""
    targets = []
    for handle in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # other threads close files meanwhile
            targets.append(str(handle.readlink()))
    return sum(target.startswith(f"{folder}/") for target in targets)


def test_a_claim_leaves_no_file_open_once_it_is_settled_or_refused(tmp_path: Path) -> None:
    held = claims.try_claim(tmp_path, a_dataset())
    assert held is not None
    assert claims.try_claim(tmp_path, a_dataset()) is None
    assert open_in(tmp_path) == 1

    held.settle()

    assert open_in(tmp_path) == 0


def test_a_claim_that_is_settled_while_claims_are_listed_and_what_is_no_claim_hide_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        held = claims.try_claim(tmp_path, a_dataset(number))
        assert held is not None
        held.write(an_entry(f"dataset{number}", number))
        held.release()
    settled, other = sorted(tmp_path.iterdir())
    (tmp_path / "!").write_bytes(b"")  # before all claims

    def read(file: Path) -> bytes:
        if file == settled:
            raise FileNotFoundError
        return file.read_bytes()

    monkeypatch.setattr(claims, "read_file", read)
    assert [one.dataset_id.folder for one in claims.read_claims(tmp_path)] == [other.name]


def test_a_damaged_dataset_does_not_prevent_sweeping_others(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    datasets = sorted(map(a_dataset, range(3)), key=lambda one: one.folder)
    for dataset in datasets:
        blobs.put(dataset, ObjectKind.DATA, NAME, CONTENT)
        pending = durable.pending_beside(stores.object_file(tmp_path, dataset, ObjectKind.DATA, NAME))
        pending.write_bytes(b"")
    damaged = stores.dataset_folder(tmp_path, datasets[1])
    damaged.rename(tmp_path / "elsewhere")
    damaged.write_bytes(b"")
    blobs.sweep(time.time() + 1)
    left = list(tmp_path.glob(f"datasets/*/data/{durable.PENDING}*"))
    assert left == []


def test_a_claim_has_all_that_was_recorded(tmp_path: Path) -> None:
    catalog, topics = LocalCatalog(tmp_path), [{"a": "odf.a"}, {"b": "odf.b"}]
    claim = catalog.claim(a_dataset())
    assert claim is not None
    for one in topics:
        claim.write(replace(an_entry("cities"), push_topics=one))
    assert set(claim.entry.push_topics) == {"odf.a", "odf.b"}
    claim.release()
    (left,) = catalog.claims()
    assert set(left.push_topics) == {"odf.a", "odf.b"}


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(FileIO):
        def write(self, content: object, /) -> int:
            return super().write(bytes(content)[:3])  # type: ignore[call-overload]

    def short(path: Path, mode: str, buffering: int, opener: Callable[[str, int], int]) -> FileIO:
        return Short(path, mode.replace("b", ""), opener=opener)

    monkeypatch.setattr(durable, "open", short, raising=False)
    durable.write(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


@pytest.fixture
def failing_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails each sync."""

    def fsync(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.usefixtures("failing_disk")
def test_objects_that_could_not_be_written_are_not_stored(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    folder = stores.object_file(tmp_path, a_dataset(), ObjectKind.BLOCK, NAME).parent
    folder.mkdir(parents=True)
    with pytest.raises(StorageUnavailable):
        blobs.put_all(a_dataset(), ObjectKind.BLOCK, [(NAME, CONTENT), (a_hash(2), b"")])
    assert list(folder.iterdir()) == []


def test_of_many_objects_those_are_stored_that_were_written_before_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written in groups: one that fails leaves none of its files."""
    blobs, fsync, calls = LocalBlobStore(tmp_path), os.fsync, count()
    folder = stores.object_file(tmp_path, a_dataset(), ObjectKind.BLOCK, NAME).parent
    folder.mkdir(parents=True)

    def failing_late(handle: int) -> None:
        if next(calls) >= durable.MAX_OPEN_FILES:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(handle)

    objects = [(a_hash(number), str(number).encode()) for number in range(durable.MAX_OPEN_FILES + 2)]
    monkeypatch.setattr(os, "fsync", failing_late)
    with pytest.raises(StorageUnavailable):
        blobs.put_all(a_dataset(), ObjectKind.BLOCK, objects)
    monkeypatch.undo()
    assert {file.name for file in folder.iterdir()} == {str(name) for name, _ in objects[:-2]}
    blobs.put_all(a_dataset(), ObjectKind.BLOCK, objects)
    assert all(blobs.read(a_dataset(), ObjectKind.BLOCK, name) == content for name, content in objects)


def test_a_file_stays_until_the_object_that_it_would_be_is_durable(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    blobs, file = LocalBlobStore(tmp_path), tmp_path / "file"
    blobs.put(a_dataset(), ObjectKind.DATA, NAME, CONTENT)
    file.write_bytes(CONTENT)
    request.getfixturevalue("failing_disk")
    with pytest.raises(StorageUnavailable):
        blobs.put_file(a_dataset(), ObjectKind.DATA, NAME, file)
    assert file.exists()


def test_what_killed_deletions_have_hidden_is_deleted_later(tmp_path: Path) -> None:
    blobs = LocalBlobStore(tmp_path)
    blobs.put(a_dataset(), ObjectKind.DATA, NAME, CONTENT)
    folder = stores.dataset_folder(tmp_path, a_dataset())
    folder.rename(durable.pending_beside(folder))
    blobs.put(a_dataset(2), ObjectKind.DATA, NAME, CONTENT)

    blobs.finish_deletions()

    assert list((tmp_path / "datasets").iterdir()) == [stores.dataset_folder(tmp_path, a_dataset(2))]


def test_a_dataset_that_begins_while_locks_are_removed_keeps_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs, lock = LocalBlobStore(tmp_path), stores.lock_file(tmp_path, a_dataset())
    with blobs.lock_notes(a_dataset()):
        pass
    locked = durable.lock_file

    def after_another_process(file: Path, **wait: float) -> AbstractContextManager[None]:
        stores.dataset_folder(tmp_path, a_dataset()).mkdir(parents=True)
        return locked(file, **wait)

    monkeypatch.setattr(durable, "lock_file", after_another_process)
    blobs.finish_deletions()
    assert lock.exists()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is on another file system."""
    file, replace = tmp_path / "source", os.replace
    file.write_bytes(CONTENT)

    def between_file_systems(source: Path, target: Path) -> None:
        if source == file:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        replace(source, target)

    monkeypatch.setattr(os, "replace", between_file_systems)
    return file


def test_a_file_on_another_file_system_is_moved_with_its_content(tmp_path: Path, elsewhere: Path) -> None:
    blobs = LocalBlobStore(tmp_path / "home")
    blobs.put_file(a_dataset(), ObjectKind.DATA, NAME, elsewhere)
    assert blobs.read(a_dataset(), ObjectKind.DATA, NAME) == CONTENT
    assert not elsewhere.exists()


def test_a_file_that_cannot_be_put_in_its_place_leaves_nothing(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "target" / "file").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        durable.write(tmp_path / "target" / "file", CONTENT)
    with pytest.raises(OSError, match="directory"):
        durable.move(elsewhere, tmp_path / "target" / "file")
    assert [file.name for file in (tmp_path / "target").iterdir()] == ["file"]
    assert elsewhere.exists()


def test_a_file_that_cannot_be_moved_for_now_is_left_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, replace = tmp_path / "file", os.replace
    file.write_bytes(CONTENT)

    def refused(source: Path, target: Path) -> None:
        if source == file:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refused)
    with pytest.raises(OSError, match=os.strerror(errno.EDQUOT)):
        durable.move(file, tmp_path / "target" / "file")
    assert file.read_bytes() == CONTENT
    assert list((tmp_path / "target").iterdir()) == []


def test_a_disk_that_fails_while_a_file_is_moved_is_reported_with_the_name_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = LocalBlobStore(tmp_path)
    blobs.put(a_dataset(), ObjectKind.DATA, a_hash(2), b"")
    file = blobs.scratch() / "slice"
    file.write_bytes(CONTENT)

    def failing(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StorageUnavailable, match=r"scratch/\S+/slice cannot be used now$"):
        blobs.put_file(a_dataset(), ObjectKind.DATA, NAME, file)


def test_a_folder_that_another_process_creates_at_the_same_time_is_durable_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, synced = Path.mkdir, list[Path]()

    def made_twice(folder: Path, mode: int) -> None:
        mkdir(folder, mode)
        mkdir(folder, mode)

    monkeypatch.setattr(Path, "mkdir", made_twice)
    monkeypatch.setattr(durable, "sync_folder", synced.append)
    durable.make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]


def test_unfinished_writes_are_no_references(tmp_path: Path) -> None:
    refs = LocalRefStore(tmp_path)
    refs.compare_and_set(a_dataset(), expected=None, new=NAME)
    stores.ref_file(tmp_path, a_dataset(), f"{durable.PENDING}1").write_bytes(b"")
    assert refs.names(a_dataset()) == ("head",)


def test_a_reference_is_removed_whether_it_exists_or_not(tmp_path: Path) -> None:
    refs = LocalRefStore(tmp_path)
    refs.compare_and_set(a_dataset(), expected=None, new=NAME, ref="next")
    for _ in range(2):
        refs.remove(a_dataset(), "next", expected=None)
    assert refs.names(a_dataset()) == ()


def test_a_lock_leaves_no_file_open_once_it_is_released_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, flock = tmp_path / "lock", fcntl.flock
    removed_before = [file, tmp_path / a_dataset().folder]

    def late(handle: int, operation: int) -> None:
        for one in filter(Path.exists, removed_before[:]):
            removed_before.remove(one)
            one.unlink()
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    assert claims.try_claim(tmp_path, a_dataset()) is None, "its file was just removed"
    claim = claims.try_claim(tmp_path, a_dataset())
    assert claim is not None
    assert open_in(tmp_path) == 1
    claim.release()
    with durable.lock_file(file):
        with pytest.raises(durable.LockHeld), durable.lock_file(file, wait_seconds=0):
            pass
        assert open_in(tmp_path) == 1
    assert open_in(tmp_path) == 0


def test_a_claim_that_is_settled_and_then_released_does_not_touch_later_ones(tmp_path: Path) -> None:
    first = claims.try_claim(tmp_path, a_dataset())
    assert first is not None
    first.settle()
    # Its file has the descriptor of the one that was closed.
    second = claims.try_claim(tmp_path, a_dataset())
    assert second is not None
    first.release()
    assert claims.try_claim(tmp_path, a_dataset()) is None, "the second still holds it"
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_a_claim_that_another_process_abandoned_is_continued_after_its_records(tmp_path: Path) -> None:
    (file,) = abandoned = [tmp_path / a_dataset().folder]
    for topic in ("odf.a", "odf.b"):
        before = file.read_bytes() if file.exists() else b""
        claim = claims.try_claim(tmp_path, a_dataset())
        assert claim is not None
        claim.write(replace(an_entry(), push_topics={"x": topic}))
        claim.release()
        assert file.read_bytes().startswith(before + b"\n")
    assert list(tmp_path.iterdir()) == abandoned
    (left,) = claims.read_claims(tmp_path)
    assert set(left.push_topics) == {"odf.a", "odf.b"}


def test_a_claim_that_cannot_be_locked_is_an_error_and_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(StorageUnavailable, match="No locks"):
        LocalCatalog(tmp_path).claim(a_dataset())
    assert open_in(tmp_path) == 0
