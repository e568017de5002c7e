"""The datasets of a node, as stored: the stores of all of them, one read through them, and its block at the head."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from odf_common.codec.flatbuffers import block_hash
from odf_common.dataset.state_cache import ChainStates
from odf_common.errors import Damaged, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.ports.store import BlobReader, BlobStore, Catalog, ObjectKind, RefReader, RefStore


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDatasets:
    """The datasets of a node: their names, their objects, their references, and the states of their chains."""

    catalog: Catalog
    blobs: BlobStore
    refs: RefStore
    states: ChainStates


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """Port `DatasetReader` over a blob store and a reference store."""

    dataset: DatasetId
    blobs: BlobReader
    refs: RefReader

    def head(self, ref: str = HEAD) -> Multihash | None:
        """Return the reference's hash; None if it does not exist."""
        return self.refs.head(self.dataset, ref)

    def has(self, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether the object exists."""
        return self.blobs.has(self.dataset, kind, name)

    def size(self, kind: ObjectKind, name: Multihash) -> int:
        """Return its size in bytes; raises `NotFound`."""
        return self.blobs.size(self.dataset, kind, name)

    def read_block(self, name: Multihash) -> bytes:
        """Return a block's bytes, unverified; raises `NotFound`."""
        return self.blobs.read(self.dataset, ObjectKind.BLOCK, name)

    def open(self, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open an object for reading; raises `NotFound`."""
        return self.blobs.open(self.dataset, kind, name)

    def open_stored(self, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open what the store has, and no copy; raises `NotFound`, and `Damaged` if it differs."""
        return self.blobs.open_stored(self.dataset, kind, name)

    def local_path(self, kind: ObjectKind, name: Multihash) -> Path:
        """Return its path; raises `NotFound`."""
        return self.blobs.local_path(self.dataset, kind, name)

    def names(self, kind: ObjectKind) -> Iterator[Multihash]:
        """Iterate over all objects of a kind, unordered."""
        return self.blobs.names(self.dataset, kind)


def require_readable_block(blobs: BlobReader, dataset: DatasetId, block: Multihash) -> None:
    """Raise `Damaged` unless the block can be read and has its hash: no chain continues from an unreadable block.

    A cached state does not prove that. The check is cheap: the last committed block is usually in the page cache.
    """
    try:
        raw = blobs.read(dataset, ObjectKind.BLOCK, block)
    except NotFound as error:
        raise Damaged(file=_file_of(dataset, block), why="the file is missing") from error
    if block_hash(raw) != block:
        raise Damaged(file=_file_of(dataset, block), why="its content does not match its hash")


def require_stored_block(blobs: BlobReader, dataset: DatasetId, block: Multihash) -> None:
    """Raise `Damaged` unless the block is a regular file in the store; its content is not read."""
    if not blobs.has(dataset, ObjectKind.BLOCK, block):
        raise Damaged(file=_file_of(dataset, block), why="the file is missing")


def _file_of(dataset: DatasetId, block: Multihash) -> str:
    return f"datasets/{dataset.folder}/{ObjectKind.BLOCK.value}/{block}"
