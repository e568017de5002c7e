"""Notes next to a dataset's objects: the drop marker, the complete marker, and remote aliases.

The drop marker distinguishes data that was dropped on purpose from lost data. It contains a block hash: the objects of
this block and all earlier ones may be missing, even if the chain is reset later. It is written before the first object
is deleted, and removed when all objects are restored.

The complete marker saves a pull without new blocks from checking that each object exists. It contains a block hash: the
objects of this block and all earlier ones existed when it was written. A drop marker overrides it. Other objects that
are lost later are not noticed.

Remote aliases are the URLs that a dataset is pulled from and pushed to (spec: Dataset Identity).
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Self

from odf_common.chain.compare_chains import BlockIndex
from odf_common.errors import InvalidInput, OdfError, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import BlobStore, block_reader

DROPPED: Final = "dropped"
COMPLETE: Final = "whole"


def note_drop(blobs: BlobStore, dataset: DatasetId, head: Multihash) -> None:
    """Set the drop marker durably: objects of `head` and all earlier blocks may be missing."""
    blobs.set_note(dataset, DROPPED, str(head))


@contextmanager
def drop_noted(blobs: BlobStore, dataset: DatasetId, head: Multihash) -> Iterator[None]:
    """Set the drop marker before the `with` block moves the head; restore the previous marker if that fails.

    After `Unavailable` the head may have moved, so the new marker stays.
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
    """Remove the drop marker: objects that are missing from now on count as lost."""
    blobs.set_note(dataset, DROPPED, None)


def dropped_blocks(blobs: BlobStore, dataset: DatasetId) -> BlockIndex | None:
    """Return the blocks whose objects may have been dropped; None if there is no valid drop marker."""
    head = _block(blobs, dataset, DROPPED)
    return None if head is None else BlockIndex(block_reader(blobs, dataset), head)


def note_complete(blobs: BlobStore, dataset: DatasetId, block: Multihash) -> None:
    """Set the complete marker durably: the objects of `block` and all earlier blocks exist."""
    if blobs.note(dataset, COMPLETE) != str(block):
        blobs.set_note(dataset, COMPLETE, str(block))


def complete_until(blobs: BlobStore, dataset: DatasetId) -> Multihash | None:
    """Return the block of the complete marker; None if there is no valid one, or data was dropped."""
    return None if blobs.note(dataset, DROPPED) is not None else _block(blobs, dataset, COMPLETE)


def _block(blobs: BlobStore, dataset: DatasetId, note: str) -> Multihash | None:
    """Return the block hash in a marker; None if the marker does not exist or is damaged."""
    text = blobs.note(dataset, note)
    try:
        return None if text is None else Multihash.parse(text)
    except InvalidInput:
        return None


NOTE: Final = "aliases"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAliases:
    """The remote aliases of a dataset: URLs, or datasets in named repositories. The first one is the default.

    They are in the order in which they were added, except that the last push target comes first.
    """

    pull: tuple[str, ...] = ()
    push: tuple[str, ...] = ()

    def with_pull(self, alias: str) -> Self:
        """Return the aliases with a pull alias added at the end, unless it is listed."""
        return self if alias in self.pull else replace(self, pull=(*self.pull, alias))

    def with_push(self, alias: str) -> Self:
        """Return the aliases with a push alias added at the end, unless it is listed."""
        return self if alias in self.push else replace(self, push=(*self.push, alias))

    def pushed_to(self, alias: str) -> Self:
        """Return the aliases with a push alias as the first one, added if it is not listed."""
        return replace(self.without_push(alias), push=(alias, *self.without_push(alias).push))

    def without_pull(self, alias: str) -> Self:
        """Return the aliases without this pull alias."""
        return replace(self, pull=tuple(location for location in self.pull if location != alias))

    def without_push(self, alias: str) -> Self:
        """Return the aliases without this push alias."""
        return replace(self, push=tuple(location for location in self.push if location != alias))


def remote_aliases(blobs: BlobStore, dataset: DatasetId) -> RemoteAliases:
    """Return the remote aliases of a dataset; none if the note is damaged. The next change then replaces the note."""
    try:
        noted = json.loads(blobs.note(dataset, NOTE) or "{}")
        return RemoteAliases(pull=_texts(noted["pull"]), push=_texts(noted["push"]))
    except (ValueError, KeyError, TypeError):
        return RemoteAliases()


def change_aliases(
    blobs: BlobStore, dataset: DatasetId, change: Callable[[RemoteAliases], RemoteAliases]
) -> RemoteAliases:
    """Apply `change` to the remote aliases of a dataset, store the result durably, and return it."""
    with blobs.lock_notes(dataset):
        current = remote_aliases(blobs, dataset)
        changed = change(current)
        if changed != current:
            text = json.dumps({"pull": changed.pull, "push": changed.push})
            blobs.set_note(dataset, NOTE, None if changed == RemoteAliases() else text)
    return changed


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TypeError
    return tuple(value)
