"""The state of a source in each phase: where it begins, which message a user may skip, and why it is stalled."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
from odf_testing.builders import a_chain, a_dataset, a_push_source, a_schema, a_seed, a_source_state

from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable
from odf_common.metadata.events import AddData, ReadStepNdJson
from odf_common.ports.bus import TopicInfo
from odf_common.ports.store import CatalogEntry
from odf_ingest.commit.position import SourcePosition, TopicPosition
from odf_ingest.errors import (
    PositionBeyondEnd,
    RecordsExpired,
    SourceBuildsIndex,
    SourceQueries,
    SourceRetries,
    SourceStopped,
    SourceWaiting,
    TopicGone,
    TopicReplaced,
)
from odf_ingest.history.indexes import BuildProgress
from odf_ingest.message_columns import NO_COLUMNS, ColumnNames, MessageColumns
from odf_ingest.prepare.batch import SkipSearch
from odf_ingest.push.batches.source import BatchLimits, PushSource, Trouble, Wait
from odf_ingest.push.lifecycle import start_position
from odf_ingest.push.lifecycle.source_record import (
    LIVE,
    TRANSITIONS,
    Event,
    IllegalTransition,
    Phase,
    SourceRecord,
    Span,
    Stop,
    after,
)
from odf_ingest.push.lifecycle.start_position import (
    REPORT_RETRIES_AFTER_SECONDS,
    STALLED_AFTER_SECONDS,
    has_moved,
    messages_after,
    open_source,
)
from odf_ingest.push.source_topics import Key, SourceTopic, TopicOffsets

from .test_source import a_source

EVERY = list(product(Phase, Event))


@pytest.mark.parametrize(("phase", "event"), EVERY)
def test_every_event_leads_to_one_phase_or_is_refused(phase: Phase, event: Event) -> None:
    if event in TRANSITIONS[phase]:
        assert after(phase, event) in Phase
    else:
        with pytest.raises(IllegalTransition, match=phase.value):
            after(phase, event)


def test_every_phase_has_a_row_and_every_event_a_column() -> None:
    assert set(TRANSITIONS) == set(Phase)
    assert {event for row in TRANSITIONS.values() for event in row} == set(Event)


def test_every_phase_is_reached_and_can_be_left_but_closed() -> None:
    reached, new = set[Phase](), {Phase.OPENING}
    while new:
        reached |= new
        new = {phase for one in new for phase in TRANSITIONS[one].values()} - reached
    assert reached == set(Phase)
    assert [phase for phase, row in TRANSITIONS.items() if Event.CLOSE not in row] == [Phase.CLOSED]
    assert TRANSITIONS[Phase.CLOSED] == {}


def test_whatever_takes_messages_can_be_reopened_and_stopped() -> None:
    for phase in LIVE:
        assert after(phase, Event.REOPEN) is Phase.OPENING
        assert after(phase, Event.STOP) is Phase.STOPPED


def test_only_a_user_or_the_chain_resumes_a_stopped_source() -> None:
    assert set(TRANSITIONS[Phase.STOPPED]) == {Event.RESUME, Event.CLOSE}


KEY = Key(a_dataset(), DEFAULT_SOURCE, "t")
WAIT = Wait(end={0: 5}, tries=2, why="half", first=3)
SEARCH = SkipSearch(count=4, until={0: 9}, why="bad")
TROUBLE = Trouble(since=1.0, why="away")


def a_full_record(phase: Phase) -> SourceRecord:
    """A record of a source that is in trouble and waits, with everything set that the phase may have."""
    return SourceRecord(
        key=KEY,
        alias="a",
        phase=phase,
        since=7.0,
        source=a_source(wait=WAIT),
        wait=WAIT,
        search=SEARCH,
        trouble=TROUBLE,
        last_trouble=TROUBLE,
        suspect={0: 1},
    )


def a_stop(reason: str = "InvalidInput", batch: Span | None = None) -> Stop:
    why = SourceStopped(text="beyond help", reason=reason, source=DEFAULT_SOURCE, dataset="a")
    return Stop(why=why, chain="chain", batch=batch)


@pytest.mark.parametrize(("count", "first_batch"), [(8, 4), (3, 1), (1, 1)])
def test_the_search_for_a_message_begins_with_half_of_the_batch_that_failed(
    count: int, first_batch: int
) -> None:
    search = a_stop(batch=Span(end={0: 9, 1: 4}, count=count, first=1)).search
    assert search is not None
    assert (search.count, search.until, search.half_in) == (first_batch, {0: 9, 1: 4}, None)
    assert "beyond help" in search.why


def test_half_of_a_correction_is_searched_in_the_partition_of_the_first_message() -> None:
    search = a_stop("IncompleteCorrection", Span(end={0: 9}, count=8, first=2)).search
    assert search is not None
    assert search.half_in == 2


def test_a_source_that_no_message_stopped_has_none_to_skip() -> None:
    assert a_stop().search is None
    # The reason of the stop counts, not the source's earlier wait.
    assert replace(a_full_record(Phase.WAITING), stop=a_stop()).skips is None


def test_a_message_is_skipped_only_where_the_source_stopped_or_waits() -> None:
    stopped = replace(a_full_record(Phase.STOPPED), stop=a_stop(batch=Span(end={0: 9}, count=2, first=0)))
    assert stopped.skips is not None
    assert stopped.skips.until == {0: 9}
    assert a_full_record(Phase.WAITING).skips == SkipSearch(count=1, until={0: 5}, why="half", half_in=3)
    assert replace(a_full_record(Phase.WAITING), source=None).skips is None
    assert replace(a_full_record(Phase.WAITING), source=a_source()).skips is None
    for phase in set(Phase) - {Phase.WAITING}:
        assert a_full_record(phase).skips is None


@pytest.mark.parametrize("event", [Event.REOPEN, Event.FAIL])
def test_a_source_that_is_opened_again_still_knows_what_it_waits_and_searches_for(event: Event) -> None:
    done = a_full_record(Phase.READING).move(event)
    assert (done.key, done.alias, done.source) == (KEY, "a", None)
    assert (done.wait, done.search, done.trouble) == (WAIT, SEARCH, TROUBLE)
    longer, other, worse = (
        Wait(end={0: 6}, tries=3, why="half"),
        replace(SEARCH, count=2),
        replace(TROUBLE, tries=2),
    )
    done = a_full_record(Phase.READING).move(event, wait=longer, search=other, trouble=worse)
    assert (done.wait, done.search, done.trouble, done.last_trouble) == (longer, other, worse, worse)


@pytest.mark.parametrize(
    ("event", "phase"), [(Event.OPENED, Phase.READING), (Event.OPENED_SHORT, Phase.WAITING)]
)
def test_an_open_source_keeps_its_problem_but_neither_wait_nor_search(event: Event, phase: Phase) -> None:
    source = a_source()
    done = replace(a_full_record(Phase.OPENING), source=None).move(event, source=source)
    assert (done.phase, done.source, done.wait, done.search) == (phase, source, None, None)
    # Opening alone does not prove progress.
    assert (done.trouble, done.last_trouble) == (TROUBLE, TROUBLE)
    assert done.suspect is None


def test_a_source_is_kept_from_one_live_phase_to_the_next() -> None:
    before = a_full_record(Phase.READING)
    paused = before.move(Event.AHEAD)
    assert paused.phase in LIVE
    assert paused.source is before.source
    assert paused.move(Event.CAUGHT_UP).source is before.source
    assert paused.since > before.since, "it entered this phase now"


def test_a_stopped_source_knows_why_until_it_is_resumed() -> None:
    stop = a_stop()
    done = a_full_record(Phase.READING).move(Event.STOP, stop=stop)
    assert (done.phase, done.stop, done.source) == (Phase.STOPPED, stop, None)
    assert (done.wait, done.search, done.trouble) == (None, None, None)
    assert done.last_trouble == TROUBLE, "so that the backoff grows"
    resumed = done.move(Event.RESUME, search=SEARCH)
    assert (resumed.phase, resumed.stop, resumed.search) == (Phase.OPENING, None, SEARCH)
    with pytest.raises(IllegalTransition):
        done.move(Event.OPENED)


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


NOW = 5000.0
RECENTLY, LONG_AGO = NOW - REPORT_RETRIES_AFTER_SECONDS, NOW - REPORT_RETRIES_AFTER_SECONDS - 1
NOT_LONG, LONG = NOW - STALLED_AFTER_SECONDS, NOW - STALLED_AFTER_SECONDS - 1


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_position, "time", SimpleNamespace(time=lambda: NOW))


def a_record(**changes: object) -> SourceRecord:
    key = Key(a_dataset(), DEFAULT_SOURCE)
    usual = {"key": key, "alias": "a", "phase": Phase.READING, "since": 7.0, "source": a_source()}
    return SourceRecord(**(usual | changes))  # type: ignore[arg-type]


def seen(record: SourceRecord, building: BuildProgress | None = None) -> tuple[object, float]:
    """Return why a source is stalled, and since when."""
    return start_position.stall_of_source(record, lambda *_: building), start_position.since_of(
        record, lambda *_: building
    )


def test_a_source_that_is_read_is_not_stalled() -> None:
    assert seen(a_record()) == (None, 7.0)
    assert seen(a_record(phase=Phase.OPENING, source=None)) == (None, 7.0)


def test_a_stopped_source_is_stopped_whatever_else_is_wrong() -> None:
    why = SourceStopped(text="beyond help", reason="InvalidInput", source=DEFAULT_SOURCE, dataset="a")
    record = a_record(stop=Stop(why=why, chain=None), trouble=Trouble(since=LONG_AGO, why="away"))
    assert seen(record)[0] is why


def test_a_source_that_lacks_the_rest_of_a_correction_waits_once_it_has_read_its_half_again() -> None:
    source = a_source(wait=Wait(end={0: 1}, tries=1, why="half"))
    record = a_record(source=source, trouble=Trouble(since=LONG_AGO, why="away"))
    assert not isinstance(seen(record)[0], SourceWaiting)
    source.offsets.read(0, 0)
    assert isinstance(seen(record)[0], SourceWaiting)


def test_retries_are_reported_after_a_while() -> None:
    assert seen(a_record(trouble=Trouble(since=RECENTLY, why="away"))) == (None, RECENTLY)
    why, since = seen(
        a_record(phase=Phase.RETRYING, source=None, trouble=Trouble(since=LONG_AGO, why="away"))
    )
    assert isinstance(why, SourceRetries)
    assert (why.source, why.text, since) == (DEFAULT_SOURCE, "away", LONG_AGO)


def test_a_query_is_reported_after_a_while_and_before_what_waits_for_it() -> None:
    record = a_record()
    assert record.source is not None
    batches = record.source.in_flight
    batches.committing_since = NOT_LONG - 3
    batches.querying_since = NOT_LONG
    assert isinstance(seen(record)[0], SourceRetries)
    batches.querying_since = LONG
    why, since = seen(record)
    assert isinstance(why, SourceQueries)
    assert since == LONG


def test_an_index_that_is_built_is_reported_after_a_while() -> None:
    assert seen(a_record(), BuildProgress(since=RECENTLY, done=1, total=4)) == (None, 7.0)
    why, since = seen(a_record(), BuildProgress(since=LONG_AGO, done=1, total=4))
    assert isinstance(why, SourceBuildsIndex)
    assert (why.done, why.total, since) == (1, 4, LONG_AGO)


@pytest.mark.parametrize(
    ("trouble", "text"), [(None, "has not committed"), (Trouble(since=1.0, why="the lock is held"), "lock")]
)
def test_a_commit_is_reported_after_a_while_with_its_problem(trouble: Trouble | None, text: str) -> None:
    record = a_record()
    assert record.source is not None
    batches = record.source.in_flight
    batches.committing_since, batches.trouble = NOT_LONG, trouble
    assert seen(record) == (None, 7.0)
    batches.committing_since = LONG
    why, since = seen(record)
    assert isinstance(why, SourceRetries)
    assert text in why.text
    assert since == LONG


def test_a_dataset_that_cannot_be_read_has_advice_in_any_case() -> None:
    why = start_position.stall_of_dataset(
        Trouble.after_try(Unavailable(what="its folder", why="Permission denied"), None)
    )
    assert "Permission denied" in why.text
    assert "delete the dataset" in why.advice()
    assert (
        start_position.stall_of_dataset(Trouble(since=1.0, why="x", advice="do this")).advice() == "do this"
    )
