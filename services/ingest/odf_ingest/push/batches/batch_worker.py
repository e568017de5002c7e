"""Processes batches of messages: reads them, commits them in the queue of their dataset, and reports the result."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog

from odf_common.chain.build_blocks import ClockBehind
from odf_common.chain.state import ChainState
from odf_common.codec.envelopes import envelope
from odf_common.errors import NotFound, OdfError, StorageUnavailable, Unavailable
from odf_common.ports.bus import NOTIFICATIONS, Bus, Topics
from odf_common.ports.engine import QueryNotWanted
from odf_common.proto.odf.bus.v1.bus_pb2 import IngestProgress
from odf_common.service.consumer.retry import keep_trying
from odf_ingest import metrics
from odf_ingest.commit.committer import CommitQueue, CommitQueues, Outcome
from odf_ingest.commit.rejects import RejectPolicy
from odf_ingest.errors import (
    AwaitingCorrection,
    PositionChanged,
    RecordRejected,
    RegistryUnavailable,
    SourceGone,
    TooManyRejected,
    TopicGone,
    TopicReplaced,
    pauses_source,
)
from odf_ingest.history.indexes import IndexBehind
from odf_ingest.merge.strategies import key_columns
from odf_ingest.message_columns import Envelope
from odf_ingest.prepare.batch import BadRecord, MessageBatch
from odf_ingest.prepare.debezium import unwrap_changes
from odf_ingest.prepare.plan import Plan
from odf_ingest.prepare.preparer import PreparedRecords, Preparer
from odf_ingest.push.batches.kafka_batch import KafkaBatch, Read
from odf_ingest.push.batches.source import PushSource, Trouble
from odf_ingest.registry import Registries, decode_batch

log = structlog.stdlib.get_logger(__name__)

PAUSING: Final = (StorageUnavailable, RegistryUnavailable, ClockBehind)
IndexReady = Future[None]  # done when the index is ready, or cannot be caught up
# The last argument is what the batch met of its chain (`as_of`); None if it met none.
OnFailure = Callable[[PushSource, Exception, MessageBatch, object], None]


@dataclass(eq=False, kw_only=True)
class BatchWorker:
    """Processes batches, and calls `failed` for each batch that fails.

    The threads of `readers` read a batch while the one before it is committed.
    """

    queues: CommitQueues
    preparer: Preparer
    topics: Topics
    bus: Bus
    rejecting: RejectPolicy
    registries: Registries
    readers: Executor
    failed: OnFailure

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self.settled = threading.Event()

    def begin(self, source: PushSource, batch: MessageBatch) -> None:
        """Process a batch in the background. The event `settled` is set when it is committed or has failed."""
        queue = self.queues.queue(source.dataset)
        source.in_flight.begun += 1
        if source.plan.source.preprocess is None:
            reading = self.readers.submit(self._read, source, source.plan, batch)
            work = self._work(source, batch, reading)
            source.in_flight.in_order(reading, lambda: self._queue_commit(source, queue, work))
        else:
            # A query can take minutes: no other dataset and no thread of a queue waits for it.
            source.in_flight.querying_since = source.in_flight.querying_since or time.time()
            reading = queue.queries.submit(lambda: self._query(source, batch))
            work = self._work(source, batch, reading)
            reading.add_done_callback(lambda _: self._queue_commit(source, queue, work))

    def _queue_commit(self, source: PushSource, queue: CommitQueue, work: KafkaBatch) -> None:
        """Enqueue a batch in its dataset's queue once its index is up to date."""
        # Merging without keys needs no index.
        if not key_columns(source.plan.source.merge):
            ready: IndexReady = Future()
            ready.set_result(None)
            queue.tasks.submit(lambda: self._settle(source, work, ready))
            return
        indexed = queue.index_queue(source.name).submit(lambda: self._catch_up(source, work))
        indexed.add_done_callback(lambda ready: queue.tasks.submit(lambda: self._settle(source, work, ready)))

    def _catch_up(self, source: PushSource, work: KafkaBatch) -> None:
        def is_wanted() -> bool:
            return not (source.in_flight.is_stale or self._stop.is_set())

        if is_wanted():
            keep_trying(
                lambda: self.queues.catch_up(source.dataset, source.name, is_wanted, work.meet),
                self._stop,
                final=StorageUnavailable,
            )

    def end(self) -> None:
        """Stop retrying failed commits."""
        self._stop.set()

    def _query(self, source: PushSource, batch: MessageBatch) -> PreparedRecords:
        if source.in_flight.is_stale:
            raise QueryNotWanted
        source.in_flight.querying_since = time.time()
        try:
            return self._read(source, source.plan, batch)
        finally:
            source.in_flight.querying_since = None

    def _read(self, source: PushSource, plan: Plan, batch: MessageBatch) -> PreparedRecords:
        """Return the records of a batch; raises `TopicGone` or `TopicReplaced` if its topic was deleted or replaced."""
        try:
            actual = self.topics.topic_id(batch.topic)
        except NotFound as error:
            raise TopicGone(topic=batch.topic) from error
        if actual != batch.topic_id:
            # It was re-created while being read, which its offsets do not show.
            raise TopicReplaced(topic=batch.topic, expected=batch.topic_id, actual=actual)
        plan = replace(plan, is_wanted=lambda: not source.in_flight.is_stale)
        prepare = self.preparer.messages
        if batch.columns.envelope is Envelope.DEBEZIUM:
            prepare = partial(unwrap_changes, prepare)
        decoder = self.registries.decoder(self.rejecting.settings(source.dataset, source.name))
        return prepare(plan, batch) if decoder is None else decode_batch(decoder, plan, batch, prepare)

    def _settle(self, source: PushSource, work: KafkaBatch, indexed: IndexReady) -> None:
        try:
            if not source.in_flight.is_stale:
                source.in_flight.committing_since = time.time()
                self._commit(source, work, indexed)
        except Exception as error:
            # Nothing reads the task's result: without this the error would be lost.
            source.log.exception("source stopped by a bug")
            source.in_flight.is_stale = True
            self._fail(source, work, error)
        finally:
            source.in_flight.committing_since = source.in_flight.trouble = None
            source.in_flight.settled += 1
            self.settled.set()

    def _work(
        self,
        source: PushSource,
        batch: MessageBatch,
        reading: "Future[PreparedRecords]",
        read: Read | None = None,
    ) -> KafkaBatch:
        return KafkaBatch(
            source.name,
            batch,
            plan=source.plan,
            reading=reading,
            read=read or partial(self._read, source),
            rejecting=self.rejecting,
        )

    def _commit(self, source: PushSource, work: KafkaBatch, indexed: IndexReady) -> None:
        batch = work.whole_batch
        source.log.debug("committing a batch", messages=batch.count, end=batch.end)
        try:
            indexed.result()
            # Neither storage nor a registry nor a clock may block this thread: the source is reopened later.
            outcome = keep_trying(lambda: self._try_commit(source, work), self._stop, final=PAUSING)
        except OdfError as error:
            self._give_up(source, work, error)
        except IndexBehind:
            # No other source waits while it is caught up: the messages are read again.
            self._give_up(source, work, PositionChanged(source=source.name))
        except Exception as error:
            source.log.exception("source stopped by a bug")
            self._give_up(source, work, error)
        else:
            if outcome is not None and batch.search is not None and batch.search.is_over(work.batch.end):
                batch.search.finish(None)
            if work.batch is not batch:
                # The rest is read again.
                source.in_flight.is_stale = True
                self.failed(source, PositionChanged(source=source.name), batch, work.chain(source.key))
            if outcome is not None:
                self._tell(source, work, outcome)

    def _give_up(self, source: PushSource, work: KafkaBatch, error: Exception) -> None:
        batch = work.whole_batch
        source.in_flight.is_stale = True
        if _is_to_be_skipped(batch, error):
            self._skip(source, batch, error)
            return
        if isinstance(error, AwaitingCorrection) or pauses_source(error):
            self._tell_progress(source, source.offsets.lag(batch.start), 0, time.monotonic() - batch.begun)
        self.failed(source, error, batch, work.chain(source.key))

    def _skip(self, source: PushSource, batch: MessageBatch, why: Exception) -> None:
        """Commit the position after a message that a user wants to skip. The message becomes a dead letter."""
        (part,) = batch.parts
        bad = BadRecord(
            partition=part.partition,
            offset=part.offsets[0],
            value=part.values[0],
            reason=f"skipped by command: {why.why if isinstance(why, RecordRejected | TooManyRejected) else why}",
        )
        nothing = PreparedRecords(source=source.plan.source, bad=(bad,))
        reading: Future[PreparedRecords] = Future()
        reading.set_result(nothing)
        alone = replace(batch, search=None, is_skipped=True)
        work = self._work(source, alone, reading, lambda plan, _: replace(nothing, source=plan.source))
        try:
            outcome = keep_trying(lambda: self._try_commit(source, work), self._stop, final=PAUSING)
        except OdfError as error:
            self._fail(source, work, error)
            return
        if outcome is not None:
            source.log.warning("message skipped", offset=bad.offset)
            if batch.search is not None:
                batch.search.finish((bad.partition, bad.offset))
            self._tell(source, work, outcome)
        self.failed(source, PositionChanged(source=source.name), alone, work.chain(source.key))

    def _fail(self, source: PushSource, work: KafkaBatch, error: Exception) -> None:
        """Report a failure that is not caused by the message to skip, and end the search for it."""
        self.failed(source, error, replace(work.whole_batch, search=None), work.chain(source.key))

    def _try_commit(self, source: PushSource, work: KafkaBatch) -> Outcome:
        try:
            outcome = self.queues.commit_indexed(source.dataset, work)
        except Unavailable as error:
            source.in_flight.trouble = Trouble.after_try(error, source.in_flight.trouble)
            raise
        source.in_flight.trouble = None
        return outcome

    def _tell(self, source: PushSource, work: KafkaBatch, outcome: Outcome) -> None:
        batch = work.batch
        elapsed = time.monotonic() - batch.begun
        source.in_flight.last_lag = source.offsets.lag(batch.end)
        lag = source.in_flight.last_lag + source.lag_of_siblings()
        metrics.SECONDS.observe(elapsed)
        source.log.info(
            "records committed",
            records=outcome.count,
            messages=batch.count,
            rejected=len(work.rejected),
            late=outcome.late.count,
            lag=lag,
            ms=round(elapsed * 1000),
        )
        if work.rejected:
            metrics.BAD.labels(source.alias, source.name).inc(len(work.rejected))
            source.log.warning(
                "messages rejected",
                messages=len(work.rejected),
                first=work.rejected[0].reason,
                see=f"odf rejected list {source.alias}",
            )
        self._tell_progress(source, lag, outcome.count, elapsed, outcome.state)

    def _tell_progress(
        self, source: PushSource, lag: int, records: int, elapsed: float, state: ChainState | None = None
    ) -> None:
        metrics.LAG.labels(source.alias, source.name).set(lag)
        progress = IngestProgress(
            source_name=source.name, lag=lag, records=records, elapsed_ms=round(elapsed * 1000)
        )
        if state is not None:
            self.rejecting.add_to(progress, state)
        try:
            self.bus.send(NOTIFICATIONS, envelope(source.dataset, progress, may_ignore=True))
            self.bus.flush()
        except Unavailable as error:
            log.warning("cannot send progress", why=str(error))


def _is_to_be_skipped(batch: MessageBatch, error: Exception) -> bool:
    """Return whether the batch is the message that a user wants to skip: a single message that fails."""
    search, first = batch.search, batch.parts[0]
    if (
        search is None
        or batch.count != 1
        or first.offsets[0] >= search.until.get(first.partition, 0)
        or isinstance(error, PositionChanged | SourceGone | TopicGone | TopicReplaced)
        or pauses_source(error)
    ):
        return False
    return not isinstance(error, AwaitingCorrection) or first.partition == search.half_in
