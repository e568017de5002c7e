"""One batch of messages on its way through: read, committed in its lane, told about."""

import errno
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

import structlog

from odf_common.codec.bus import envelope
from odf_common.errors import NotFound, OdfError, Unavailable
from odf_common.ports.bus import NOTIFICATIONS, Bus, Topics
from odf_common.proto.odf.bus.v1.bus_pb2 import IngestProgress
from odf_common.runtime.retry import keep_trying
from odf_ingest import metrics
from odf_ingest.batch import MessageBatch
from odf_ingest.commit import Outcome
from odf_ingest.errors import HalfMissing, PositionMoved, TopicGone, TopicReplaced
from odf_ingest.prepare import Plan, Prepared, Preparer
from odf_ingest.push.lanes import Lanes
from odf_ingest.push.messages import KafkaBatch
from odf_ingest.push.source import PushSource

log = structlog.stdlib.get_logger(__name__)

PASSING: Final = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # faults of a disk that may pass
Failed = Callable[[PushSource, Exception], None]


class Work:
    """Takes batches through; `failed` is told what did not work."""

    def __init__(
        self, *, lanes: Lanes, preparer: Preparer, topics: Topics, bus: Bus, readers: Executor, failed: Failed
    ) -> None:
        """Read batches on `readers`, each dataset's ahead of what is being committed."""
        self._lanes = lanes
        self._preparer = preparer
        self._topics = topics
        self._bus = bus
        self._readers = readers
        self._failed = failed
        self._stop = threading.Event()
        self.settled = threading.Event()

    def begin(self, source: PushSource, batch: MessageBatch) -> None:
        """Take a batch through in the background; `settled` is set when it is done with."""
        source.begun += 1
        reading = self._readers.submit(self._read, source.plan, batch)
        work = KafkaBatch(
            source.name, batch, plan=source.plan, reading=reading, read=self._read, bus=self._bus
        )

        def task() -> None:
            try:
                if not source.is_stale:
                    self._commit(source, batch, work)
            finally:
                source.settled += 1
                self.settled.set()

        self._lanes.lane(source.dataset).submit(task)

    def end(self) -> None:
        """Begin no more tries."""
        self._stop.set()

    def _read(self, plan: Plan, batch: MessageBatch) -> Prepared:
        """Return the records, if they are of the topic that they are taken for."""
        try:
            actual = self._topics.topic_id(batch.topic)
        except NotFound as error:
            raise TopicGone(topic=batch.topic) from error
        if actual != batch.topic_id:
            # Made anew while it was being read: offsets alone would not tell.
            raise TopicReplaced(topic=batch.topic, expected=batch.topic_id, actual=actual)
        return self._preparer.messages(plan, batch)

    def _commit(self, source: PushSource, batch: MessageBatch, work: KafkaBatch) -> None:
        try:
            outcome = keep_trying(lambda: self._committed(source, work), self._stop)
        except OdfError as error:
            source.is_stale = True
            if isinstance(error, HalfMissing):
                self._tell_progress(source, source.lag(batch.start), 0, time.monotonic() - batch.begun)
            self._failed(source, error)
        except Exception as error:
            log.exception("a bug stops this source", dataset=str(source.dataset), source=source.name)
            source.is_stale = True
            self._failed(source, error)
        else:
            if work.batch is not batch:
                # The rest of it is read again.
                source.is_stale = True
                self._failed(source, PositionMoved(source=source.name))
            if outcome is not None:
                self._tell(source, work.batch, outcome)

    def _committed(self, source: PushSource, work: KafkaBatch) -> Outcome:
        try:
            return self._lanes.commit(source.dataset, work)
        except OSError as error:
            if error.errno in PASSING:
                raise Unavailable(what="the disk", why=str(error)) from error
            raise

    def _tell(self, source: PushSource, batch: MessageBatch, outcome: Outcome) -> None:
        elapsed = time.monotonic() - batch.begun
        lag = source.lag(batch.end)
        metrics.RECORDS.labels(source.alias, source.name).inc(outcome.count)
        metrics.SECONDS.observe(elapsed)
        log.info(
            "records committed",
            dataset=str(source.dataset),
            source=source.name,
            records=outcome.count,
            messages=batch.count,
            lag=lag,
            ms=round(elapsed * 1000),
        )
        self._tell_progress(source, lag, outcome.count, elapsed)

    def _tell_progress(self, source: PushSource, lag: int, records: int, elapsed: float) -> None:
        metrics.LAG.labels(source.alias, source.name).set(lag)
        progress = IngestProgress(
            source_name=source.name, lag=lag, records=records, elapsed_ms=round(elapsed * 1000)
        )
        try:
            self._bus.send(NOTIFICATIONS, envelope(source.dataset, progress, may_ignore=True))
            self._bus.flush()
        except Unavailable as error:
            log.warning("progress not told", why=str(error))
