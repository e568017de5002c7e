"""The start position of a push source: from the chain, checked against the topic."""

from collections.abc import Mapping
from dataclasses import dataclass

from odf_common.chain.state import ChainState
from odf_common.errors import NotFound, OdfError
from odf_common.metadata.events import AddPushSource
from odf_common.ports.bus import TopicInfo
from odf_common.ports.store import CatalogEntry
from odf_ingest.commit.committer import position_of
from odf_ingest.commit.position import TopicPosition
from odf_ingest.errors import PositionBeyondEnd, RecordsExpired, TopicGone, TopicReplaced
from odf_ingest.prepare.preparer import plan_of
from odf_ingest.push.source import Limits, PushSource
from odf_ingest.push.source_record import SourceRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    topic_id: str
    positions: Mapping[int, int]
    beginning: Mapping[int, int]


def open_source(
    entry: CatalogEntry,
    state: ChainState,
    source: AddPushSource,
    described: TopicInfo | OdfError,
    *,
    limits: Limits,
    record: SourceRecord,
) -> PushSource:
    """Return the source of a record at the chain's position.

    Raises `NotFound` if the topic does not exist yet, `Unavailable` if it cannot be described, and `TopicGone`,
    `TopicReplaced`, `RecordsExpired` or `PositionBeyondEnd` if continuing would skip or repeat records.
    """
    topic = entry.push_topics[source.source_name]
    known = position_of(state, source.source_name).topics.get(topic)
    place = _place(require_same(topic, described, known), topic, known)
    return PushSource(
        dataset=state.dataset_id,
        alias=entry.alias,
        plan=plan_of(state, source),
        topic=topic,
        topic_id=place.topic_id,
        positions=place.positions,
        beginning=place.beginning,
        limits=limits,
        wait=record.wait,
        search=record.search,
    )


def require_same(topic: str, described: TopicInfo | OdfError, known: TopicPosition | None) -> TopicInfo:
    """Return a topic's description; raises `TopicGone` or `TopicReplaced` unless it is the topic read before.

    If `described` is an error, it is raised.
    """
    if isinstance(described, NotFound) and known is not None:
        raise TopicGone(topic=topic) from described
    if isinstance(described, OdfError):
        raise described
    if known is not None and known.topic_id != described.topic_id:
        raise TopicReplaced(topic=topic, expected=known.topic_id, actual=described.topic_id)
    return described


def messages_after(known: TopicPosition | None, described: TopicInfo) -> int:
    """Return the number of messages of a topic after a position, or all of them without one."""
    next_ = {} if known is None else known.next
    return sum(
        max(high - next_.get(number, described.low[number]), 0) for number, high in described.high.items()
    )


def _place(described: TopicInfo, topic: str, known: TopicPosition | None) -> _Place:
    positions = {}
    for number, low in described.low.items():
        high = described.high[number]
        at = low if known is None else known.next.get(number, low)
        if at < low:
            raise RecordsExpired(topic=topic, partition=number, next=at, low=low)
        if at > high:
            raise PositionBeyondEnd(topic=topic, partition=number, next=at, high=high)
        positions[number] = at
    return _Place(topic_id=described.topic_id, positions=positions, beginning=dict(described.low))
