"""Waits until all messages that are now in a dataset's push topics are committed."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from odf_common.chain.state import ChainState
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.bus import TopicInfo, Topics
from odf_common.ports.store import CatalogEntry
from odf_ingest.commit.commit_queue import CommitQueues
from odf_ingest.commit.committer import position_of
from odf_ingest.errors import (
    SourceBuildsIndex,
    SourceGone,
    SourceQueries,
    SourceRetries,
    SourceStopped,
    TopicGone,
    TopicReplaced,
)
from odf_ingest.push.assigned_sources import AssignedSources
from odf_ingest.push.reader import PushReader
from odf_ingest.push.start_position import require_same

POLL_SECONDS: Final = 0.01  # between reads of the chain
REPORT_INTERVAL_SECONDS: Final = 0.25  # between progress reports
WAITING_TIMEOUT_SECONDS: Final = 5.0  # that a source may wait for a message that is not in the topic yet
RETRY_TIMEOUT_SECONDS: Final = 60.0  # that a source may be retried

Ends = Mapping[tuple[str, int], int]  # by source and partition


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The number of waiting messages; if zero, the head that includes them."""

    waiting: int
    head: Multihash | None = None


class Drains:
    """Waits for sources, read by this or another instance."""

    def __init__(
        self, topics: Topics, queues: CommitQueues, owned: AssignedSources, reader: PushReader
    ) -> None:
        """Use these parts."""
        self.patience = WAITING_TIMEOUT_SECONDS
        self._topics = topics
        self._queues = queues
        self._owned = owned
        self._reader = reader

    def wait(self, entry: CatalogEntry) -> Iterator[Progress]:
        """Yield progress until no message is waiting; raises `SourceStopped` if a source stops.

        Raises `SourceWaiting` if a source keeps waiting for a message that is not in its topic.
        """
        dataset = entry.dataset_id
        state = self._queues.state(dataset)
        topics = {name: topic for name, topic in entry.push_topics.items() if name in state.push_sources}
        ends = self._ends(topics, self._described(entry, state, topics))
        told = moved = time.monotonic()
        try:
            while True:
                waiting = self._waiting(state, topics, ends)
                if waiting == 0:
                    yield Progress(waiting=0, head=self._queues.state(dataset).head)
                    return
                if time.monotonic() - told > REPORT_INTERVAL_SECONDS:
                    told = time.monotonic()
                    yield Progress(waiting=waiting)
                stuck = self._owned.stuck()
                found = [stuck[dataset, name] for name in topics if (dataset, name) in stuck]
                waits = [
                    one for one in found if not isinstance(one, SourceQueries | SourceBuildsIndex)
                ]  # these end by themselves
                if not waits:
                    moved = time.monotonic()
                elif time.monotonic() - moved > (
                    RETRY_TIMEOUT_SECONDS if isinstance(waits[0], SourceRetries) else self.patience
                ):
                    raise waits[0]
                self._hurry(dataset, topics, is_hurried=True)
                time.sleep(POLL_SECONDS)
                state = self._queues.state(dataset)
        finally:
            self._hurry(dataset, topics, is_hurried=False)

    def _ends(self, topics: Mapping[str, str], described: Mapping[str, TopicInfo]) -> Ends:
        return {
            (name, number): end
            for name, topic in topics.items()
            for number, end in described[topic].high.items()
        }

    def _described(
        self, entry: CatalogEntry, state: ChainState, topics: Mapping[str, str]
    ) -> Mapping[str, TopicInfo]:
        """Return the descriptions of the topics.

        Raises `SourceStopped` if one was deleted or replaced since it was last read, `NotFound` or `Unavailable` if one
        cannot be described.
        """
        found = self._topics.describe(topics.values())
        described = {}
        for name, topic in topics.items():
            known = position_of(state, name).topics.get(topic)
            try:
                described[topic] = require_same(topic, found[topic], known)
            except (TopicGone, TopicReplaced) as why:
                raise SourceStopped(dataset=entry.alias, source=name, reason=why.code, text=str(why)) from why
        return described

    def _waiting(self, state: ChainState, topics: Mapping[str, str], ends: Ends) -> int:
        waiting = 0
        for (name, number), end in ends.items():
            if name not in state.push_sources:
                raise SourceGone(source=name)
            stopped = self._owned.reason(state.dataset_id, name)
            if stopped is not None:
                raise stopped
            left = end - self._next(state, name, topics[name], number)
            if left > 0 and not self._is_reached(state.dataset_id, name, number, end):
                waiting += left
        return waiting

    def _next(self, state: ChainState, name: str, topic: str, number: int) -> int:
        known = position_of(state, name).topics.get(topic)
        return 0 if known is None else known.next.get(number, 0)

    def _is_reached(self, dataset: DatasetId, name: str, number: int, end: int) -> bool:
        """Return whether the partition was read to its end and everything is committed.

        Transaction markers occupy offsets too, so the last message may be before the end.
        """
        source = self._reader.sources.get((dataset, name))
        if source is None or source.ends.get(number, -1) < end:
            return False
        # In this order: a failed source becomes stale before it counts as idle.
        return source.is_idle and not source.is_stale

    def _hurry(self, dataset: DatasetId, topics: Mapping[str, str], *, is_hurried: bool) -> None:
        for name in topics:
            source = self._reader.sources.get((dataset, name))
            if source is not None:
                source.is_hurried = is_hurried
