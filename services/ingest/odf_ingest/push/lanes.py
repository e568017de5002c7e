"""Lanes: what is committed to one dataset goes one after another, whatever brings it."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.chain_state import ChainState
from odf_common.ports.store import BlobStore, ObjectKind
from odf_common.runtime.states import ChainStates
from odf_ingest.commit import Batch, BatchCommitter, Outcome
from odf_ingest.history import DatasetHistory


class Lane:
    """One dataset's: a queue of tasks that run in order, and a lock that every commit takes."""

    def __init__(self, dataset: DatasetId, history: DatasetHistory, pool: Executor) -> None:
        """Run tasks on `pool`."""
        self.dataset = dataset
        self.history = history
        self.lock = threading.Lock()
        self._pool = pool
        self._tasks: deque[Callable[[], None]] = deque()
        self._mutex = threading.Lock()
        self._is_running = False

    def submit(self, task: Callable[[], None]) -> None:
        """Run the task when those before it are done."""
        with self._mutex:
            self._tasks.append(task)
            if self._is_running:
                return
            self._is_running = True
        self._pool.submit(self._run)

    def _run(self) -> None:
        while True:
            with self._mutex:
                if not self._tasks:
                    self._is_running = False
                    return
                task = self._tasks.popleft()
            task()


class Lanes:
    """The lanes of all datasets that this process has met."""

    def __init__(
        self, blobs: BlobStore, states: ChainStates, committer: BatchCommitter, pool: Executor
    ) -> None:
        """Commit through `committer`; run tasks on `pool`."""
        self._blobs = blobs
        self._states = states
        self._committer = committer
        self._pool = pool
        self._lanes: dict[DatasetId, Lane] = {}
        self._mutex = threading.Lock()

    def lane(self, dataset: DatasetId) -> Lane:
        """Return the dataset's lane."""
        with self._mutex:
            known = self._lanes.get(dataset)
            if known is None:
                known = self._lanes[dataset] = Lane(dataset, self._history(dataset), self._pool)
            return known

    def forget(self, dataset: DatasetId) -> None:
        """Drop what is known of a dataset that has gone."""
        with self._mutex:
            self._lanes.pop(dataset, None)
        self._states.forget(dataset)

    def commit(self, dataset: DatasetId, batch: Batch) -> Outcome:
        """Return when the batch is in the chain; see `BatchCommitter.commit`."""
        lane = self.lane(dataset)
        with lane.lock:
            return self._committer.commit(lambda: self.state(dataset), lane.history, batch)

    def state(self, dataset: DatasetId) -> ChainState:
        """Return the state at the dataset's head; raises `NotFound` when it has gone."""
        state = self._states.current(dataset)
        if state is None:
            raise NotFound(what=f"dataset {dataset}")
        return state

    def _history(self, dataset: DatasetId) -> DatasetHistory:
        def read_block(name: Multihash) -> bytes:
            return self._blobs.read(dataset, ObjectKind.BLOCK, name)

        return DatasetHistory(read_block, lambda name: self._blobs.local_path(dataset, ObjectKind.DATA, name))
