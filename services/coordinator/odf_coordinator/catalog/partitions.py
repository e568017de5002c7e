"""Decides which datasets this instance updates: those in its assigned partitions of the coordinator's commands."""

import threading
import time
from collections.abc import Callable
from typing import Final

from odf_common.adapters.kafka.cluster import partition_of
from odf_common.chain.state import ChainState
from odf_common.identity.dataset_refs import DatasetId
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets, KeyStore, Unreadable

IDLE_SECONDS: Final = 0.5
READ_AGAIN_SECONDS: Final = 10.0


class PartitionOwnership:
    """Tracks the assigned partitions, and takes over the datasets of newly assigned ones."""

    def __init__(
        self,
        *,
        datasets: Datasets,
        keys: KeyStore,
        announce: Callable[[ChainState], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without partitions. `announce` is called with the state of each dataset that is taken over."""
        self._datasets = datasets
        self._keys = keys
        self._announce = announce
        self._now = now
        self._owned: frozenset[int] = frozenset()
        self._gained: set[int] = set()
        self._unread: set[DatasetId] = set()
        self._next_try = 0.0
        self._changed = threading.Condition()

    def on_assigned(self, partitions: frozenset[int]) -> None:
        """Set the assigned partitions."""
        with self._changed:
            self._gained |= partitions - self._owned
            self._gained &= partitions
            self._owned = partitions
            self._changed.notify()

    def is_assigned(self, dataset: DatasetId) -> bool:
        """Return whether this instance updates a dataset.

        That is so if the dataset's partition is assigned to it, and the node has the dataset's key.
        """
        return _partition(dataset) in self._owned and self._keys.has(dataset)

    def run(self, stop: threading.Event) -> None:
        """Take over the datasets of newly assigned partitions until `stop` is set."""
        while not stop.is_set():
            self.step()

    def step(self) -> None:
        """Take over newly assigned partitions, or retry datasets that could not be read, or wait for a short time."""
        gained = self._take_gained()
        if gained:
            self._take_over(gained)
        elif self._unread and self._now() >= self._next_try:
            self._read_again()

    def _take_gained(self) -> frozenset[int]:
        with self._changed:
            if not self._gained:
                self._changed.wait(IDLE_SECONDS)
            gained, self._gained = frozenset(self._gained), set()
            return gained

    def _take_over(self, partitions: frozenset[int]) -> None:
        try:
            for dataset in self._datasets.scan():
                if _partition(dataset.entry.dataset_id) in partitions:
                    self._see(dataset)
        except BaseException:
            with self._changed:  # they are assigned only once, so nothing else would take them over
                self._gained |= partitions & self._owned
            raise

    def _read_again(self) -> None:
        """Retry the datasets that could not be read when they were taken over."""
        for dataset in tuple(self._unread):
            entry = self._datasets.catalog.by_id(dataset) if _partition(dataset) in self._owned else None
            result = None if entry is None else self._datasets.read(entry)
            self._unread.discard(dataset)
            if result is not None:
                self._see(result)

    def _see(self, dataset: DatasetHandle | Unreadable) -> None:
        if isinstance(dataset, DatasetHandle):
            self._announce(dataset.state)
        else:
            self._unread.add(dataset.entry.dataset_id)
            self._next_try = self._now() + READ_AGAIN_SECONDS


def _partition(dataset: DatasetId) -> int:
    return partition_of(str(dataset).encode())
