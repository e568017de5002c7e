"""The start position of a push source: from the chain, checked against the topic."""

from collections.abc import Mapping
from dataclasses import dataclass

from odf_common.chain.state import ChainState
from odf_common.errors import NotFound, OdfError
from odf_common.ports.bus import TopicInfo
from odf_common.ports.store import CatalogEntry
from odf_ingest.commit.committer import position_of
from odf_ingest.commit.position import TopicPosition
from odf_ingest.errors import PositionBeyondEnd, RecordsExpired, SourceStopped, TopicGone, TopicReplaced
from odf_ingest.prepare.message_values import require_possible
from odf_ingest.prepare.plan import plan_of
from odf_ingest.push.batches.source import BatchLimits, PushSource
from odf_ingest.push.lifecycle.source_record import SourceRecord
from odf_ingest.push.source_topics import SourceTopic


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
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
    """Return the source of a record at the chain's position.

    Raises `NotFound` if the topic does not exist yet, `Unavailable` if it cannot be described, and `TopicGone`,
    `TopicReplaced`, `RecordsExpired` or `PositionBeyondEnd` if continuing would skip or repeat records.
    """
    committed = position_of(state, topic.source).topics.get(topic.name)
    start = _start(require_same(topic.name, topic.described, committed), topic, committed)
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
    """Return a topic's description; raises `TopicGone` or `TopicReplaced` unless it is the topic read before.

    If `described` is an error, it is raised.
    """
    if isinstance(described, NotFound) and committed is not None:
        raise TopicGone(topic=topic) from described
    if isinstance(described, OdfError):
        raise described
    if committed is not None and committed.topic_id != described.topic_id:
        raise TopicReplaced(topic=topic, expected=committed.topic_id, actual=described.topic_id)
    return described


def stop_at(topic: SourceTopic, why: TopicGone | TopicReplaced, *, dataset: str) -> SourceStopped:
    """Return the stop of a dataset's source at a topic that is not the one read before."""
    of_others = "" if topic.is_own else topic.name
    return SourceStopped(
        dataset=dataset, source=topic.source, reason=why.code, text=str(why), topic=of_others
    )


def messages_after(
    committed: TopicPosition | None, topic: SourceTopic, reader: PushSource | None = None
) -> int | None:
    """Return the number of messages of a topic after a position, or all of them without one; None if unknown.

    Markers of transactions count as well, except in partitions that `reader` has read to the end.
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
    """Return whether the source, its topic or the start that was chosen differs from what is being read."""
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
    """Return whether an idle or waiting source differs from the chain's position: a reset, or another writer."""
    committed = position_of(state, source.name).topics.get(source.topic)
    offsets = {} if committed is None else committed.next
    return any(
        offsets.get(number, source.beginning[number]) != next_ for number, next_ in source.position.items()
    )


def _start(described: TopicInfo, topic: SourceTopic, committed: TopicPosition | None) -> _Start:
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
    return _Start(topic_id=described.topic_id, positions=positions, beginning=beginning)
