"""A dataset in a folder (wire-facts §6.1)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlparse

from odf_common.adapters.local.exported_dataset import FolderDataset
from odf_common.dataset.signature_check import stored_signature
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import PRIVATE_MARK, ObjectKind
from odf_common.service.settings import TENANCY_FILE
from odf_sync.repositories.remote_dataset import BLOCK_LIMIT, CHUNK_BYTES, RemoteDataset, Sink


class RemoteFolder(RemoteDataset):
    """A folder in the common layout."""

    def __init__(self, url: str) -> None:
        """Open the folder; raises `NotFound` if it does not exist."""
        self.url = url
        self._store = FolderDataset(Path(unquote(urlparse(url).path)))

    def head(self) -> Multihash:
        """Return the head; raises `NotFound`."""
        head = self._store.head()
        if head is None:
            raise NotFound(what=f"{self.url} (it has no refs/head)")
        return head

    def is_private(self) -> bool:
        """Return whether it is a dataset in the home of a node that keeps it private, or may do so."""
        return self._store.may_have(f"notes/{PRIVATE_MARK}") or self._store.may_have(f"../../{TENANCY_FILE}")

    def block(self, name: Multihash) -> bytes:
        """Return a block's bytes."""
        if self._store.size(ObjectKind.BLOCK, name) > BLOCK_LIMIT:
            raise InvalidInput(text=f"longer than {BLOCK_LIMIT} bytes", where=f"block {name}")
        return self._store.read_block(name)

    def signatures(self, blocks: Sequence[Multihash], after: Multihash | None) -> Iterator[bytes]:
        """Yield the signatures that are files."""
        del after
        return (stored_signature(self._store, name) or b"" for name in blocks)

    def fetch(self, kind: ObjectKind, name: Multihash, out: Sink, limit: int) -> None:
        """Copy an object."""
        size = self._store.size(kind, name)
        if size > limit:
            raise InvalidInput(text=f"{size} bytes, but declared {limit}", where=f"{kind}/{name}")
        with self._store.open(kind, name) as file:
            file.seek(out.tell())
            while chunk := file.read(CHUNK_BYTES):
                out.write(chunk)
