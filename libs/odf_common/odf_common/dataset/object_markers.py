"""Notes next to a dataset's objects: which were dropped on purpose, and up to which block all were complete.

The drop marker distinguishes dropped data from lost data. It holds the head at that time and covers the objects of all
blocks up to it, even if the chain is reset later. It is written before the first object is deleted, and removed when
all are restored.

The complete marker spares a pull that finds nothing new looking for each object. It holds a block: the objects that it
and its predecessors declare existed. A drop marker overrides it; other losses since then are not noticed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from odf_common.chain.input_divergence import BlockIndex
from odf_common.errors import InvalidInput, OdfError, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobStore, block_reader

DROPPED: Final = "dropped"
COMPLETE: Final = "whole"


def note_drop(blobs: BlobStore, dataset: DatasetId, head: Multihash) -> None:
    """Record durably that the objects of all blocks up to `head` may be missing."""
    blobs.set_note(dataset, DROPPED, str(head))


@contextmanager
def drop_noted(blobs: BlobStore, dataset: DatasetId, head: Multihash) -> Iterator[None]:
    """Record, as `note_drop` does, before the head moves; unless it then moves, the former marker is put back.

    After `Unavailable` it may have moved: then the marker stays.
    """
    former = blobs.note(dataset, DROPPED)
    note_drop(blobs, dataset, head)
    try:
        yield
    except Unavailable:
        raise
    except OdfError:
        blobs.set_note(dataset, DROPPED, former)
        raise


def forget_drop(blobs: BlobStore, dataset: DatasetId) -> None:
    """Remove the marker: any object missing from now on is lost."""
    blobs.set_note(dataset, DROPPED, None)


def dropped_blocks(blobs: BlobStore, dataset: DatasetId) -> BlockIndex | None:
    """Return the blocks whose objects were dropped; None without a readable marker."""
    head = _block(blobs, dataset, DROPPED)
    return None if head is None else BlockIndex(block_reader(blobs, dataset), head)


def note_complete(blobs: BlobStore, dataset: DatasetId, block: Multihash) -> None:
    """Record durably that the objects of all blocks up to `block` exist."""
    if blobs.note(dataset, COMPLETE) != str(block):
        blobs.set_note(dataset, COMPLETE, str(block))


def complete_until(blobs: BlobStore, dataset: DatasetId) -> Multihash | None:
    """Return the block up to which all objects existed; None if data was dropped, or without a readable marker."""
    return None if blobs.note(dataset, DROPPED) is not None else _block(blobs, dataset, COMPLETE)


def _block(blobs: BlobStore, dataset: DatasetId, note: str) -> Multihash | None:
    """Return the block in a marker; None without one, and for a damaged one, which covers nothing."""
    text = blobs.note(dataset, note)
    try:
        return None if text is None else Multihash.parse(text)
    except InvalidInput:
        return None
