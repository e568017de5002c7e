"""The start position of a push source, which is that of the chain, checked against the topic.

Also the status of stalled sources: the reason why they are stopped, waiting or retried, and the number of messages that
wait for them. A source that is read reports that number with each batch; `WaitingReports` reports it for stopped ones.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from odf_common.chain.state import ChainState
from odf_common.errors import NotFound, OdfError, Refused
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import MergeStrategy
from odf_common.ports.bus import TopicInfo
from odf_common.ports.store import CatalogEntry
from odf_ingest.commit.committer import position_of
from odf_ingest.commit.position import TopicPosition
from odf_ingest.errors import (
    PositionBeyondEnd,
    RecordsExpired,
    SourceBuildsIndex,
    SourceQueries,
    SourceRetries,
    SourceStateUnreadable,
    SourceStopped,
    SourceWaiting,
    TopicGone,
    TopicReplaced,
)
from odf_ingest.history.indexes import BuildProgress
from odf_ingest.prepare.message_values import require_possible
from odf_ingest.prepare.plan import plan_of
from odf_ingest.push.batches.source import BatchLimits, PushSource, Trouble
from odf_ingest.push.lifecycle.source_record import SourceRecord
from odf_ingest.push.source_topics import Key, SourceTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPosition:
    """Offsets of a topic by partition: where to read, and where reading begins without a position."""

    topic_id: str
    positions: Mapping[int, int]
    beginning: Mapping[int, int]


def open_source(
    entry: CatalogEntry,
    state: ChainState,
    topic: SourceTopic,
    *,
    limits: BatchLimits,
    record: SourceRecord,
) -> PushSource:
    """Return the source of a record, ready to be read from the chain's position.

    Raises `NotFound` if the topic does not exist yet, `Unavailable` if it cannot be described, and `TopicGone`,
    `TopicReplaced`, `RecordsExpired` or `PositionBeyondEnd` if records would be skipped or repeated.
    """
    committed = position_of(state, topic.source).topics.get(topic.name)
    start = start_position(topic, committed)
    plan = plan_of(state, state.push_sources[topic.source], topic.columns)
    require_possible(topic.columns, plan)
    return PushSource(
        dataset=state.dataset_id,
        alias=entry.alias,
        plan=plan,
        topic=topic.name,
        is_own=topic.is_own,
        start=topic.start,
        columns=topic.columns,
        topic_id=start.topic_id,
        positions=start.positions,
        beginning=start.beginning,
        limits=limits,
        wait=record.wait,
        search=record.search,
    )


def require_same(topic: str, described: TopicInfo | OdfError, committed: TopicPosition | None) -> TopicInfo:
    """Return a topic's description. Raises `TopicGone` or `TopicReplaced` unless it is the topic with this position.

    If `described` is another error, it is raised.
    """
    if isinstance(described, NotFound) and committed is not None:
        raise TopicGone(topic=topic) from described
    if isinstance(described, OdfError):
        raise described
    if committed is not None and committed.topic_id != described.topic_id:
        raise TopicReplaced(topic=topic, expected=committed.topic_id, actual=described.topic_id)
    return described


def stop_at(topic: SourceTopic, why: TopicGone | TopicReplaced, *, dataset: str) -> SourceStopped:
    """Return the error of a source that stopped because its topic was deleted or replaced."""
    of_others = "" if topic.is_own else topic.name
    return SourceStopped(
        dataset=dataset, source=topic.source, reason=why.code, text=str(why), topic=of_others
    )


def messages_after(
    committed: TopicPosition | None, topic: SourceTopic, reader: PushSource | None = None
) -> int | None:
    """Return the number of messages of a topic after a position, or from the start if it is None; None if unknown.

    Transaction markers are counted too, except in partitions that `reader` has read to the end.
    """
    described = topic.described
    if isinstance(described, OdfError):
        return None
    next_ = {} if committed is None else committed.next
    starts = topic.starts(described)
    left = {
        number: max(high - next_.get(number, starts[number]), 0) for number, high in described.high.items()
    }
    if reader is not None and reader.is_idle:
        left = {
            number: count
            for number, count in left.items()
            if not reader.offsets.has_reached(number, described.high[number])
        }
    return sum(left.values())


def has_moved(source: PushSource, state: ChainState, topic: SourceTopic) -> bool:
    """Return whether the definition of the source, its topic, or its chosen start has changed since it was opened."""
    described = topic.described
    committed = position_of(state, source.name).topics.get(topic.name)
    if not source.is_as_defined(state) or topic.name != source.topic:
        return True
    if isinstance(described, OdfError):
        return isinstance(described, NotFound)
    if topic.columns != source.columns:
        return True
    return (
        (committed is None and topic.start != source.start)
        or described.topic_id != source.topic_id
        or described.low.keys() != source.offsets.next.keys()
    )


def is_elsewhere(source: PushSource, state: ChainState) -> bool:
    """Return whether the chain has another position than an idle or waiting source.

    The cause is a reset, or another instance that commits.
    """
    committed = position_of(state, source.name).topics.get(source.topic)
    offsets = {} if committed is None else committed.next
    return any(
        offsets.get(number, source.beginning[number]) != next_ for number, next_ in source.position.items()
    )


def start_position(topic: SourceTopic, committed: TopicPosition | None) -> StartPosition:
    """Return the offsets at which to read a topic; raises as `open_source`."""
    described = require_same(topic.name, topic.described, committed)
    beginning = topic.starts(described)
    positions = {}
    for number, low in described.low.items():
        high = described.high[number]
        offset = beginning[number] if committed is None else committed.next.get(number, beginning[number])
        if offset < low:
            raise RecordsExpired(topic=topic.name, partition=number, next=offset, low=low)
        if offset > high:
            raise PositionBeyondEnd(topic=topic.name, partition=number, next=offset, high=high)
        positions[number] = offset
    return StartPosition(topic_id=described.topic_id, positions=positions, beginning=beginning)


REPORT_RETRIES_AFTER_SECONDS: Final = 2.0  # retries, or building an index, are reported after this time
STALLED_AFTER_SECONDS: Final = 10.0  # a query or a commit counts as stalled after this time

ReportWaiting = Callable[[Key, int], None]
BuildingOf = Callable[[DatasetId, MergeStrategy], BuildProgress | None]


def stall_of_dataset(trouble: Trouble) -> Refused:
    """Return the error that reports a dataset that cannot be read."""
    return SourceRetries(
        source="",
        reason="DatasetUnreadable",
        text=trouble.why,
        remedy=trouble.advice
        or "Restore the dataset's folder, or delete the dataset; it is retried until then.",
    )


def stall_of_source(record: SourceRecord, building_of: BuildingOf) -> Refused | None:
    """Return the error that reports a stalled source; None if the source is not stalled."""
    if record.stop is not None:
        return record.stop.why
    name, source = record.key[1], record.source
    if source is not None and source.is_waiting and source.wait is not None:
        return SourceWaiting(
            source=name, dataset=source.alias, reason="AwaitingCorrection", text=source.wait.why
        )
    trouble = record.trouble
    if trouble is not None and time.time() - trouble.since > REPORT_RETRIES_AFTER_SECONDS:
        return _retry_stall(name, trouble.reason, trouble)
    if source is None:
        return None
    if _if_stalled(source.in_flight.querying_since) is not None:
        return SourceQueries(source=name)
    building = _building(record, building_of)
    if building is not None:
        return SourceBuildsIndex(source=name, done=building.done, total=building.total)
    since = _if_stalled(source.in_flight.committing_since)
    if since is not None:
        why = "the coordinator has not committed its batch"
        return _retry_stall(name, "CommitWaits", source.in_flight.trouble or Trouble(since=since, why=why))
    return None


def since_of(record: SourceRecord, building_of: BuildingOf) -> float:
    """Return the time since which a source is stalled, or else in its phase (seconds since the epoch)."""
    if record.trouble is not None:
        return record.trouble.since
    building = _building(record, building_of)
    if building is not None:
        return building.since
    source = record.source
    if source is None:
        return record.since
    batches = source.in_flight
    return _if_stalled(batches.querying_since) or _if_stalled(batches.committing_since) or record.since


def _building(record: SourceRecord, building_of: BuildingOf) -> BuildProgress | None:
    """Return the progress of building the source's index; None before `REPORT_RETRIES_AFTER_SECONDS`."""
    source = record.source
    building = None if source is None else building_of(source.dataset, source.plan.source.merge)
    if building is None or time.time() - building.since <= REPORT_RETRIES_AFTER_SECONDS:
        return None
    return building


def _if_stalled(since: float | None) -> float | None:
    """Return `since` if it is longer ago than `STALLED_AFTER_SECONDS`."""
    return since if since is not None and time.time() - since > STALLED_AFTER_SECONDS else None


def _retry_stall(name: str, reason: str, trouble: Trouble) -> Refused:
    return SourceRetries(source=name, reason=reason, text=trouble.why, remedy=trouble.advice)


class WaitingReports:
    """Reports the number of messages that wait for a stopped source.

    It is reported at each inspection, and when the source is opened again, because it may start after those messages.
    """

    def __init__(self, report: ReportWaiting) -> None:
        """Call `report` with a source and the number of messages that wait for it."""
        self._report = report
        self._stopped: set[Key] = set()

    def report_stopped(self, key: Key, state: ChainState, topic: SourceTopic) -> None:
        """Report the messages that wait for a stopped source, unless its topic cannot be described."""
        self._stopped.add(key)
        self._report_count(key, state, topic)

    def report_opened(self, key: Key, state: ChainState, topic: SourceTopic) -> None:
        """Report the messages that wait for an opened source, if it was stopped before."""
        if key in self._stopped:
            self._stopped.discard(key)
            self._report_count(key, state, topic)

    def forget(self, key: Key) -> None:
        """Forget a source that is no longer assigned."""
        self._stopped.discard(key)

    def _report_count(self, key: Key, state: ChainState, topic: SourceTopic) -> None:
        try:
            position = position_of(state, topic.source)
        except SourceStateUnreadable:  # which is why the source is stopped
            return
        count = messages_after(position.topics.get(topic.name), topic)
        if count is not None:
            self._report(key, count)
