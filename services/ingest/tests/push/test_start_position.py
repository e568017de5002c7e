"""Where a source begins: at the chain's position, if the topic still has it, and never past an unread message."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from odf_testing.builders import a_chain, a_dataset, a_push_source, a_schema, a_seed, a_source_state

from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable
from odf_common.metadata.events import AddData
from odf_common.metadata.steps import ReadStepNdJson
from odf_common.ports.bus import TopicInfo
from odf_common.ports.store import CatalogEntry
from odf_ingest.commit.position import SourcePosition, TopicPosition
from odf_ingest.errors import PositionBeyondEnd, RecordsExpired, TopicGone, TopicReplaced
from odf_ingest.message_columns import NO_COLUMNS, ColumnNames, MessageColumns
from odf_ingest.push.batches.source import BatchLimits, PushSource
from odf_ingest.push.lifecycle.source_record import SourceRecord
from odf_ingest.push.lifecycle.start_position import has_moved, messages_after, open_source
from odf_ingest.push.source_topics import Key, SourceTopic, TopicOffsets

TOPIC = "topic"
Offsets = Mapping[int, int]


def state_at(next_: Offsets | None, topic_id: str = "one") -> ChainState:
    """Return the state of a dataset whose source was read up to `next_`; None for one that was never read."""
    chain = a_chain(a_seed(), a_push_source(), a_schema())
    if next_ is not None:
        read = SourcePosition(topics={TOPIC: TopicPosition(topic_id=topic_id, next=next_)})
        chain.add(AddData(new_source_state=a_source_state(read.text())))
    return chain.state


def topic(low: Offsets, high: Offsets) -> TopicInfo:
    return TopicInfo(topic_id="one", low=low, high=high)


def of_source(described: TopicInfo | OdfError) -> SourceTopic:
    return SourceTopic(source=DEFAULT_SOURCE, name=TOPIC, described=described)


def opened(
    state: ChainState, described: TopicInfo | OdfError, columns: MessageColumns = NO_COLUMNS
) -> PushSource:
    entry = CatalogEntry(alias="a", dataset_id=a_dataset(), push_topics={DEFAULT_SOURCE: TOPIC})
    return open_source(
        entry,
        state,
        replace(of_source(described), columns=columns),
        limits=BatchLimits(size=1, delay=0.0),
        record=SourceRecord(key=Key(a_dataset(), DEFAULT_SOURCE), alias="a"),
    )


@pytest.mark.parametrize(
    ("read", "low", "high", "begins"),
    [
        (None, {0: 0}, {0: 0}, {0: 0}),
        (None, {0: 3, 1: 5}, {0: 9, 1: 5}, {0: 3, 1: 5}),
        ({0: 4}, {0: 0}, {0: 9}, {0: 4}),
        ({0: 4}, {0: 4}, {0: 4}, {0: 4}),
        ({0: 4}, {0: 0, 1: 2}, {0: 9, 1: 7}, {0: 4, 1: 2}),  # a partition that was added
    ],
)
def test_each_partition_begins_at_the_position_of_the_chain_or_at_its_first_message(
    read: Offsets | None, low: Offsets, high: Offsets, begins: Offsets
) -> None:
    source = opened(state_at(read), topic(low, high))
    assert (source.offsets.next, source.beginning) == (begins, low)
    assert source.partitions == tuple((TOPIC, number) for number in low)


@pytest.mark.parametrize(
    ("read", "low", "high", "error"),
    [
        ({0: 4}, {0: 5}, {0: 9}, RecordsExpired),
        ({0: 4, 1: 4}, {0: 0, 1: 5}, {0: 9, 1: 9}, RecordsExpired),
        ({0: 4}, {0: 0}, {0: 3}, PositionBeyondEnd),
    ],
)
def test_a_position_that_the_topic_no_longer_has_stops_the_source(
    read: Offsets, low: Offsets, high: Offsets, error: type[OdfError]
) -> None:
    with pytest.raises(error):
        opened(state_at(read), topic(low, high))


def test_a_topic_that_was_recreated_or_deleted_stops_the_source() -> None:
    described = topic({0: 0}, {0: 9})
    with pytest.raises(TopicReplaced) as replaced:
        opened(state_at({0: 4}, "another"), described)
    assert (replaced.value.expected, replaced.value.actual) == ("another", "one")
    with pytest.raises(TopicGone):
        opened(state_at({0: 4}), NotFound(what=TOPIC))


@pytest.mark.parametrize("error", [NotFound(what=TOPIC), Unavailable(what="Kafka")])
def test_a_topic_that_cannot_be_described_yet_is_retried(error: OdfError) -> None:
    with pytest.raises(type(error)):
        opened(state_at(None), error)


def test_a_source_without_the_columns_of_its_messages_stops_before_any_is_read() -> None:
    declared = replace(a_push_source(), read=ReadStepNdJson(ddl_schema=("id BIGINT", "v STRING")))
    state = a_chain(a_seed(), declared).state
    columns = MessageColumns(keys=ColumnNames(["key"]))
    with pytest.raises(InvalidInput, match="column key: is not among the columns of the source"):
        opened(state, topic({0: 0}, {0: 9}), columns)


SEEN = of_source(topic({0: 0}, {0: 9}))
CHOSEN = TopicOffsets(topic_id="one", next={0: 5})


@pytest.mark.parametrize(
    ("read", "now", "is_moved"),
    [
        ({0: 4}, SEEN, False),
        ({0: 4}, replace(SEEN, described=topic({0: 2}, {0: 12})), False),
        ({0: 4}, replace(SEEN, described=topic({0: 0, 1: 0}, {0: 9, 1: 0})), True),
        ({0: 4}, replace(SEEN, described=replace(topic({0: 0}, {0: 9}), topic_id="two")), True),
        ({0: 4}, replace(SEEN, name="other"), True),
        ({0: 4}, replace(SEEN, columns=MessageColumns(timestamp="sent")), True),
        ({0: 4}, replace(SEEN, start=CHOSEN), False),  # the chain has a position already
        (None, replace(SEEN, start=CHOSEN), True),
        ({0: 4}, replace(SEEN, described=NotFound(what=TOPIC)), True),
        ({0: 4}, replace(SEEN, described=Unavailable(what="Kafka")), False),
    ],
)
def test_a_source_is_opened_again_if_what_it_reads_or_how_has_changed(
    read: Offsets | None, now: SourceTopic, *, is_moved: bool
) -> None:
    state = state_at(read)
    assert has_moved(opened(state, SEEN.described), state, now) == is_moved


@pytest.mark.parametrize(
    ("read", "now", "count"),
    [
        (None, of_source(topic({0: 3, 1: 5}, {0: 9, 1: 5})), 6),
        ({0: 4}, of_source(topic({0: 3, 1: 5}, {0: 9, 1: 7})), 7),
        ({0: 4}, of_source(topic({0: 0}, {0: 3})), 0),  # a topic that has lost messages
        (None, replace(SEEN, start=CHOSEN), 4),
        (None, of_source(Unavailable(what="Kafka")), None),
    ],
)
def test_messages_after_a_position_are_counted_over_all_partitions(
    read: Offsets | None, now: SourceTopic, count: int | None
) -> None:
    known = None if read is None else TopicPosition(topic_id="one", next=read)
    assert messages_after(known, now) == count


def test_what_is_left_of_a_topic_that_was_read_to_its_end_is_no_message() -> None:
    described = topic({0: 0, 1: 0}, {0: 4, 1: 9})
    reader = opened(state_at({0: 3, 1: 5}), described)
    committed = TopicPosition(topic_id="one", next={0: 3, 1: 5})
    assert messages_after(committed, of_source(described), reader) == 5
    reader.offsets.reached_end(0, 4)
    assert messages_after(committed, of_source(described), reader) == 4
    reader.in_flight.begun = 1
    assert messages_after(committed, of_source(described), reader) == 5
