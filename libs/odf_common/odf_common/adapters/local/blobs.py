"""Objects as files named by their hash."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import structlog

from odf_common.adapters.local import durable, layout
from odf_common.adapters.local.faults import guarded_methods, open_to_read, read_file, size_of
from odf_common.adapters.local.scratch import Scratch
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import PREFIX, DatasetId
from odf_common.ports.store import BlobStore, ObjectKind

log = structlog.stdlib.get_logger(__name__)


@guarded_methods
class LocalBlobStore(BlobStore):
    """Objects under `home`; several processes may use it at once."""

    def __init__(self, home: Path) -> None:
        """Use `home`, which need not exist yet."""
        self._home = home.absolute()
        self._scratch = Scratch(self._home / "scratch")

    def has(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bool:
        """Tell whether the object is there."""
        return size_of(self._file(dataset, kind, name)) is not None

    def size(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> int:
        """Return its size in bytes; raises `NotFound`."""
        size = size_of(self._file(dataset, kind, name))
        if size is None:
            raise NotFound(what=f"object {kind.value}/{name}")
        return size

    def read(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> bytes:
        """Return its bytes as they are stored, unchecked; raises `NotFound`."""
        with _missing(kind, name):
            return read_file(self._file(dataset, kind, name))

    def open(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open it for reading; raises `NotFound`."""
        with _missing(kind, name):
            return open_to_read(self._file(dataset, kind, name))

    def names(self, dataset: DatasetId, kind: ObjectKind) -> Iterator[Multihash]:
        """Iterate over all objects of a kind; files by other names are none."""
        for text in _listed(layout.dataset_folder(self._home, dataset) / kind.value):
            with contextlib.suppress(InvalidInput):
                name = Multihash.parse(text)
                if str(name) == text:
                    yield name

    def put(self, dataset: DatasetId, kind: ObjectKind, name: Multihash, content: bytes) -> None:
        """Store bytes durably; an object that is already there is left alone."""
        file = self._file(dataset, kind, name)
        if (
            size_of(file) is not None
        ):  # perhaps just renamed by another process, which has not made that durable
            durable.sync_folder(file.parent)
        else:
            durable.write(file, content)

    def put_file(self, dataset: DatasetId, kind: ObjectKind, name: Multihash, file: Path) -> None:
        """Move a local file in, durably; an object that is already there is left alone, `file` is gone anyway."""
        target = self._file(dataset, kind, name)
        if size_of(target) is not None:
            durable.sync_folder(target.parent)
            file.unlink()
        else:
            durable.move(file, target)

    def remove(self, dataset: DatasetId, kind: ObjectKind, names: Iterable[Multihash]) -> None:
        """Remove files, then make that durable; those that are not there are passed over."""
        for name in names:
            self._file(dataset, kind, name).unlink(missing_ok=True)
        folder = layout.dataset_folder(self._home, dataset) / kind.value
        if durable.exists(folder):
            durable.sync_folder(folder)

    def note(self, dataset: DatasetId, name: str) -> str | None:
        """Return what was noted, None where nothing was."""
        try:
            return read_file(layout.note_file(self._home, dataset, name)).decode(errors="replace")
        except FileNotFoundError:
            return None

    def set_note(self, dataset: DatasetId, name: str, text: str | None) -> None:
        """Write a note, durably, or take it away."""
        file = layout.note_file(self._home, dataset, name)
        if text is not None:
            durable.write(file, text.encode())
        elif durable.exists(file):
            durable.remove(file)

    def noting(self, dataset: DatasetId) -> AbstractContextManager[None]:
        """Hold the dataset's lock, as who moves its head or deletes it does."""
        return durable.locked(layout.lock_file(self._home, dataset))

    def local_path(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        """Return the file itself; raises `NotFound`."""
        file = self._file(dataset, kind, name)
        if size_of(file) is None:
            raise NotFound(what=f"object {kind.value}/{name}")
        return file

    def scratch(self) -> Path:
        """Return a new empty folder on the same file system; the caller removes it."""
        return self._scratch.folder()

    def datasets(self) -> Iterator[DatasetId]:
        """Iterate over datasets that have a folder here."""
        for text in _listed(self._home / "datasets"):
            with contextlib.suppress(InvalidInput):
                dataset = DatasetId.parse(PREFIX + text)
                if dataset.folder == text:
                    yield dataset

    def delete_dataset(self, dataset: DatasetId) -> None:
        """Remove the head, then the folder out of sight, then what is in it."""
        folder = layout.dataset_folder(self._home, dataset)
        hidden = folder.with_name(f"{durable.PENDING}{uuid.uuid4().hex}")
        with durable.locked(layout.lock_file(self._home, dataset)):
            if not durable.exists(folder):
                return
            head = layout.ref_file(self._home, dataset, "head")
            # Where the head is damaged, renaming the folder removes the dataset all the same.
            with contextlib.suppress(OSError):
                head.unlink()
                durable.sync_folder(head.parent)
            folder.rename(hidden)
            durable.sync_folder(hidden.parent)
        _discard(hidden)

    def finish_deletions(self) -> None:
        """Remove what is in folders that are out of sight already, as a killed deletion leaves them."""
        for hidden in (self._home / "datasets").glob(f"{durable.PENDING}*"):
            _discard(hidden)

    def sweep(self, untouched_since: float) -> None:
        """Remove the files of unfinished writes that were last written before (epoch seconds)."""
        for name in ("names", "keys"):
            durable.sweep(self._home / name, untouched_since)
        for dataset in self.datasets():
            folder = layout.dataset_folder(self._home, dataset)
            for name in (*ObjectKind, "refs", "info", "notes"):
                with contextlib.suppress(OSError):  # a damaged dataset keeps its own only
                    durable.sweep(folder / name, untouched_since)

    def _file(self, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
        return layout.object_file(self._home, dataset, kind, name)


@contextlib.contextmanager
def _missing(kind: ObjectKind, name: Multihash) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(what=f"object {kind.value}/{name}") from error


def _discard(hidden: Path) -> None:
    """Remove what no name leads to any more; what cannot be removed now is swept at a later start."""
    try:
        if hidden.is_dir() and not hidden.is_symlink():
            shutil.rmtree(hidden)
        else:
            hidden.unlink()
    except OSError as error:
        log.warning("a removed dataset still takes space", folder=hidden.name, why=str(error))


def _listed(folder: Path) -> Iterator[str]:
    """Yield the names in a folder, none if it is missing; hidden ones are skipped."""
    try:
        found = os.scandir(folder)
    except FileNotFoundError:
        return
    with found:
        yield from (entry.name for entry in found if not entry.name.startswith("."))
