"""A dataset in a single folder, read only: a copy, an export or a mount (wire-facts §6.1)."""

from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR
from typing import BinaryIO

from odf_common.adapters.local.faults import guarded_methods, open_file, open_to_read, read_file, size_of
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD
from odf_common.ports.store import MAX_REFERENCE_BYTES, ObjectKind


@guarded_methods
class FolderDataset:
    """Reads the dataset in one folder (port `DatasetReader`)."""

    def __init__(self, folder: Path) -> None:
        """Use a folder; raises `NotFound` unless it exists."""
        try:
            is_folder = S_ISDIR(folder.stat().st_mode)
        except FileNotFoundError:
            is_folder = False
        if not is_folder:
            raise NotFound(what=f"folder {folder}")
        self.folder = folder

    def may_have(self, path: str) -> bool:
        """Return whether a file exists, or might exist because permissions hide it; `path` is relative to the folder.

        If the folder is a link, `..` in the path is the parent of the folder that the link leads to.
        """
        try:
            return (self.folder / path).exists()  # the system follows links before it goes up
        except PermissionError:
            return True

    def any_sibling_may_have(self, path: str) -> bool:
        """Return whether the folder is in a node's home where some dataset has, or might have, the file at `path`."""
        if not self.may_have("../../names"):
            return False
        return any(self.may_have(f"../{folder.name}/{path}") for folder in (self.folder / "..").iterdir())

    def head(self, ref: str = HEAD) -> Multihash | None:
        """Return the hash that a reference contains; None if it does not exist.

        Raises `InvalidInput` if the file does not contain a hash.
        """
        try:
            with open_file(self.folder / "refs" / ref) as file:
                text = file.read(MAX_REFERENCE_BYTES)
        except FileNotFoundError:
            return None
        try:
            return Multihash.parse(text.decode())
        except (UnicodeDecodeError, InvalidInput) as error:
            raise InvalidInput(text=f"not a hash: {text[:80]!r}", where=f"refs/{ref}") from error

    def has(self, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether the object exists."""
        return size_of(self._file(kind, name)) is not None

    def size(self, kind: ObjectKind, name: Multihash) -> int:
        """Return the size of an object in bytes; raises `NotFound`."""
        return self.local_path(kind, name).stat().st_size

    def read_block(self, name: Multihash) -> bytes:
        """Return the bytes of a block without verifying its hash; raises `NotFound`."""
        return read_file(self.local_path(ObjectKind.BLOCK, name))

    def open(self, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open an object for reading; raises `NotFound`."""
        return open_to_read(self.local_path(kind, name))

    def open_stored(self, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open an object for reading, like `open`: a folder has no cached copies. Raises `NotFound`."""
        return self.open(kind, name)

    def local_path(self, kind: ObjectKind, name: Multihash) -> Path:
        """Return the path of an object; raises `NotFound`."""
        file = self._file(kind, name)
        if size_of(file) is None:
            raise NotFound(what=f"{kind}/{name}")
        return file

    def names(self, kind: ObjectKind) -> Iterator[Multihash]:
        """Iterate over all objects of a kind, in no order; files that are not named by a hash are ignored."""
        folder = self.folder / kind
        try:
            files = tuple(folder.iterdir())
        except FileNotFoundError:
            return
        for file in files:
            try:
                yield Multihash.parse(file.name)
            except InvalidInput:
                continue

    def _file(self, kind: ObjectKind, name: Multihash) -> Path:
        return self.folder / kind / str(name)
