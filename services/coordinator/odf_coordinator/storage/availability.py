"""Whether a dataset's data is in the store: it may have been dropped on purpose, copied without, or lost in a copy.

The newest records and the newest checkpoint are removed first and restored last, so their presence implies the rest.
"""

from collections.abc import Iterable, Iterator

from odf_common.chain.walk import iterate
from odf_common.dataset.object_markers import dropped_blocks
from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import BlobReader, ObjectKind
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets
from odf_coordinator.storage.object_checks import ObjectRef, objects_of


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
    """Return whether a derivative's data was dropped and not rebuilt since."""
    line = dropped_blocks(datasets.blobs, handle.id)
    if line is None:
        return False
    missing = _newest_missing(datasets, handle)
    return missing is not None and line.contains(missing)


def is_dropped(datasets: Datasets, handle: DatasetHandle) -> bool:
    """Return whether a dataset's newest records or newest checkpoint are missing."""
    return _newest_missing(datasets, handle) is not None


def _newest_missing(datasets: Datasets, handle: DatasetHandle) -> Multihash | None:
    """Return the block of the newest records or checkpoint if those are missing."""
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
    """Return a more specific error (DataDropped, CopyLost) for a missing object if one applies, else `error`."""
    for handle in handles:
        is_copy = not datasets.has_key(handle.id)
        if (is_copy or handle.is_derivative) and is_dropped(datasets, handle):
            is_lost = is_copy and not (handle.is_derivative and was_dropped(datasets, handle))
            return CopyLost(what=handle.alias) if is_lost else DataDropped(what=handle.alias)
    return error


def objects_by_block(
    datasets: Datasets, handle: DatasetHandle
) -> Iterator[tuple[Multihash, tuple[ObjectRef, ...]]]:
    """Yield each block with its objects, if any, newest first."""
    for name, decoded, _ in iterate(datasets.reader(handle.id), handle.state.head):
        yield name, tuple(objects_of(decoded.block.event))
