"""Notes next to a dataset's objects: which were dropped, up to which block all were complete, and remote aliases.

The drop marker distinguishes dropped data from lost data. It holds the head at that time and covers the objects of all
blocks up to it, even if the chain is reset later. It is written before the first object is deleted, and removed when
all are restored.

The complete marker spares a pull that finds nothing new looking for each object. It holds a block: the objects that it
and its predecessors declare existed. A drop marker overrides it; other losses since then are not noticed.

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


NOTE: Final = "aliases"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAliases:
    """URLs, or datasets of named repositories, in the order in which they were added; the first is the default.

    Where a dataset was pushed last comes first.
    """

    pull: tuple[str, ...] = ()
    push: tuple[str, ...] = ()

    def with_pull(self, alias: str) -> Self:
        """Return these with a URL to pull from added, unless it is listed."""
        return self if alias in self.pull else replace(self, pull=(*self.pull, alias))

    def with_push(self, alias: str) -> Self:
        """Return these with a URL to push to added, unless it is listed."""
        return self if alias in self.push else replace(self, push=(*self.push, alias))

    def pushed_to(self, alias: str) -> Self:
        """Return these with a URL to push to moved or added to the front."""
        return replace(self.without_push(alias), push=(alias, *self.without_push(alias).push))

    def without_pull(self, alias: str) -> Self:
        """Return these without a URL to pull from."""
        return replace(self, pull=tuple(location for location in self.pull if location != alias))

    def without_push(self, alias: str) -> Self:
        """Return these without a URL to push to."""
        return replace(self, push=tuple(location for location in self.push if location != alias))


def remote_aliases(blobs: BlobStore, dataset: DatasetId) -> RemoteAliases:
    """Return the aliases of a dataset; none if the note is damaged, which the next change replaces."""
    try:
        noted = json.loads(blobs.note(dataset, NOTE) or "{}")
        return RemoteAliases(pull=_texts(noted["pull"]), push=_texts(noted["push"]))
    except (ValueError, KeyError, TypeError):
        return RemoteAliases()


def change_aliases(
    blobs: BlobStore, dataset: DatasetId, change: Callable[[RemoteAliases], RemoteAliases]
) -> RemoteAliases:
    """Change the aliases of a dataset, durably, and return them."""
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
