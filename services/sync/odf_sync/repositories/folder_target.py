"""A folder that a dataset is pushed to, in the common layout (wire-facts §6.1): each file appears whole, or not."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import unquote, urlsplit

from odf_common.adapters.local import durable
from odf_common.adapters.local.exported_dataset import FolderDataset
from odf_common.adapters.local.faults import guarded_methods
from odf_common.errors import Damaged
from odf_common.hashing.multihash import Multihash
from odf_common.identity.branch_names import HEAD
from odf_common.identity.did import DatasetId
from odf_common.ports.store import NAMED_BY_CONTENT, ObjectKind, require_unmoved
from odf_sync.repositories.remote_dataset import CHUNK_BYTES

LOCK: Final = ".lock"  # hidden, so that no reader takes it for an object


@guarded_methods
class FolderTarget:
    """One dataset's folder; several processes may push to it at once."""

    def __init__(self, url: str) -> None:
        """Use the folder of a file:// URL, which need not exist yet."""
        self.url = url
        self.held_bytes = 0
        self._folder = Path(unquote(urlsplit(url).path))

    def head(self) -> Multihash | None:
        """Return the head; None if nothing was pushed yet."""
        if not durable.exists(self._folder / "refs" / HEAD):
            return None
        return FolderDataset(self._folder).head()

    def block(self, name: Multihash) -> bytes:
        """Return a block's bytes, unchecked; raises `NotFound`."""
        return FolderDataset(self._folder).read_block(name)

    def has(self, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether an object exists."""
        return durable.exists(self._file(kind, name))

    def blocks(self) -> Iterator[Multihash]:
        """Yield none: `put` itself looks."""
        return iter(())

    def put(self, kind: ObjectKind, name: Multihash, content: BinaryIO) -> None:
        """Store an object durably, unless it exists; raises `Damaged` if its bytes do not match its name."""
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
        """Move `refs/head`, durably; raises `HeadMoved` if it is not `expected`, and then nothing has changed."""
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
