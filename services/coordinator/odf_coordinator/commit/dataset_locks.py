"""One lock per dataset: within this process, and in Redis across processes. Every wait is bounded.

The compare-and-set guards the head; these locks only avoid wasted work. So a Redis lock that stays held is ignored
after some time. An operation on a dataset that is busy in this process is refused: the caller retries it later, and
its thread serves other datasets in the meantime.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import structlog

from odf_common.errors import Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import Lock, Locks

log = structlog.stdlib.get_logger(__name__)

LOCAL_SECONDS: Final = 5.0  # wait for another operation of this process on the same dataset
SHARED_SECONDS: Final = 2.0  # wait for another process
POLL_SECONDS: Final = 0.02


class DatasetBusy(Unavailable):
    """Another operation is working on the dataset."""

    ADVICE = "retry when that operation is done"


@dataclass(slots=True)
class _Local:
    """The lock of a dataset within this process; `users` is the number of threads that hold it or wait for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0


class DatasetLocks:
    """The locks of datasets. Memory is used only for datasets whose lock is in use."""

    def __init__(self, shared: Locks, ttl_ms: int, local_seconds: float = LOCAL_SECONDS) -> None:
        """Use the locks of `shared` across processes, each for at most `ttl_ms`."""
        self._shared = shared
        self._ttl_ms = ttl_ms
        self._local_seconds = local_seconds
        self._local: dict[DatasetId, _Local] = {}
        self._guard = threading.Lock()

    def __len__(self) -> int:
        """Return the number of datasets in use."""
        return len(self._local)

    @contextmanager
    def hold(self, dataset: DatasetId) -> Iterator[None]:
        """Hold the dataset's locks; raises `DatasetBusy` if another thread holds them for `local_seconds`."""
        with self._held_here(dataset):
            lock = self._wait_for_shared(dataset)
            try:
                yield
            finally:
                if lock is not None:
                    lock.release()

    @contextmanager
    def _held_here(self, dataset: DatasetId) -> Iterator[None]:
        with self._guard:
            local = self._local.setdefault(dataset, _Local())
            local.users += 1
        try:
            begun = time.monotonic()
            if not local.lock.acquire(timeout=self._local_seconds):
                why = f"another operation has worked on it for {self._local_seconds:g} s"
                raise DatasetBusy(what=f"dataset {dataset}", why=why)
            _note_wait("waited for an operation of this process", dataset, begun)
            try:
                yield
            finally:
                local.lock.release()
        finally:
            with self._guard:
                local.users -= 1
                if not local.users:
                    del self._local[dataset]

    def _wait_for_shared(self, dataset: DatasetId) -> Lock | None:
        """Return the lock that is shared with other processes; None if another process keeps holding it."""
        begun = time.monotonic()
        # A lock of a killed process ends after its lifetime, so there is no need to wait any longer.
        deadline = begun + min(self._ttl_ms / 1000, SHARED_SECONDS)
        while True:
            lock = self._shared.acquire(dataset, self._ttl_ms)
            if lock is not None or time.monotonic() >= deadline:
                _note_wait("waited for another process", dataset, begun, is_held=lock is not None)
                return lock
            time.sleep(POLL_SECONDS)


def _note_wait(event: str, dataset: DatasetId, begun: float, *, is_held: bool = True) -> None:
    """Log a wait for a lock, unless it was short."""
    seconds = time.monotonic() - begun
    if seconds >= POLL_SECONDS:
        log.debug(event, dataset_id=str(dataset), ms=round(seconds * 1000), is_held=is_held)
