"""Fetches the objects of a copy; those of a derivative that the repository does not have are left to be rebuilt.

Readers take the newest slice of a derivative as proof that all objects exist (ADR 0008), so it is fetched last, and
only if nothing else is missing.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from odf_common.chain.state import ChainState
from odf_common.chain.walk import blocks_between
from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobStore, Catalog, ObjectKind, block_reader
from odf_sync.repositories import RemoteDataset, SmartDataset
from odf_sync.transfer.objects import RemoteObject, by_object, declared_objects, fetch
from odf_sync.transfer.remote_blocks import RemoteBlock

PARALLEL_DOWNLOADS: Final = 8  # objects at a time
Object = Sequence[RemoteObject]  # with all its declarations


class CopiedObjects:
    """The objects that a copy of a dataset needs."""

    def __init__(
        self,
        blobs: BlobStore,
        folder: Path,
        dataset: DatasetId,
        declared: Iterable[RemoteObject],
        *,
        may_lack: bool,
        trusts_records: bool = False,
    ) -> None:
        """Need the objects that blocks declare, oldest first; what is being downloaded is in `folder`.

        `may_lack`: the repository need not have them; `trusts_records`: slices are checked by size and hash only.
        """
        self._blobs = blobs
        self._folder = folder
        self._dataset = dataset
        self._objects = by_object(declared)
        self._may_lack = may_lack
        self._trusts_records = trusts_records
        self.missing = 0
        """Objects that neither the repository nor this node has; known once all are fetched."""

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self._objects)

    def fetch(self, there: RemoteDataset, *, at_once: int = PARALLEL_DOWNLOADS) -> Iterator[int]:
        """Fetch what is not stored, and check all; yield how many are done.

        Stops at the first that does not match its declaration. Raises `NotFound` for one that the repository does not
        have, unless it need not have it.
        """
        if isinstance(there, SmartDataset):
            lacking = (obj[0] for obj in self._objects if not self._is_stored(obj))
            there.request((obj.kind, obj.name, obj.size) for obj in lacking)
        slices = [obj for obj in self._objects if obj[0].kind is ObjectKind.DATA]
        newest = slices[-1:] if self._may_lack else []
        others = [obj for obj in self._objects if obj not in newest]
        yield from self._fetch(there, others, at_once, done=0)
        if self.missing and not all(map(self._is_stored, newest)):
            self.missing += len(newest)
        else:
            yield from self._fetch(there, newest, at_once, done=len(others))

    def _fetch(
        self, there: RemoteDataset, objects: Sequence[Object], at_once: int, *, done: int
    ) -> Iterator[int]:
        with ThreadPoolExecutor(at_once, thread_name_prefix="download") as pool:
            fetched = [pool.submit(self._fetch_one, there, obj) for obj in objects]
            try:
                for count, download in enumerate(as_completed(fetched), done + 1):
                    try:
                        download.result()
                    except NotFound:
                        if not self._may_lack:
                            raise
                        self.missing += 1
                    yield count
            finally:
                pool.shutdown(wait=True, cancel_futures=True)

    def _fetch_one(self, there: RemoteDataset, obj: Object) -> None:
        fetch(self._blobs, there, self._dataset, obj, self._folder, trusts_records=self._trusts_records)

    def _is_stored(self, obj: Object) -> bool:
        return self._blobs.has(self._dataset, obj[0].kind, obj[0].name)


def lost_objects(blobs: BlobStore, dataset: DatasetId, head: Multihash) -> Iterator[RemoteObject]:
    """Yield the objects that the local chain declares up to `head` but lacks, oldest first."""
    links = blocks_between(block_reader(blobs, dataset), head, None)
    blocks = (RemoteBlock(hash=name, raw=raw, decoded=decoded) for name, decoded, raw in links)
    for obj in declared_objects(None, blocks):
        if not blobs.has(dataset, obj.kind, obj.name):
            yield obj


def missing_inputs(catalog: Catalog, state: ChainState) -> tuple[str, ...]:
    """Return the inputs of a derivative that this node does not have: ids, with the names that the query gives them."""
    transform = state.transform
    inputs = () if transform is None else transform.inputs
    return tuple(
        f"{input_.dataset_ref} ({input_.alias})" if input_.alias else input_.dataset_ref
        for input_ in inputs
        if catalog.by_id(DatasetId.parse(input_.dataset_ref)) is None
    )
