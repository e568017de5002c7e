"""Whether the objects that blocks refer to are in the store."""

from collections.abc import Iterator
from dataclasses import dataclass

from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import DataEvent, ExecuteTransform, MetadataEvent
from odf_common.ports.store import BlobStore, ObjectKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """An object as declared by an event; `size` in bytes."""

    kind: ObjectKind
    name: Multihash
    size: int


class ObjectMissing(InvalidInput):
    """A block refers to an object that is not in the store, or has another size."""

    kind: str
    name: str
    size: int
    found: int | None


def objects_of(event: MetadataEvent) -> Iterator[ObjectRef]:
    """Iterate over the objects that an event refers to."""
    if isinstance(event, DataEvent):
        if event.new_data is not None:
            yield ObjectRef(kind=ObjectKind.DATA, name=event.new_data.physical_hash, size=event.new_data.size)
        if event.new_checkpoint is not None:
            checkpoint = event.new_checkpoint
            yield ObjectRef(kind=ObjectKind.CHECKPOINT, name=checkpoint.physical_hash, size=checkpoint.size)


class CheckpointMissing(InvalidInput):
    """A transform continues from a checkpoint that is no longer in the store."""

    name: str


def require_checkpoint(blobs: BlobStore, dataset: DatasetId, event: MetadataEvent) -> None:
    """Raise `CheckpointMissing` unless the checkpoint that a transform continued from is stored.

    So a result computed while the data was being dropped is not committed after the dropped part.
    """
    name = event.prev_checkpoint if isinstance(event, ExecuteTransform) else None
    if name is not None and not blobs.has(dataset, ObjectKind.CHECKPOINT, name):
        raise CheckpointMissing(name=str(name))


def require_objects(blobs: BlobStore, dataset: DatasetId, event: MetadataEvent) -> None:
    """Raise `ObjectMissing` unless all objects of an event are stored with their sizes."""
    for expected in objects_of(event):
        try:
            size: int | None = blobs.size(dataset, expected.kind, expected.name)
        except NotFound:
            size = None
        if size != expected.size:
            raise ObjectMissing(kind=expected.kind, name=str(expected.name), size=expected.size, found=size)
