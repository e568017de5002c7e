"""Waits until all messages that a dataset's push topics have at the start of the call are committed."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from odf_common.chain.state import ChainState
from odf_common.errors import OdfError
from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import CatalogEntry
from odf_ingest.commit.committer import CommitQueues, position_of
from odf_ingest.errors import (
    SourceBuildsIndex,
    SourceGone,
    SourceQueries,
    SourceRetries,
    TopicGone,
    TopicReplaced,
)
from odf_ingest.push.lifecycle.assigned_sources import AssignedSources
from odf_ingest.push.lifecycle.start_position import require_same, stop_at
from odf_ingest.push.reader import PushReader
from odf_ingest.push.source_topics import Key, SourceTopic, SourceTopics

CHAIN_POLL_SECONDS: Final = 0.01  # between reads of the chain
REPORT_INTERVAL_SECONDS: Final = 0.25  # between progress reports
WAITING_TIMEOUT_SECONDS: Final = 5.0  # that a source may wait for a message that is not in the topic yet
RETRY_TIMEOUT_SECONDS: Final = 60.0  # that a source may be retried

Ends = Mapping[tuple[Key, int], int]  # by what is read and partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The number of messages that are not committed yet; if it is zero, the head of the chain that has them all."""

    waiting: int
    head: Multihash | None = None


@dataclass(eq=False)
class Drains:
    """Waits for push sources, whether this instance or another one reads them."""

    topics: SourceTopics
    queues: CommitQueues
    owned: AssignedSources
    reader: PushReader

    def __post_init__(self) -> None:
        self.waiting_timeout = WAITING_TIMEOUT_SECONDS

    def wait(self, entry: CatalogEntry) -> Iterator[Progress]:
        """Yield progress until no message is waiting; raises `SourceStopped` if a source stops.

        Raises `SourceWaiting` if a source keeps waiting for a message that is not in its topic.
        """
        dataset = entry.dataset_id
        state = self.queues.state(dataset)
        topics = {topic.key(dataset): topic for topic in self.topics.topics_of(entry, state)}
        ends = self._ends(entry, state, topics)
        if any(self.owned.record(key) is None for key in topics):
            self.reader.request(lambda: self.owned.inspect(dataset))  # for example a topic that is new
        reported_at = moved = time.monotonic()
        try:
            while True:
                waiting = self._count_waiting(state, topics, ends)
                if waiting == 0:
                    yield Progress(waiting=0, head=self.queues.state(dataset).head)
                    return
                if time.monotonic() - reported_at > REPORT_INTERVAL_SECONDS:
                    reported_at = time.monotonic()
                    yield Progress(waiting=waiting)
                stuck = self.owned.stuck()
                problems = [stuck[key] for key in topics if key in stuck]
                waits = [
                    error for error in problems if not isinstance(error, SourceQueries | SourceBuildsIndex)
                ]  # these end automatically
                if not waits:
                    moved = time.monotonic()
                elif time.monotonic() - moved > (
                    RETRY_TIMEOUT_SECONDS if isinstance(waits[0], SourceRetries) else self.waiting_timeout
                ):
                    raise waits[0]
                self._hurry(topics, is_hurried=True)
                time.sleep(CHAIN_POLL_SECONDS)
                state = self.queues.state(dataset)
        finally:
            self._hurry(topics, is_hurried=False)

    def _ends(self, entry: CatalogEntry, state: ChainState, topics: Mapping[Key, SourceTopic]) -> Ends:
        """Return the end offset of each partition of the topics.

        Raises `SourceStopped` if one was deleted or replaced since it was last read, `NotFound` or `Unavailable` if one
        cannot be described.
        """
        ends: dict[tuple[Key, int], int] = {}
        for key, topic in topics.items():
            position = position_of(state, key.source).topics.get(topic.name)
            try:
                described = require_same(topic.name, topic.described, position)
            except (TopicGone, TopicReplaced) as why:
                raise stop_at(topic, why, dataset=entry.alias) from why
            ends |= {(key, number): end for number, end in described.high.items()}
        return ends

    def _count_waiting(self, state: ChainState, topics: Mapping[Key, SourceTopic], ends: Ends) -> int:
        waiting = 0
        for (key, number), end in ends.items():
            if key.source not in state.push_sources:
                raise SourceGone.for_source(key.source)
            stopped = self.owned.reason(key)
            if stopped is not None:
                raise stopped
            left = end - self._next(state, topics[key], number)
            if left > 0 and not self._is_reached(key, number, end):
                waiting += left
        return waiting

    def _next(self, state: ChainState, topic: SourceTopic, number: int) -> int:
        position = position_of(state, topic.source).topics.get(topic.name)
        starts = {} if isinstance(topic.described, OdfError) else topic.starts(topic.described)
        first = starts.get(number, 0)
        return first if position is None else position.next.get(number, first)

    def _is_reached(self, key: Key, number: int, end: int) -> bool:
        """Return whether the partition was read up to this end, and all its messages are committed.

        The committed offset alone does not show that: transaction markers may follow the last message.
        """
        source = self.reader.sources.get(key)
        if source is None or not source.offsets.has_reached(number, end):
            return False
        # In this order: a failed source becomes stale before it counts as idle.
        return source.is_idle and not source.in_flight.is_stale

    def _hurry(self, topics: Iterable[Key], *, is_hurried: bool) -> None:
        for key in topics:
            source = self.reader.sources.get(key)
            if source is not None:
                source.is_hurried = is_hurried
