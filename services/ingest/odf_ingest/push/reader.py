"""Reading push topics: one thread takes messages for all sources that are owned here, others take them through.

Positions come from the chain alone. A source that cannot go on stops by itself; the others go on.
"""

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final

import structlog

from odf_common.adapters.kafka.records import Partition, Taken
from odf_common.errors import Unavailable
from odf_common.identity.did import DatasetId
from odf_common.runtime.retry import keep_trying
from odf_ingest.errors import HalfMissing, PositionMoved, SourceStopped
from odf_ingest.push.owned import OwnedSources
from odf_ingest.push.records import Records
from odf_ingest.push.source import LIMIT, PushSource, Wait
from odf_ingest.push.work import Work

log = structlog.stdlib.get_logger(__name__)

COUNT: Final = 500  # messages taken at once; with more, each falls out of the cache before its turn
IDLE: Final = 0.05  # seconds to wait for a message, so that requests are heard
HURRY: Final = 0.005  # the same, when a batch should be cut
Request = Callable[[], None]
Key = tuple[DatasetId, str]


class PushReader:
    """Reads what is owned here; requests of other threads are met between two takes."""

    def __init__(self, records: Records, slice_max_bytes: int) -> None:
        """Take messages from `records`; `bind` gives it the rest."""
        self._records = records
        self._slice_max_bytes = slice_max_bytes
        self._requests: SimpleQueue[Request] = SimpleQueue()
        self._by_partition: dict[Partition, PushSource] = {}
        self._mean_size = 1024.0  # bytes of a message
        self.sources: dict[Key, PushSource] = {}

    def bind(self, owned: OwnedSources, work: Work) -> None:
        """Ask `owned` what to read, and hand batches to `work`."""
        self._owned = owned
        self._work = work

    def request(self, action: Request) -> None:
        """Have the action done on the reader's thread, soon."""
        self._requests.put(action)

    def run(self, stop: threading.Event) -> None:
        """Read until `stop`."""
        try:
            while not stop.is_set():
                if keep_trying(self._meet_requests, stop) is None:
                    break
                taken = keep_trying(self._take, stop)
                if taken is not None:
                    self._sort(taken)
                self._advance()
        finally:
            self._work.end()
            self._records.close()

    def open(self, source: PushSource) -> None:
        """Begin to read a source; another one of the same name is left."""
        key = (source.dataset, source.name)
        self.close(key)
        self.sources[key] = source
        self._by_partition |= dict.fromkeys(source.partitions, source)
        self._records.assign({(source.topic, number): at for number, at in source.next.items()})
        log.info(
            "source opened", dataset=source.alias, source=source.name, topic=source.topic, next=source.next
        )

    def close(self, key: Key) -> None:
        """Read a source no longer, and drop what has come of it."""
        source = self.sources.pop(key, None)
        if source is not None:
            source.is_stale = True
            self._let_go(source)

    def failed(self, source: PushSource, error: Exception) -> None:
        """Take note, from any thread, that a source's batch could not be committed."""
        if isinstance(error, PositionMoved):
            self.request(lambda: self._owned.reopen(source))
        elif isinstance(error, HalfMissing):
            wait = Wait(seen=error.end, tries=error.tries + 1, why=error.why)
            self.request(lambda: self._owned.reopen(source, wait))
        else:
            self.request(lambda: self._halt(source, getattr(error, "code", type(error).__name__), str(error)))

    def _meet_requests(self) -> bool:
        while True:
            try:
                action = self._requests.get_nowait()
            except Empty:
                break
            try:
                action()
            except Unavailable:
                self._requests.put(action)
                raise
        self._owned.look_again()
        return True

    def _take(self) -> Taken | None:
        live = self.sources.values()
        if live and all(source.ready for source in live):
            # Nobody could take more: what waits in the client's own queue stays there.
            self._work.settled.wait(IDLE)
            self._work.settled.clear()
            return None
        waiting = [source for source in live if source.due is not None]
        due = min((source.due or 0.0 for source in waiting), default=None)
        if due is None:
            return self._records.take(1, IDLE)
        wait = min(max(due - time.monotonic(), 0.0), IDLE)
        if wait == 0.0 or any(source.is_hurried for source in waiting):
            wait = HURRY
        count = max(1, min(COUNT, int(self._slice_max_bytes / self._mean_size)))
        return self._records.take(count, wait)

    def _sort(self, taken: Taken) -> None:
        for partition, reason in taken.faults.items():
            source = self._by_partition.get(partition)
            if source is not None:
                log.warning("partition cannot be read", dataset=source.alias, source=source.name, why=reason)
                self.close((source.dataset, source.name))
                self._owned.look_soon(source.dataset)
        for chunk in taken.chunks:
            source = self._by_partition.get(chunk.partition)
            if source is None:
                continue
            source.add(chunk)
            source.high[chunk.partition[1]] = self._records.high(chunk.partition) or 0
            self._mean_size = 0.5 * self._mean_size + 0.5 * max(source.last_mean, 1.0)
        for partition, offset in taken.ends.items():
            source = self._by_partition.get(partition)
            if source is not None:
                source.ends[partition[1]] = offset

    def _advance(self) -> None:
        now = time.monotonic()
        for source in self.sources.values():
            due = source.due
            # While there is no room for it, a batch had better grow.
            if due is not None and due <= now and source.at_work < LIMIT:
                source.cut()
            while source.ready and source.at_work < LIMIT:
                self._work.begin(source, source.ready.popleft())
            self._pause(source)

    def _pause(self, source: PushSource) -> None:
        """Let a source rest while it is ahead of its commits and others are not."""
        is_ahead = len(source.ready) > 0
        if is_ahead and not source.is_paused and len(self.sources) > 1:
            self._records.pause(source.partitions)
            source.is_paused = True
        elif source.is_paused and not is_ahead:
            self._records.resume(source.partitions)
            source.is_paused = False

    def _halt(self, source: PushSource, reason: str, text: str) -> None:
        if self.sources.get((source.dataset, source.name)) is not source:
            return
        self._let_go(source)
        source.is_stale = True
        self._owned.stopped(
            (source.dataset, source.name), SourceStopped(source=source.name, reason=reason, text=text)
        )
        del self.sources[source.dataset, source.name]

    def _let_go(self, source: PushSource) -> None:
        self._records.unassign(source.partitions)
        for partition in source.partitions:
            if self._by_partition.get(partition) is source:
                del self._by_partition[partition]
