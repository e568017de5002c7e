"""Markers of data that was dropped on purpose, stored next to the objects, to tell it from lost data.

A marker holds the head at that time and covers the objects of all blocks up to it, even if the chain is reset later.
It is written before the first object is deleted, and removed when all are restored.
"""

from typing import Final

from odf_common.chain.input_divergence import BlockIndex
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobStore, block_reader

NOTE: Final = "dropped"


def note_drop(blobs: BlobStore, dataset: DatasetId, head: Multihash) -> None:
    """Record durably that the objects of all blocks up to `head` may be missing."""
    blobs.set_note(dataset, NOTE, str(head))


def forget_drop(blobs: BlobStore, dataset: DatasetId) -> None:
    """Remove the marker: any object missing from now on is lost."""
    blobs.set_note(dataset, NOTE, None)


def dropped_blocks(blobs: BlobStore, dataset: DatasetId) -> BlockIndex | None:
    """Return the blocks whose objects were dropped; None without a readable marker."""
    text = blobs.note(dataset, NOTE)
    try:
        head = None if text is None else Multihash.parse(text)
    except InvalidInput:
        return None  # a damaged marker covers nothing
    return None if head is None else BlockIndex(block_reader(blobs, dataset), head)
