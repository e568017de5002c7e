"""CommitQueues: commits to one dataset are serialized, whether from topics, files or commands."""

import threading
from concurrent.futures import Executor

from odf_common.adapters.local.faults import guarded
from odf_common.chain.state import ChainState
from odf_common.dataset.state_cache import ChainStates
from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import BlobStore, ObjectKind, block_reader
from odf_common.service.pools import SerialQueue
from odf_ingest.commit.committer import Batch, BatchCommitter, Outcome, P
from odf_ingest.commit.watermark import LateRecords
from odf_ingest.history.history import DatasetHistory


class CommitQueue:
    """One dataset's queue: ordered tasks, ordered queries, and a lock that every commit holds."""

    def __init__(
        self, dataset: DatasetId, history: DatasetHistory, pool: Executor, queries: Executor
    ) -> None:
        """Run tasks on `pool`, and the sources' queries on `queries`, one at a time."""
        self.dataset = dataset
        self.history = history
        self.lock = threading.Lock()
        self.tasks = SerialQueue(pool)
        self.queries = SerialQueue(queries)
        self.committed: Multihash | None = None  # the head after this process's last commit


class CommitQueues:
    """The queues of all datasets that this process has used."""

    def __init__(
        self,
        blobs: BlobStore,
        states: ChainStates,
        committer: BatchCommitter,
        pool: Executor,
        queries: Executor | None = None,
    ) -> None:
        """Commit through `committer`; run tasks on `pool`, and calls that wait for the engine on `queries`."""
        self._blobs = blobs
        self._states = states
        self._committer = committer
        self._pool = pool
        self._queries = queries or pool
        self._queues: dict[DatasetId, CommitQueue] = {}
        self._mutex = threading.Lock()
        self.late = LateRecords()

    def queue(self, dataset: DatasetId) -> CommitQueue:
        """Return the dataset's queue."""
        with self._mutex:
            known = self._queues.get(dataset)
            if known is None:
                known = self._queues[dataset] = CommitQueue(
                    dataset, self._history(dataset), self._pool, self._queries
                )
            return known

    def forget(self, dataset: DatasetId) -> None:
        """Drop the queue and states of a deleted dataset."""
        with self._mutex:
            self._queues.pop(dataset, None)
        self._states.forget(dataset)

    @guarded
    def commit(self, dataset: DatasetId, batch: Batch[P]) -> Outcome:
        """Commit the batch; see `BatchCommitter.commit`."""
        queue = self.queue(dataset)
        with queue.lock:
            outcome = self._committer.commit(lambda: self.state(dataset), queue.history, batch)
            queue.committed = outcome.state.head
            self.late.add(dataset, batch.source, outcome.late)
            return outcome

    def is_own(self, dataset: DatasetId, head: bytes) -> bool:
        """Return whether the head is from this process's last commit."""
        with self._mutex:
            queue = self._queues.get(dataset)
        return queue is not None and queue.committed is not None and queue.committed.raw == head

    def current(self, dataset: DatasetId) -> ChainState | None:
        """Return the state at the dataset's head; None if it has no blocks."""
        return self._states.current(dataset)

    def state(self, dataset: DatasetId) -> ChainState:
        """Return the state at the dataset's head; raises `NotFound` if it was deleted."""
        state = self._states.current(dataset)
        if state is None:
            raise NotFound(what=f"dataset {dataset}")
        return state

    def _history(self, dataset: DatasetId) -> DatasetHistory:
        return DatasetHistory(
            block_reader(self._blobs, dataset),
            lambda name: self._blobs.local_path(dataset, ObjectKind.DATA, name),
            self._blobs.index_folder(dataset),
        )
