"""The datasets of a node as they are stored: all stores together, a reader of one dataset, and checks of a block."""

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
    """The stores of a node's datasets: names, objects, references, and cached chain states."""

    catalog: Catalog
    blobs: BlobStore
    refs: RefStore
    states: ChainStates


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """Reads one dataset from a blob store and a reference store (port `DatasetReader`)."""

    dataset: DatasetId
    blobs: BlobReader
    refs: RefReader

    def head(self, ref: str = HEAD) -> Multihash | None:
        """Return the hash that a reference contains; None if the reference does not exist."""
        return self.refs.head(self.dataset, ref)

    def has(self, kind: ObjectKind, name: Multihash) -> bool:
        """Return whether the object exists."""
        return self.blobs.has(self.dataset, kind, name)

    def size(self, kind: ObjectKind, name: Multihash) -> int:
        """Return the size of an object in bytes; raises `NotFound`."""
        return self.blobs.size(self.dataset, kind, name)

    def read_block(self, name: Multihash) -> bytes:
        """Return the bytes of a block without verifying its hash; raises `NotFound`."""
        return self.blobs.read(self.dataset, ObjectKind.BLOCK, name)

    def open(self, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open an object for reading; raises `NotFound`."""
        return self.blobs.open(self.dataset, kind, name)

    def open_stored(self, kind: ObjectKind, name: Multihash) -> BinaryIO:
        """Open an object as the store has it, bypassing caches; raises `NotFound`, or `Damaged` if it is corrupt."""
        return self.blobs.open_stored(self.dataset, kind, name)

    def local_path(self, kind: ObjectKind, name: Multihash) -> Path:
        """Return a local path from which an object can be read; raises `NotFound`."""
        return self.blobs.local_path(self.dataset, kind, name)

    def names(self, kind: ObjectKind) -> Iterator[Multihash]:
        """Iterate over all objects of a kind, in no order."""
        return self.blobs.names(self.dataset, kind)


def require_readable_block(blobs: BlobReader, dataset: DatasetId, block: Multihash) -> None:
    """Raise `Damaged` unless a block can be read and matches its hash, so that the chain can continue from it.

    A cached state does not prove this. The check is cheap, because the last committed block is usually in
    the page cache.
    """
    try:
        raw = blobs.read(dataset, ObjectKind.BLOCK, block)
    except NotFound as error:
        raise Damaged(file=_file_of(dataset, block), why="the file is missing") from error
    if block_hash(raw) != block:
        raise Damaged(file=_file_of(dataset, block), why="its content does not match its hash")


def require_stored_block(blobs: BlobReader, dataset: DatasetId, block: Multihash) -> None:
    """Raise `Damaged` unless a block exists in the store as a regular file; its content is not read."""
    if not blobs.has(dataset, ObjectKind.BLOCK, block):
        raise Damaged(file=_file_of(dataset, block), why="the file is missing")


def _file_of(dataset: DatasetId, block: Multihash) -> str:
    return f"datasets/{dataset.folder}/{ObjectKind.BLOCK.value}/{block}"
