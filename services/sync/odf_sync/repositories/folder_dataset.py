"""A dataset in a folder (wire-facts §6.1)."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlparse

from odf_common.adapters.local.exported_dataset import FolderDataset
from odf_common.chain.walk import fold
from odf_common.dataset.signature_check import stored_signature
from odf_common.errors import InvalidInput, NotFound, OdfError
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import PRIVATE_MARK, PUBLIC_MARK, ObjectKind
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
        try:
            return self._store.may_have(f"../../{TENANCY_FILE}") or any(map(_is_marked, self._with_origins()))
        except OdfError:  # what cannot be read may come from a private dataset
            return True

    def _with_origins(self) -> Iterator[FolderDataset]:
        """Yield the dataset, and those of its home that it comes from, but for those it was made public with."""
        seen, waiting = set[DatasetId](), [self._store]
        while waiting:
            yield (dataset := waiting.pop())
            new = [input_ for input_ in _inputs(dataset) if input_ not in seen]
            seen.update(new)
            for input_ in new:
                with suppress(NotFound):
                    waiting.append(FolderDataset(dataset.folder / ".." / input_.folder))

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


def _is_marked(dataset: FolderDataset) -> bool:
    return dataset.may_have(f"notes/{PRIVATE_MARK}")


def _inputs(dataset: FolderDataset) -> list[DatasetId]:
    """Return what a dataset in a home reads, but for what it was made public with."""
    head = dataset.head() if dataset.may_have("../../names") else None
    transform = None if head is None else fold(dataset.read_block, head).transform
    inputs = () if transform is None else transform.inputs
    published = (dataset.note(PUBLIC_MARK) or "").split("\n")[1:]
    return [DatasetId.parse(input_.dataset_ref) for input_ in inputs if input_.dataset_ref not in published]
