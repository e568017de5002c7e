"""A dataset in a folder in the common layout (wire-facts §6.1), to pull from and to push to.

Pushed files are written atomically: a reader sees a complete file or none.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import unquote, urlparse, urlsplit

from odf_common.adapters.local import durable
from odf_common.adapters.local.exported_dataset import FolderDataset
from odf_common.adapters.local.faults import guarded_methods
from odf_common.chain.walk import fold
from odf_common.dataset.signature_check import stored_signature
from odf_common.errors import Damaged, InvalidInput, NotFound, OdfError
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.ports.store import NAMED_BY_CONTENT, PRIVATE_MARK, ObjectKind, require_unmoved
from odf_common.service.settings import TENANCY_FILE
from odf_sync.repositories.remote_dataset import BLOCK_LIMIT, CHUNK_BYTES, RemoteDataset, Sink


class RemoteFolder(RemoteDataset):
    """A dataset in a folder, to pull from."""

    def __init__(self, url: str) -> None:
        """Open the folder; raises `NotFound` if it does not exist."""
        self.url = url
        self._store = FolderDataset(Path(unquote(urlparse(url).path)))
        self._is_private: bool | None = None

    def head(self) -> Multihash:
        """Return the head; raises `NotFound` if the folder has none."""
        head = self._store.head()
        if head is None:
            raise NotFound(what=f"a dataset in {self.url}")
        return head

    def is_private(self) -> bool:
        """Return whether the dataset is in the home of a node that keeps it private, or may do so.

        This includes datasets that are derived from a private dataset of that home. What cannot be read counts as
        private.
        """
        if self._is_private is None:
            try:
                self._is_private = self._store.may_have(f"../../{TENANCY_FILE}") or self._comes_from_private()
            except OdfError:
                self._is_private = True
        return self._is_private

    def _comes_from_private(self) -> bool:
        mark = f"notes/{PRIVATE_MARK}"
        if not self._store.any_sibling_may_have(mark):  # usually, and then no chain has to be read
            return self._store.may_have(mark)
        seen, waiting = set[str](), [self._store]
        while waiting:
            dataset = waiting.pop()
            if dataset.may_have(mark):
                return True
            for folder in {input_.folder for input_ in _inputs(dataset)} - seen:
                seen.add(folder)
                with suppress(NotFound):
                    waiting.append(FolderDataset(dataset.folder / ".." / folder))
        return False

    def block(self, name: Multihash) -> bytes:
        """Return the bytes of a block; raises `InvalidInput` if they exceed `BLOCK_LIMIT`."""
        if self._store.size(ObjectKind.BLOCK, name) > BLOCK_LIMIT:
            raise InvalidInput(text=f"longer than {BLOCK_LIMIT} bytes", where=f"block {name}")
        return self._store.read_block(name)

    def signatures(self, blocks: Sequence[Multihash], after: Multihash | None) -> Iterator[bytes]:
        """Yield the signature of each block, or empty bytes if it has no signature file."""
        del after
        return (stored_signature(self._store, name) or b"" for name in blocks)

    def fetch(self, kind: ObjectKind, name: Multihash, out: Sink, limit: int) -> None:
        """Append the bytes of an object to `out`, from the position of `out` on."""
        size = self._store.size(kind, name)
        if size > limit:
            raise InvalidInput(text=f"{size} bytes, but declared {limit}", where=f"{kind}/{name}")
        with self._store.open(kind, name) as file:
            file.seek(out.tell())
            while chunk := file.read(CHUNK_BYTES):
                out.write(chunk)


def _inputs(dataset: FolderDataset) -> list[DatasetId]:
    head = dataset.head()
    if head is None:
        raise NotFound(what=f"the head of {dataset.folder}")
    transform = fold(dataset.read_block, head).transform
    return [] if transform is None else [DatasetId.parse(input_.dataset_ref) for input_ in transform.inputs]


LOCK: Final = ".lock"  # hidden, so that no reader takes it for an object


@guarded_methods
class FolderTarget:
    """A dataset in a folder, to push to; several processes may push at the same time."""

    def __init__(self, url: str) -> None:
        """Use the folder of a file:// URL, which need not exist yet."""
        self.url = url
        self.held_bytes = 0
        self._folder = Path(unquote(urlsplit(url).path))

    def head(self) -> Multihash | None:
        """Return the head, None if nothing has been pushed yet."""
        if not durable.exists(self._folder / "refs" / HEAD):
            return None
        return FolderDataset(self._folder).head()

    def block(self, name: Multihash) -> bytes:
        """Return the bytes of a block, which are not checked against its hash; raises `NotFound`."""
        return FolderDataset(self._folder).read_block(name)

    def has(self, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether an object exists."""
        return durable.exists(self._file(kind, name))

    def blocks(self) -> Iterator[Multihash]:
        """Yield nothing, because `put` itself checks whether an object exists."""
        return iter(())

    def put(self, kind: ObjectKind, name: Multihash, content: BinaryIO) -> None:
        """Store an object durably unless it exists; raises `Damaged` if its bytes do not match its name."""
        target = self._file(kind, name)
        if durable.exists(target):
            return
        durable.make_folder(target.parent, is_shared=True)
        pending = durable.pending_beside(target)
        digest = hashlib.sha3_256()
        try:
            with pending.open("xb") as out:
                while chunk := content.read(CHUNK_BYTES):
                    digest.update(chunk)
                    out.write(chunk)
            durable.share(pending, durable.READABLE)
            actual = Multihash.sha3(digest.digest())
            if kind in NAMED_BY_CONTENT and actual != name:
                raise Damaged(file=f"{kind}/{name}", why=f"its bytes hash to {actual}")
            durable.move(pending, target)
        finally:
            pending.unlink(missing_ok=True)

    def move_head(self, dataset: DatasetId, *, expected: Multihash | None, new: Multihash) -> None:
        """Move `refs/head` durably; raises `HeadMoved`, without changes, if the head is not `expected`."""
        head = self._folder / "refs" / HEAD
        durable.make_folder(head.parent, is_shared=True)
        with durable.lock_file(self._folder / LOCK):
            require_unmoved(dataset, HEAD, expected, self.head())
            pending = durable.write_pending(head, str(new).encode())
            durable.share(pending, durable.READABLE)
            pending.replace(head)
            durable.sync_folder(head.parent)

    def _file(self, kind: ObjectKind, name: Multihash) -> Path:
        return self._folder / kind.value / str(name)
