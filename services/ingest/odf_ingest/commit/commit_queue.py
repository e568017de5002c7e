"""CommitQueues: commits to one dataset are serialized, whether from topics, files or commands."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.dataset.state_cache import ChainStates
from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.steps import MergeStrategy
from odf_common.ports.store import BlobStore, ObjectKind, block_reader
from odf_common.service.consumer.pools import SerialQueue
from odf_ingest.commit.committer import Batch, BatchCommitter, Outcome, P
from odf_ingest.commit.watermark import LateRecords
from odf_ingest.history.dataset_history import DatasetHistory
from odf_ingest.history.kept_index import BuildProgress, IndexBehind, IsWanted

Meet = Callable[[ChainState], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """Threads for commits, for calls that wait for the engine, and for catching indexes up."""

    commits: Executor
    queries: Executor
    indexing: Executor

    @classmethod
    def sharing(cls, pool: Executor) -> Self:
        """Return one pool for all."""
        return cls(commits=pool, queries=pool, indexing=pool)


class CommitQueue:
    """One dataset's queue: ordered tasks, ordered queries, and a lock that every commit holds."""

    def __init__(self, dataset: DatasetId, history: DatasetHistory, pools: Pools) -> None:
        """Run tasks and the sources' queries one at a time, and each source's preparations for merging."""
        self.dataset = dataset
        self.history = history
        self.lock = threading.Lock()
        self.tasks = SerialQueue(pools.commits)
        self.queries = SerialQueue(pools.queries)
        self._indexing = pools.indexing
        self._by_source: dict[str, SerialQueue] = {}
        self.committed: Multihash | None = None  # the head after this process's last commit

    def indexing(self, source: str) -> SerialQueue:
        """Return the queue in which a source's index is caught up before each of its tasks."""
        return self._by_source.setdefault(source, SerialQueue(self._indexing))


class CommitQueues:
    """The queues of all datasets that this process has used."""

    def __init__(
        self,
        blobs: BlobStore,
        states: ChainStates,
        committer: BatchCommitter,
        pools: Pools,
    ) -> None:
        self._blobs = blobs
        self._states = states
        self._committer = committer
        self._pools = pools
        self._queues: dict[DatasetId, CommitQueue] = {}
        self._mutex = threading.Lock()
        self.late = LateRecords()

    def queue(self, dataset: DatasetId) -> CommitQueue:
        """Return the dataset's queue."""
        with self._mutex:
            queue = self._queues.get(dataset)
            if queue is None:
                queue = self._queues[dataset] = CommitQueue(dataset, self._history(dataset), self._pools)
            return queue

    def forget(self, dataset: DatasetId) -> None:
        """Drop the queue and states of a deleted dataset."""
        with self._mutex:
            # With its history, whose index files were deleted with the dataset.
            self._queues.pop(dataset, None)
        self._states.forget(dataset)

    def commit(self, dataset: DatasetId, batch: Batch[P]) -> Outcome:
        """Commit the batch once its index is ready; see `BatchCommitter.commit`."""
        while True:
            self.catch_up(dataset, batch.source)
            with suppress(IndexBehind):
                return self.commit_indexed(dataset, batch)

    @translating_os_errors
    def catch_up(
        self, dataset: DatasetId, source: str, is_wanted: IsWanted = lambda: True, meet: Meet = lambda _: None
    ) -> None:
        """Catch up the index for merging a source's batches, while others commit; may take long.

        `meet` is called with each state of the chain that is used.
        """

        def current() -> ChainState:
            state = self.state(dataset)
            meet(state)
            return state

        merge = _merge_step(current(), source)
        self.queue(dataset).history.catch_up(merge, current, is_wanted)

    def building(self, dataset: DatasetId, merge: MergeStrategy) -> BuildProgress | None:
        """Return the progress of the index for a merge strategy while it catches up; None if it does not."""
        with self._mutex:
            queue = self._queues.get(dataset)
        return None if queue is None else queue.history.building(merge)

    @translating_os_errors
    def commit_indexed(self, dataset: DatasetId, batch: Batch[P]) -> Outcome:
        """Commit the batch; raises `IndexBehind` if its index has to be caught up first."""
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


def _merge_step(state: ChainState, source: str) -> MergeStrategy | None:
    """Return the merge strategy of a source; None if it does not exist."""
    pushed = state.push_sources.get(source)
    if pushed is None and source == DEFAULT_SOURCE:
        return None if state.polling_source is None else state.polling_source.merge
    return None if pushed is None else pushed.merge
