"""Notes of data that was let go on purpose, kept beside the objects, so that it is told from data that was lost.

A note is the head that the chain had then: it stands for the objects of all blocks up to that one, whatever becomes of
the chain. It is made before anything goes, and taken away when all has come back.
"""

from typing import Final

from odf_common.chain.input_divergence import Line
from odf_common.errors import InvalidInput
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobStore, ObjectKind

NOTE: Final = "dropped"


def note_drop(blobs: BlobStore, dataset: DatasetId, head: Multihash) -> None:
    """Note, durably, that the objects of all blocks up to `head` may go."""
    blobs.set_note(dataset, NOTE, str(head))


def forget_drop(blobs: BlobStore, dataset: DatasetId) -> None:
    """Take the note away: what is missing from now on was lost."""
    blobs.set_note(dataset, NOTE, None)


def dropped_line(blobs: BlobStore, dataset: DatasetId) -> Line | None:
    """Return the blocks whose objects were let go; None while there is no note, or one that cannot be read."""
    text = blobs.note(dataset, NOTE)
    try:
        head = None if text is None else Multihash.parse(text)
    except InvalidInput:
        return None  # it excuses nothing
    return None if head is None else Line(lambda name: blobs.read(dataset, ObjectKind.BLOCK, name), head)
