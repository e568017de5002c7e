"""Which datasets this instance looks after: those in the partitions of the coordinator's commands that it holds."""

import threading
import time
from collections.abc import Callable
from typing import Final

from odf_common.adapters.kafka.partitioner import partition_of
from odf_common.chain.state import ChainState
from odf_common.identity.did import DatasetId
from odf_coordinator.catalog.ownership import KeyFolder
from odf_coordinator.catalog.registry import Datasets, Known, Unreadable

IDLE_SECONDS: Final = 0.5
READ_AGAIN_SECONDS: Final = 10.0


class Ownership:
    """Knows the partitions held; takes over the datasets of those that are new."""

    def __init__(self, *, datasets: Datasets, keys: KeyFolder, tell: Callable[[ChainState], None]) -> None:
        """Begin with none; `tell` is told the state of each dataset that becomes ours."""
        self._datasets = datasets
        self._keys = keys
        self._tell = tell
        self._owned: frozenset[int] = frozenset()
        self._gained: set[int] = set()
        self._unread: set[DatasetId] = set()
        self._next_try = 0.0
        self._changed = threading.Condition()

    def on_owned(self, partitions: frozenset[int]) -> None:
        """Learn which partitions are held now."""
        with self._changed:
            self._gained |= partitions - self._owned
            self._gained &= partitions
            self._owned = partitions
            self._changed.notify()

    def is_ours(self, dataset: DatasetId) -> bool:
        """Tell whether this instance keeps a derivative up to date: it was made on this node, and falls to us."""
        return _partition(dataset) in self._owned and self._keys.has(dataset)

    def run(self, stop: threading.Event) -> None:
        """Have the datasets of new partitions announced and checked, until told to stop."""
        while not stop.is_set():
            self.step()

    def step(self) -> None:
        """Take over what is new, or look again at what could not be read; else wait a little."""
        gained = self._take()
        if gained:
            self._take_over(gained)
        elif self._unread and time.monotonic() >= self._next_try:
            self._read_again()

    def _take(self) -> frozenset[int]:
        with self._changed:
            if not self._gained:
                self._changed.wait(IDLE_SECONDS)
            gained, self._gained = frozenset(self._gained), set()
            return gained

    def _take_over(self, partitions: frozenset[int]) -> None:
        for one in self._datasets.listed():
            if _partition(one.entry.dataset_id) in partitions:
                self._see(one)

    def _read_again(self) -> None:
        """Look at the datasets that could not be read when they became ours."""
        for dataset in tuple(self._unread):
            self._unread.discard(dataset)
            entry = self._datasets.catalog.by_id(dataset) if _partition(dataset) in self._owned else None
            one = None if entry is None else self._datasets.read(entry)
            if one is not None:
                self._see(one)

    def _see(self, one: Known | Unreadable) -> None:
        if isinstance(one, Known):
            self._tell(one.state)
        else:
            self._unread.add(one.entry.dataset_id)
            self._next_try = time.monotonic() + READ_AGAIN_SECONDS


def _partition(dataset: DatasetId) -> int:
    return partition_of(str(dataset).encode())
