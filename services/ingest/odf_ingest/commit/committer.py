"""Commits a batch: draft, propose, and retry if another commit came first.

Only the chain decides whether a batch is committed: by the position, or the receipt, in its source state, which
`Batch.check` reads. That makes ingestion exactly-once.

Commits to one dataset are serialized in its queue, whether from topics, files or commands.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, Self, TypeVar

import structlog

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.codec.envelopes import Body, body_of
from odf_common.codec.flatbuffers import encode_event
from odf_common.codec.times import time_message
from odf_common.dataset.open_rejects import KIND
from odf_common.dataset.state_cache import ChainStates
from odf_common.errors import InvalidInput, NotFound, Refused
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import MergeStrategy
from odf_common.ports.bus import COORDINATOR_COMMANDS
from odf_common.ports.store import BlobStore, ObjectKind, block_reader
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.service.consumer.pools import SerialQueue
from odf_common.service.request_reply import Replies
from odf_ingest import metrics
from odf_ingest.commit.position import Position, SourcePosition
from odf_ingest.commit.slice_writer import Draft, Drafter
from odf_ingest.commit.watermark import NONE_LATE, Lateness, LateRecords, NewWatermark
from odf_ingest.errors import AlreadyCommitted
from odf_ingest.history.dataset_history import DatasetHistory
from odf_ingest.history.indexes import BuildProgress, IndexBehind, IsWanted
from odf_ingest.merge.interface import History, MergeResult
from odf_ingest.prepare.batch import BadRecord
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.source_settings import SourceSettings

log = structlog.stdlib.get_logger(__name__)

REPLY_TIMEOUT_SECONDS: Final = 5.0

Current = Callable[[], ChainState]
P = TypeVar("P", bound=Position)


class Batch(Protocol[P]):
    """A batch to commit to one source, whose position is a `P`."""

    @property
    def source(self) -> str:
        """Return the source's name."""

    @property
    def may_be_empty(self) -> bool:
        """Return whether the batch is committed even if it appends no records, to record its position."""

    def position_in(self, state: ChainState) -> P:
        """Return the source's position in a state of the chain."""

    def check(self, position: P) -> None:
        """Raise an error unless the batch directly follows the position.

        The error is `AlreadyCommitted` if the chain has the batch; otherwise it says why the batch cannot be committed.
        """

    def prepare(self, state: ChainState) -> PreparedRecords:
        """Return the batch's records, prepared with the definitions in this state of the chain."""

    def reduce_after(self, error: InvalidInput) -> PreparedRecords:
        """Remove the records that caused this error of the merge, and return the others; raise the error if that fails.

        Later calls use the reduced batch.
        """

    def advance(self, position: P, prepared: PreparedRecords) -> tuple[P, NewWatermark]:
        """Return the position after the batch, and the batch's watermark.

        The batch's bad records have been durably written to the dead-letter topic when the call returns.
        """

    def before_proposal(self) -> None:
        """Raise an error if the batch must not be committed. This is the last check: a proposal cannot be withdrawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of committing a batch."""

    state: ChainState
    """The state of a chain that contains the batch."""
    count: int
    """Number of records that this call appended."""
    is_new: bool
    """Whether this call appended a block; False if the batch was already committed, or had nothing to append."""
    late: Lateness = NONE_LATE
    rejected: Sequence[BadRecord] = ()
    """Rows of a pushed file that became dead letters."""


class Proposals:
    """Sends proposals to the coordinator over the bus; replies are matched by correlation id."""

    def __init__(self, replies: Replies) -> None:
        self.replies = replies

    def propose(self, draft: Draft, wait: float = REPLY_TIMEOUT_SECONDS) -> Body | None:
        """Return the reply: `Committed`, `HeadMoved` or `Refused`; None if there is none within `wait` seconds.

        Raises `Unavailable`.
        """
        body = bus.Propose(
            expected_head=draft.before.head.raw,
            system_time=time_message(draft.system_time),
            events=[encode_event(event) for event in draft.events],
        )
        answer = self.replies.request(COORDINATOR_COMMANDS, draft.before.dataset_id, body, timeout=wait)
        return None if answer is None else body_of(answer)


@dataclass(eq=False)
class BatchCommitter:
    """Commits batches. Only one thread per dataset may call it at a time."""

    states: ChainStates
    drafter: Drafter
    proposals: Proposals

    def commit(self, current: Current, history: DatasetHistory, batch: Batch[P]) -> Outcome:
        """Commit the batch, and draft it again each time another block is committed first.

        Raises the errors of `batch` and of `history`, `Refused`, `Unavailable` and `NotFound`.
        """
        while True:
            state = current()
            position = batch.position_in(state)
            try:
                batch.check(position)
            except AlreadyCommitted:
                return Outcome(state=state, count=0, is_new=False)
            past = history.at(state)
            settings = self.drafter.settings(state, batch.source)
            prepared, merged = self._merge(state, batch, past, settings)
            if len(merged.records) == 0 and not batch.may_be_empty:
                return Outcome(state=state, count=0, is_new=False)
            advanced, watermark = batch.advance(position, prepared)
            draft = self.drafter.draft(
                state,
                merged,
                source=batch.source,
                position=advanced,
                watermark=watermark,
                settings=settings,
            )
            if not draft.events:
                return Outcome(state=state, count=0, is_new=False)
            batch.before_proposal()
            if self._is_committed(draft, current):
                if draft.slice is not None:
                    history.cache_slice(*draft.slice)
                return Outcome(state=draft.after, count=draft.count, is_new=True, late=draft.late)

    def _merge(
        self, state: ChainState, batch: Batch[P], past: History, settings: SourceSettings
    ) -> tuple[PreparedRecords, MergeResult]:
        """Return the mergeable part of the batch, and its merge result."""
        prepared = batch.prepare(state)
        while True:
            try:
                return prepared, self.drafter.merge_records(state, prepared, past, settings)
            except InvalidInput as error:
                prepared = batch.reduce_after(error)

    def _is_committed(self, draft: Draft, current: Current) -> bool:
        """Propose until there is a reply; return False if the batch has to be drafted again."""
        while True:
            log.debug(
                "proposing a block", dataset_id=str(draft.before.dataset_id), block=str(draft.after.head)
            )
            answer = self.proposals.propose(draft)
            log.debug(
                "proposal answered",
                dataset_id=str(draft.before.dataset_id),
                block=str(draft.after.head),
                answer=type(answer).__name__,
            )
            match answer:
                case bus.Committed():
                    # Another commit may have followed, whose state is not known here.
                    if answer.head == draft.after.head.raw:
                        self.states.remember(draft.after)
                    return True
                case bus.Refused():
                    raise Refused(reason=answer.code, text=answer.text)
                case None:
                    log.warning("no reply to a proposal", dataset_id=str(draft.before.dataset_id))
                    # If this proposal moved the head, the next attempt finds its position in the chain and ends.
                    if current().head != draft.before.head:
                        return False
                case _:
                    return False


def position_of(state: ChainState, source: str) -> SourcePosition:
    """Return a source's position in a state of the chain."""
    source_state = state.source_states.get(source)
    if source_state is None or source_state.kind != KIND:
        return SourcePosition()
    return SourcePosition.parse(source_state.value)


Meet = Callable[[ChainState], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """The thread pools for commits, for calls that wait for the engine, and for updating indexes."""

    commits: Executor
    queries: Executor
    indexing: Executor

    @classmethod
    def with_one_pool(cls, pool: Executor) -> Self:
        """Return pools that all are this one."""
        return cls(commits=pool, queries=pool, indexing=pool)


class CommitQueue:
    """One dataset's queue: ordered tasks, ordered queries, and a lock that every commit holds."""

    def __init__(self, dataset: DatasetId, history: DatasetHistory, pools: Pools) -> None:
        """Create the queues of a dataset: its commits, its preprocess queries and each source's index updates.

        Each of these queues runs one task at a time.
        """
        self.dataset = dataset
        self.history = history
        self.lock = threading.Lock()
        self.tasks = SerialQueue(pools.commits)
        self.queries = SerialQueue(pools.queries)
        self._indexing = pools.indexing
        self._by_source: dict[str, SerialQueue] = {}
        self.committed: Multihash | None = None  # the head after this process's last commit

    def index_queue(self, source: str) -> SerialQueue:
        """Return the queue that updates a source's index before each commit of the source."""
        return self._by_source.setdefault(source, SerialQueue(self._indexing))


@dataclass(eq=False)
class CommitQueues:
    """The commit queues of all datasets that this process has ingested into.

    `name_of` returns the name of a dataset for the labels of metrics.
    """

    blobs: BlobStore
    states: ChainStates
    committer: BatchCommitter
    pools: Pools
    name_of: Callable[[DatasetId], str] = str

    def __post_init__(self) -> None:
        self._queues: dict[DatasetId, CommitQueue] = {}
        self._mutex = threading.Lock()
        self.late = LateRecords()

    def queue(self, dataset: DatasetId) -> CommitQueue:
        """Return the dataset's queue, created on first use."""
        with self._mutex:
            queue = self._queues.get(dataset)
            if queue is None:
                queue = self._queues[dataset] = CommitQueue(dataset, self._history(dataset), self.pools)
            return queue

    def forget(self, dataset: DatasetId) -> None:
        """Drop the queue and states of a deleted dataset."""
        with self._mutex:
            # With its history, whose index files were deleted with the dataset.
            self._queues.pop(dataset, None)
        self.states.forget(dataset)

    def commit(self, dataset: DatasetId, batch: Batch[P], *, merge: MergeStrategy | None = None) -> Outcome:
        """Commit the batch once its index is ready; see `BatchCommitter.commit`, and for `merge` `catch_up`."""
        while True:
            self.catch_up(dataset, batch.source, merge=merge)
            with suppress(IndexBehind):
                return self.commit_indexed(dataset, batch)

    @translating_os_errors
    def catch_up(
        self,
        dataset: DatasetId,
        source: str,
        is_wanted: IsWanted = lambda: True,
        meet: Meet = lambda _: None,
        *,
        merge: MergeStrategy | None = None,
    ) -> None:
        """Bring the index for merging a source's batches up to date; commits continue meanwhile. Can take minutes.

        `meet` is called with each state of the chain that is used. `merge` is that of a source which the chain does
        not define.
        """

        def current() -> ChainState:
            state = self.state(dataset)
            meet(state)
            return state

        merge = _merge_step(current(), source) or merge
        self.queue(dataset).history.catch_up(merge, current, is_wanted)

    def index_progress(self, dataset: DatasetId, merge: MergeStrategy) -> BuildProgress | None:
        """Return the progress of updating the index of a merge strategy; None unless it is being updated."""
        with self._mutex:
            queue = self._queues.get(dataset)
        return None if queue is None else queue.history.index_progress(merge)

    @translating_os_errors
    def commit_indexed(self, dataset: DatasetId, batch: Batch[P]) -> Outcome:
        """Commit the batch; raises `IndexBehind` if `catch_up` has to be called first."""
        queue = self.queue(dataset)
        with queue.lock:
            outcome = self.committer.commit(lambda: self.state(dataset), queue.history, batch)
            queue.committed = outcome.state.head
            self.late.add(dataset, batch.source, outcome.late)
        labels = self.name_of(dataset), batch.source
        metrics.RECORDS.labels(*labels).inc(outcome.count)
        metrics.LATE.labels(*labels).inc(outcome.late.count)
        return outcome

    def is_own(self, dataset: DatasetId, head: bytes) -> bool:
        """Return whether the head is from this process's last commit."""
        with self._mutex:
            queue = self._queues.get(dataset)
        return queue is not None and queue.committed is not None and queue.committed.raw == head

    def current(self, dataset: DatasetId) -> ChainState | None:
        """Return the state at the dataset's head; None if it has no blocks."""
        return self.states.current(dataset)

    def state(self, dataset: DatasetId) -> ChainState:
        """Return the state at the dataset's head; raises `NotFound` if it was deleted."""
        state = self.states.current(dataset)
        if state is None:
            raise NotFound(what=f"dataset {dataset}")
        return state

    def _history(self, dataset: DatasetId) -> DatasetHistory:
        return DatasetHistory(
            block_reader(self.blobs, dataset),
            lambda name: self.blobs.local_path(dataset, ObjectKind.DATA, name),
            self.blobs.index_folder(dataset),
        )


def _merge_step(state: ChainState, source: str) -> MergeStrategy | None:
    """Return the merge strategy of a source; None if the source does not exist."""
    pushed = state.push_sources.get(source)
    if pushed is None and source == DEFAULT_SOURCE:
        return None if state.polling_source is None else state.polling_source.merge
    return None if pushed is None else pushed.merge
