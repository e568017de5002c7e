"""Objects as files named by their hash, and references as files such as `refs/head`.

References are moved by compare-and-set under a lock. Paths are under `$ODF_HOME` (wire-facts §6.1).
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
    """Return the dataset's folder, which is also what other nodes pull."""
    return home / "datasets" / dataset.folder


def object_file(home: Path, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
    """Return the file of one object."""
    # Joined at once, as it is done for each block of a chain.
    return home.joinpath("datasets", dataset.folder, kind.value, str(name))


def ref_file(home: Path, dataset: DatasetId, ref: str) -> Path:
    """Return the file of a reference."""
    return dataset_folder(home, dataset) / "refs" / ref


def note_file(home: Path, dataset: DatasetId, name: str) -> Path:
    """Return the file of a note of this node."""
    return dataset_folder(home, dataset) / "notes" / name


def index_folder(home: Path, dataset: DatasetId) -> Path:
    """Return the folder of what this node has indexed of a dataset."""
    return dataset_folder(home, dataset) / "index"


def lock_file(home: Path, dataset: DatasetId) -> Path:
    """Return the dataset's lock file; it is outside the dataset's folder, which is renamed while it is held."""
    return home / "locks" / dataset.folder


WRITTEN: Final = frozenset(
    {*map(str, ObjectKind), "refs", "info", "notes"}
)  # folders of a dataset that are written to

log = structlog.stdlib.get_logger(__name__)


@guarded_methods
class LocalBlobStore(BlobStore):
    """Objects under `home`; several processes may use it at once."""

    def __init__(self, home: Path) -> None:
        """Use `home`, which need not exist yet."""
        self._home = home.absolute()
        self._scratch = Scratch(self._home / "scratch")

    def has(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether the object exists."""
        return size_of(self._file(dataset, kind, name)) is not None

    def size(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> int:
        """Return its size in bytes; raises `NotFound`."""
        size = size_of(self._file(dataset, kind, name))
        if size is None:
            raise NotFound(what=f"object {kind.value}/{name}")
        return size

    def read(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bytes:
        """Return its bytes, unverified; raises `NotFound`."""
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
        """Store bytes durably, unless the object exists."""
        file = self._file(dataset, kind, name)
        if size_of(file) is not None:
            # Another process may have just renamed it, without having made that durable.
            durable.sync_folder(file.parent)
        else:
            durable.write(file, content)

    def put_all(
        self, dataset: DatasetId, kind: ObjectKind, contents: Sequence[tuple[Multihash, bytes]]
    ) -> None:
        """Store objects durably, unless they exist; the folder of all is synced once."""
        files = {self._file(dataset, kind, name): content for name, content in contents}
        folders = {file.parent for file in files}
        for folder in folders:
            durable.make_folder(folder)
        durable.replace_all((file, content) for file, content in files.items() if size_of(file) is None)
        for folder in folders:
            durable.sync_folder(folder)

    def put_file(self, dataset: DatasetId, kind: ObjectKind, name: Multihash, file: Path) -> None:
        """Move a local file in, durably, unless the object exists; `file` is gone in either case."""
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
        """Return the note; None if there is none."""
        try:
            return read_file(note_file(self._home, dataset, name)).decode(errors="replace")
        except FileNotFoundError:
            return None

    def set_note(self, dataset: DatasetId, name: str, text: str | None) -> None:
        """Write a note durably, or remove it."""
        file = note_file(self._home, dataset, name)
        if text is not None:
            # Settings of a source may have a password.
            durable.write(file, text.encode(), mode=durable.PRIVATE)
        elif durable.exists(file):
            durable.remove(file)

    def lock_notes(self, dataset: DatasetId) -> AbstractContextManager[None]:
        """Hold the dataset's lock, as moving its head and deleting it do."""
        return durable.lock_file(lock_file(self._home, dataset))

    def local_path(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        """Return its file; raises `NotFound`."""
        file = self._file(dataset, kind, name)
        if size_of(file) is None:
            raise NotFound(what=f"object {kind.value}/{name}")
        return file

    def local_copy(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        """Return its file; raises `NotFound`."""
        return self.local_path(dataset, kind, name)

    def index_folder(self, dataset: DatasetId) -> Path:
        """Return a folder within the dataset's."""
        return index_folder(self._home, dataset)

    def scratch(self) -> Path:
        """Return a new empty folder on the same file system; the caller removes it."""
        return self._scratch.folder()

    def datasets(self) -> Iterator[DatasetId]:
        """Iterate over datasets that have a folder."""
        for text in _list_names(self._home / "datasets"):
            with contextlib.suppress(InvalidInput):
                dataset = DatasetId.parse(PREFIX + text)
                if dataset.folder == text:
                    yield dataset

    def delete_dataset(self, dataset: DatasetId) -> None:
        """Remove the head, then hide the folder, then delete its content."""
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
        """Delete hidden folders and locks of deleted datasets that killed deletions left behind."""
        for hidden in (self._home / "datasets").glob(f"{durable.PENDING}*"):
            _discard(hidden)
        for text in set(_list_names(self._home / "locks")) - set(_list_names(self._home / "datasets")):
            with contextlib.suppress(InvalidInput, LockHeld):
                self._drop_lock(DatasetId.parse(PREFIX + text))

    def _drop_lock(self, dataset: DatasetId) -> None:
        """Remove the lock of a dataset without a folder, while it is held; skip it while another process holds it."""
        folder, lock = dataset_folder(self._home, dataset), lock_file(self._home, dataset)
        if not durable.exists(folder):
            with durable.lock_file(lock, wait_seconds=0):
                if not durable.exists(folder):
                    _drop(lock)

    def sweep(self, untouched_since: float) -> None:
        """Remove the files of unfinished writes older than `untouched_since` (epoch seconds)."""
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
    """Remove the lock's file, which is held; if that fails now, a later sweep removes it."""
    with contextlib.suppress(OSError):
        lock.unlink()


def _discard(hidden: Path) -> None:
    """Delete a hidden folder; if that fails now, a later start sweeps it."""
    try:
        if hidden.is_dir() and not hidden.is_symlink():
            shutil.rmtree(hidden)
        else:
            hidden.unlink()
    except OSError as error:
        log.warning("a deleted dataset still uses disk space", folder=hidden.name, why=str(error))


def _list_names(folder: Path) -> Iterator[str]:
    """Yield the names in a folder except hidden ones; none if it is missing."""
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        return
    with entries:
        yield from (entry.name for entry in entries if not entry.name.startswith("."))


class CorruptRef(Damaged):
    """A reference does not hold the hash of a block."""

    ref: str = HEAD

    def advice(self) -> str:
        """Return the command that replaces it."""
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
    """References under `home`; several processes may use it at once."""

    def __init__(self, home: Path) -> None:
        """Use `home`, which need not exist yet."""
        self._home = home.absolute()

    def head(self, dataset: DatasetId, ref: str = HEAD) -> Multihash | None:
        """Return the hash; None if the reference does not exist; raises `CorruptRef`."""
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
        """Move the reference durably; raises `HeadMoved`, changing nothing, unless it is `expected` (None: absent)."""
        file = self._file(dataset, ref)
        with durable.lock_file(lock_file(self._home, dataset)):
            require_unmoved(dataset, ref, expected, self.head(dataset, ref))
            durable.write(file, str(new).encode())

    def remove(self, dataset: DatasetId, ref: str, *, expected: Multihash | None) -> None:
        """Remove a reference durably; with `expected=None` unconditionally, even if it is damaged.

        Raises `HeadMoved` if it is not `expected`; then nothing has changed.
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
