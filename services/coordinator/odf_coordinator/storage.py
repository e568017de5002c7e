"""The objects of a dataset in the store: checks that they exist, explains missing data, and lists slices.

Data may have been dropped on purpose, not copied, or lost in a copy. The newest slice and the newest checkpoint are
removed first and restored last, so if they exist, all others do.
"""

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.chain.walk import iterate
from odf_common.data.slices import read_slice
from odf_common.dataset.dataset_notes import dropped_blocks
from odf_common.dataset.newest_records import newest_records
from odf_common.errors import InvalidInput, NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import DataEvent, DataSlice, ExecuteTransform, MetadataEvent
from odf_common.ports.store import BlobReader, BlobStore, ObjectKind
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets


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
    """Yield the objects that an event refers to."""
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
    """Raise `CheckpointMissing` unless the checkpoint from which a transform continued is stored.

    This prevents a commit of a result that was computed while the data was being dropped.
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


class DataDropped(NotFound):
    """The data of a derivative is missing, but can be recomputed."""

    MESSAGE = (
        "the data of {what} is missing: it was dropped, or lost; `odf pull {what}` recomputes it from "
        "its inputs"
    )


class CopyLost(NotFound):
    """The data of a copy is missing, and only the dataset's own node has it."""

    MESSAGE = (
        "the data of {what} is missing: it was lost, and {what} is a copy; `odf pull URL --as {what} "
        "--recheck` fetches it again"
    )


def was_dropped(datasets: Datasets, handle: DatasetHandle) -> bool:
    """Return whether a derivative's data was dropped and has not been rebuilt."""
    line = dropped_blocks(datasets.blobs, handle.id)
    if line is None:
        return False
    missing = _newest_missing(datasets, handle)
    return missing is not None and line.contains(missing)


def is_dropped(datasets: Datasets, handle: DatasetHandle) -> bool:
    """Return whether a dataset's newest records or newest checkpoint are missing."""
    return _newest_missing(datasets, handle) is not None


def _newest_missing(datasets: Datasets, handle: DatasetHandle) -> Multihash | None:
    """Return the block of the newest slice or checkpoint if it is missing; None if both are stored."""
    for block, objects in objects_by_block(datasets, handle):
        if not has_all(datasets.blobs, handle, objects):
            return block
        if any(obj.kind is ObjectKind.DATA for obj in objects):
            return None
    return None


def has_all(blobs: BlobReader, handle: DatasetHandle, objects: Iterable[ObjectRef]) -> bool:
    """Return whether all objects are in the store."""
    return all(blobs.has(handle.id, obj.kind, obj.name) for obj in objects)


def why_missing(datasets: Datasets, handles: Iterable[DatasetHandle], error: NotFound) -> NotFound:
    """Return the error for a missing object: `DataDropped` or `CopyLost` if one of them applies, otherwise `error`."""
    for handle in handles:
        is_copy = not datasets.has_key(handle.id)
        if (is_copy or handle.is_derivative) and is_dropped(datasets, handle):
            is_lost = is_copy and not (handle.is_derivative and was_dropped(datasets, handle))
            return CopyLost(what=handle.alias) if is_lost else DataDropped(what=handle.alias)
    return error


def objects_by_block(
    datasets: Datasets, handle: DatasetHandle
) -> Iterator[tuple[Multihash, tuple[ObjectRef, ...]]]:
    """Yield each block with the objects that it refers to, newest block first."""
    for name, decoded, _ in iterate(datasets.reader(handle.id), handle.state.head):
        yield name, tuple(objects_of(decoded.block.event))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    head: Multihash
    slices: tuple[DataSlice, ...]


class Slices:
    """Lists the slices of datasets. A list is cached, so the next call reads only newer blocks."""

    def __init__(self, datasets: Datasets) -> None:
        self._datasets = datasets
        self._listings: dict[DatasetId, _Listing] = {}
        self._lock = threading.Lock()

    @translating_os_errors
    def all(self, handle: DatasetHandle) -> tuple[DataSlice, ...]:
        """Return all slices, oldest first."""
        with self._lock:
            before = self._listings.get(handle.id)
        new: list[DataSlice] = []
        old: tuple[DataSlice, ...] = ()
        for name, slice_ in self._backwards(handle):
            if before is not None and name == before.head:
                old = before.slices
                break
            if slice_ is not None:
                new.append(slice_)
        slices = (*old, *reversed(new))
        with self._lock:
            self._listings[handle.id] = _Listing(head=handle.state.head, slices=slices)
        return slices

    def forget(self, dataset: DatasetId) -> None:
        """Drop the list of a deleted dataset."""
        with self._lock:
            self._listings.pop(dataset, None)

    def __len__(self) -> int:
        """Return the number of cached lists."""
        return len(self._listings)

    def paths(self, handle: DatasetHandle) -> tuple[Path, ...]:
        """Return the files of all slices, oldest first; raises `DataDropped`, `CopyLost`."""
        return tuple(self.path(handle, slice_) for slice_ in self.all(handle))

    def path(self, handle: DatasetHandle, slice_: DataSlice) -> Path:
        """Return the file of a slice; raises `DataDropped` if it can be recomputed, `CopyLost` for a copy."""
        try:
            return self._datasets.blobs.local_path(handle.id, ObjectKind.DATA, slice_.physical_hash)
        except NotFound as error:
            raise why_missing(self._datasets, (handle,), error) from error

    @translating_os_errors
    def tail(self, handle: DatasetHandle, records: int) -> pa.Table | None:
        """Return the last records in offset order; None if there are no slices. Reads as few slices as possible."""
        read = self._datasets.reader(handle.id)
        return newest_records(
            read, handle.state.head, records, lambda slice_: read_slice(self.path(handle, slice_))
        )

    def _backwards(self, handle: DatasetHandle) -> Iterator[tuple[Multihash, DataSlice | None]]:
        """Yield the blocks, newest first, each with its slice or None."""
        for name, decoded, _ in iterate(self._datasets.reader(handle.id), handle.state.head):
            event = decoded.block.event
            yield name, event.new_data if isinstance(event, DataEvent) else None
