"""Objects as files that are named by their hash, and references as files such as `refs/head`.

References are changed by compare-and-set under a lock. All paths are under `$ODF_HOME` (wire-facts §6.1).
"""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Final

import structlog

from odf_common.adapters.local import durable
from odf_common.adapters.local.durable import LockHeld
from odf_common.adapters.local.faults import guarded_methods, open_to_read, read_file, size_of
from odf_common.adapters.local.process_files import Scratch
from odf_common.errors import Damaged, InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, PREFIX, DatasetId, check_ref_name, is_ref_name
from odf_common.ports.store import BlobStore, ObjectKind, RefStore, require_unmoved


def dataset_folder(home: Path, dataset: DatasetId) -> Path:
    """Return the folder of a dataset, which is the folder that other nodes pull from."""
    return home / "datasets" / dataset.folder


def object_file(home: Path, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
    """Return the path of an object."""
    # Joined at once, as it is done for each block of a chain.
    return home.joinpath("datasets", dataset.folder, kind.value, str(name))


def ref_file(home: Path, dataset: DatasetId, ref: str) -> Path:
    """Return the path of a reference."""
    return dataset_folder(home, dataset) / "refs" / ref


def note_file(home: Path, dataset: DatasetId, name: str) -> Path:
    """Return the path of a note, which only this node uses."""
    return dataset_folder(home, dataset) / "notes" / name


def index_folder(home: Path, dataset: DatasetId) -> Path:
    """Return the folder for this node's indexes of a dataset."""
    return dataset_folder(home, dataset) / "index"


def lock_file(home: Path, dataset: DatasetId) -> Path:
    """Return the path of a dataset's lock.

    It is outside of the dataset's folder, because the folder is renamed while the lock is held.
    """
    return home / "locks" / dataset.folder


WRITTEN: Final = frozenset(
    {*map(str, ObjectKind), "refs", "info", "notes"}
)  # folders of a dataset that are written to

log = structlog.stdlib.get_logger(__name__)


@guarded_methods
class LocalBlobStore(BlobStore):
    """Objects of datasets under `home`; several processes may use it at the same time."""

    def __init__(self, home: Path) -> None:
        """Use `home`, which need not exist yet."""
        self._home = home.absolute()
        self._scratch = Scratch(self._home / "scratch")

    def has(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether the object exists."""
        return size_of(self._file(dataset, kind, name)) is not None

    def size(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> int:
        """Return the size of an object in bytes; raises `NotFound`."""
        size = size_of(self._file(dataset, kind, name))
        if size is None:
            raise NotFound(what=f"object {kind.value}/{name}")
        return size

    def read(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bytes:
        """Return the bytes of an object without verifying its hash; raises `NotFound`."""
        with _missing(kind, name):
            return read_file(self._file(dataset, kind, name))

    def open(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open an object for reading; raises `NotFound`."""
        with _missing(kind, name):
            return open_to_read(self._file(dataset, kind, name))

    def names(self, dataset: DatasetId, kind: ObjectKind) -> Iterator[Multihash]:
        """Iterate over all objects of a kind; files not named by a hash are ignored."""
        for text in _list_names(dataset_folder(self._home, dataset) / kind.value):
            with contextlib.suppress(InvalidInput):
                name = Multihash.parse(text)
                if str(name) == text:
                    yield name

    def put(self, dataset: DatasetId, kind: ObjectKind, name: Multihash, content: bytes) -> None:
        """Store an object durably, unless it exists."""
        file = self._file(dataset, kind, name)
        if size_of(file) is not None:
            # Another process may have just renamed it, without having made that durable.
            durable.sync_folder(file.parent)
        else:
            durable.write(file, content)

    def put_all(
        self, dataset: DatasetId, kind: ObjectKind, contents: Sequence[tuple[Multihash, bytes]]
    ) -> None:
        """Store objects durably, except those that exist; their folder is synced once."""
        files = {self._file(dataset, kind, name): content for name, content in contents}
        folders = {file.parent for file in files}
        for folder in folders:
            durable.make_folder(folder)
        durable.replace_all((file, content) for file, content in files.items() if size_of(file) is None)
        for folder in folders:
            durable.sync_folder(folder)

    def put_file(self, dataset: DatasetId, kind: ObjectKind, name: Multihash, file: Path) -> None:
        """Move a local file into the store durably, unless the object exists; the file is gone in either case."""
        target = self._file(dataset, kind, name)
        if size_of(target) is not None:
            durable.sync_folder(target.parent)
            file.unlink()
        else:
            durable.move(file, target)

    def remove(self, dataset: DatasetId, kind: ObjectKind, names: Iterable[Multihash]) -> None:
        """Remove objects durably; missing ones are ignored."""
        for name in names:
            self._file(dataset, kind, name).unlink(missing_ok=True)
        folder = dataset_folder(self._home, dataset) / kind.value
        if durable.exists(folder):
            durable.sync_folder(folder)

    def note(self, dataset: DatasetId, name: str) -> str | None:
        """Return the text of a note; None if the note does not exist."""
        try:
            return read_file(note_file(self._home, dataset, name)).decode(errors="replace")
        except FileNotFoundError:
            return None

    def set_note(self, dataset: DatasetId, name: str, text: str | None) -> None:
        """Write a note durably; remove the note if `text` is None."""
        file = note_file(self._home, dataset, name)
        if text is not None:
            # Settings of a source may have a password.
            durable.write(file, text.encode(), mode=durable.PRIVATE)
        elif durable.exists(file):
            durable.remove(file)

    def lock_notes(self, dataset: DatasetId) -> AbstractContextManager[None]:
        """Hold the lock of the dataset, which also protects changes of its head and its deletion."""
        return durable.lock_file(lock_file(self._home, dataset))

    def local_path(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        """Return the path of an object's file; raises `NotFound`."""
        file = self._file(dataset, kind, name)
        if size_of(file) is None:
            raise NotFound(what=f"object {kind.value}/{name}")
        return file

    def local_copy(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        """Return the path of an object's file; raises `NotFound`."""
        return self.local_path(dataset, kind, name)

    def index_folder(self, dataset: DatasetId) -> Path:
        """Return the folder for indexes, which is inside the dataset's folder."""
        return index_folder(self._home, dataset)

    def scratch(self) -> Path:
        """Return a new empty folder on the same file system; the caller must remove it."""
        return self._scratch.folder()

    def datasets(self) -> Iterator[DatasetId]:
        """Iterate over all datasets that have a folder."""
        for text in _list_names(self._home / "datasets"):
            with contextlib.suppress(InvalidInput):
                dataset = DatasetId.parse(PREFIX + text)
                if dataset.folder == text:
                    yield dataset

    def delete_dataset(self, dataset: DatasetId) -> None:
        """Delete a dataset: remove its head, hide its folder by a rename, then delete the folder's content."""
        folder = dataset_folder(self._home, dataset)
        hidden = folder.with_name(f"{durable.PENDING}{uuid.uuid4().hex}")
        lock = lock_file(self._home, dataset)
        with durable.lock_file(lock):
            if not durable.exists(folder):
                _drop(lock)
                return
            head = ref_file(self._home, dataset, "head")
            # If the head is damaged, renaming the folder still removes the dataset.
            with contextlib.suppress(OSError):
                head.unlink()
            folder.rename(hidden)
            durable.sync_folder(hidden.parent)
            _drop(lock)
        _discard(hidden)

    def finish_deletions(self) -> None:
        """Delete hidden folders and locks that remain from deletions which were interrupted."""
        for hidden in (self._home / "datasets").glob(f"{durable.PENDING}*"):
            _discard(hidden)
        for text in set(_list_names(self._home / "locks")) - set(_list_names(self._home / "datasets")):
            with contextlib.suppress(InvalidInput, LockHeld):
                self._drop_lock(DatasetId.parse(PREFIX + text))

    def _drop_lock(self, dataset: DatasetId) -> None:
        """Remove the lock of a dataset that has no folder; raises `LockHeld` if another process holds it."""
        folder, lock = dataset_folder(self._home, dataset), lock_file(self._home, dataset)
        if not durable.exists(folder):
            with durable.lock_file(lock, wait_seconds=0):
                if not durable.exists(folder):
                    _drop(lock)

    def sweep(self, untouched_since: float) -> None:
        """Remove the files of interrupted writes that were last written before `untouched_since` (epoch seconds)."""
        for name in ("names", "keys"):
            durable.sweep(self._home / name, untouched_since)
        for dataset in self.datasets():
            folder = dataset_folder(self._home, dataset)
            with contextlib.suppress(OSError):  # a damaged dataset must not stop the others
                for name in WRITTEN.intersection(os.listdir(folder)):  # noqa: PTH208 - thousands of folders
                    with contextlib.suppress(OSError):
                        durable.sweep(folder / name, untouched_since)

    def _file(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        return object_file(self._home, dataset, kind, name)


@contextlib.contextmanager
def _missing(kind: ObjectKind, name: Multihash) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(what=f"object {kind.value}/{name}") from error


def _drop(lock: Path) -> None:
    """Remove the file of a lock that the caller holds; if that fails, `finish_deletions` removes it later."""
    with contextlib.suppress(OSError):
        lock.unlink()


def _discard(hidden: Path) -> None:
    """Delete a hidden folder; if that fails, it is logged, and `finish_deletions` deletes the folder later."""
    try:
        if hidden.is_dir() and not hidden.is_symlink():
            shutil.rmtree(hidden)
        else:
            hidden.unlink()
    except OSError as error:
        log.warning("a deleted dataset still uses disk space", folder=hidden.name, why=str(error))


def _list_names(folder: Path) -> Iterator[str]:
    """Yield the names in a folder except hidden ones; none if the folder does not exist."""
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        return
    with entries:
        yield from (entry.name for entry in entries if not entry.name.startswith("."))


class CorruptRef(Damaged):
    """A reference does not contain the hash of a block."""

    ref: str = HEAD

    def advice(self) -> str:
        """Return the command that replaces the reference."""
        if self.ref == HEAD:
            return (
                "restore the file from a backup, or remove the dataset with `odf delete DATASET`; "
                "other datasets are not affected"
            )
        return (
            "`odf ref delete DATASET@NAME` removes a damaged reference other than the head; `odf ref set DATASET@NAME` "
            "creates it again"
        )


@guarded_methods
class LocalRefStore(RefStore):
    """References of datasets under `home`; several processes may use it at the same time."""

    def __init__(self, home: Path) -> None:
        """Use `home`, which need not exist yet."""
        self._home = home.absolute()

    def head(self, dataset: DatasetId, ref: str = HEAD) -> Multihash | None:
        """Return the hash that a reference contains, None if it does not exist; raises `CorruptRef`."""
        file = self._file(dataset, ref)
        try:
            return Multihash.parse(read_file(file).decode("ascii").strip())
        except FileNotFoundError:
            return None
        except (InvalidInput, UnicodeDecodeError) as error:
            why = str(error) if isinstance(error, InvalidInput) else "its content is not a hash"
            raise CorruptRef(file=f"datasets/{dataset.folder}/refs/{ref}", why=why, ref=ref) from error

    def compare_and_set(
        self, dataset: DatasetId, *, expected: Multihash | None, new: Multihash, ref: str = HEAD
    ) -> None:
        """Set a reference durably to `new` if it is `expected` (None: does not exist); otherwise raise `HeadMoved`."""
        file = self._file(dataset, ref)
        with durable.lock_file(lock_file(self._home, dataset)):
            require_unmoved(dataset, ref, expected, self.head(dataset, ref))
            durable.write(file, str(new).encode())

    def remove(self, dataset: DatasetId, ref: str, *, expected: Multihash | None) -> None:
        """Remove a reference durably if it is `expected`; if that is None, in any case, even if it is damaged.

        Raises `HeadMoved` if it is not `expected`; nothing has changed then.
        """
        file = self._file(dataset, ref)
        with durable.lock_file(lock_file(self._home, dataset)):
            if expected is not None:
                require_unmoved(dataset, ref, expected, self.head(dataset, ref))
            durable.remove(file)

    def names(self, dataset: DatasetId) -> tuple[str, ...]:
        """Return the names of all references of a dataset, ascending."""
        folder = self._file(dataset, HEAD).parent
        try:
            return tuple(sorted(file.name for file in folder.iterdir() if is_ref_name(file.name)))
        except FileNotFoundError:
            return ()

    def _file(self, dataset: DatasetId, ref: str) -> Path:
        return ref_file(self._home, dataset, check_ref_name(ref))
