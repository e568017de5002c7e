"""The data slices of a dataset and their records: the newest for a tail, all for a query."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.chain.walk import iterate
from odf_common.data.slices import read_slice
from odf_common.dataset.newest_records import newest_records
from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import DataEvent, DataSlice
from odf_common.ports.store import ObjectKind
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets
from odf_coordinator.storage.availability import why_missing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    head: Multihash
    slices: tuple[DataSlice, ...]


class Slices:
    """Lists slices; caches a dataset's list, so that the next call reads only newer blocks."""

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
        """Return the last records in offset order, reading as few slices as possible; None without slices."""
        read = self._datasets.reader(handle.id)
        return newest_records(
            read, handle.state.head, records, lambda slice_: read_slice(self.path(handle, slice_))
        )

    def _backwards(self, handle: DatasetHandle) -> Iterator[tuple[Multihash, DataSlice | None]]:
        """Iterate over blocks, newest first, each with its slice, if any."""
        for name, decoded, _ in iterate(self._datasets.reader(handle.id), handle.state.head):
            event = decoded.block.event
            yield name, event.new_data if isinstance(event, DataEvent) else None
