"""Where to begin to read a push source: what the chain says, checked against the topic as it is."""

from collections.abc import Mapping
from dataclasses import dataclass

from odf_common.errors import NotFound
from odf_common.metadata.chain_state import ChainState
from odf_common.metadata.events import AddPushSource
from odf_common.ports.bus import Topics
from odf_common.ports.store import CatalogEntry
from odf_ingest.commit import position_of
from odf_ingest.errors import PositionBeyondEnd, RecordsLost, TopicGone, TopicReplaced
from odf_ingest.position import TopicPosition
from odf_ingest.prepare import plan_of
from odf_ingest.push.source import Limits, PushSource, Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    topic_id: str
    positions: Mapping[int, int]
    beginning: Mapping[int, int]


def open_source(
    topics: Topics,
    entry: CatalogEntry,
    state: ChainState,
    source: AddPushSource,
    *,
    limits: Limits,
    wait: Wait | None,
) -> PushSource:
    """Return the source at the position that the chain tells.

    Raises `NotFound` while there is no topic yet, and `TopicGone`, `TopicReplaced`, `RecordsLost` or
    `PositionBeyondEnd` where going on would skip or repeat records.
    """
    topic = entry.push_topics[source.source_name]
    known = position_of(state, source.source_name).topics.get(topic)
    place = _place(topics, topic, known)
    return PushSource(
        dataset=state.dataset_id,
        alias=entry.alias,
        plan=plan_of(state, source),
        topic=topic,
        topic_id=place.topic_id,
        positions=place.positions,
        beginning=place.beginning,
        limits=limits,
        wait=wait,
    )


def _place(topics: Topics, topic: str, known: TopicPosition | None) -> _Place:
    try:
        topic_id = topics.topic_id(topic)
    except NotFound as error:
        if known is None:
            raise
        raise TopicGone(topic=topic) from error
    if known is not None and known.topic_id != topic_id:
        raise TopicReplaced(topic=topic, expected=known.topic_id, actual=topic_id)
    positions, beginning = {}, {}
    for number in range(topics.partitions(topic)):
        low, high = topics.watermarks(topic, number)
        beginning[number] = low
        at = low if known is None else known.next.get(number, low)
        if at < low:
            raise RecordsLost(topic=topic, partition=number, next=at, low=low)
        if at > high:
            raise PositionBeyondEnd(topic=topic, partition=number, next=at, high=high)
        positions[number] = at
    return _Place(topic_id=topic_id, positions=positions, beginning=beginning)
