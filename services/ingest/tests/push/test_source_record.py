"""The state of a source in each phase, and which message a user may skip."""

from dataclasses import replace

import pytest
from odf_testing.builders import a_dataset

from odf_common.chain.state import DEFAULT_SOURCE
from odf_ingest.errors import SourceStopped
from odf_ingest.prepare.batch import SkipSearch
from odf_ingest.push.batches.source import Trouble, Wait
from odf_ingest.push.lifecycle.source_record import (
    LIVE,
    Event,
    IllegalTransition,
    Phase,
    SourceRecord,
    Span,
    Stop,
)
from odf_ingest.push.source_topics import Key

from .test_source import a_source

KEY = Key(a_dataset(), DEFAULT_SOURCE, "t")
WAIT = Wait(end={0: 5}, tries=2, why="half", first=3)
SEARCH = SkipSearch(count=4, until={0: 9}, why="bad")
TROUBLE = Trouble(since=1.0, why="away")


def a_record(phase: Phase) -> SourceRecord:
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
    assert replace(a_record(Phase.WAITING), stop=a_stop()).skips is None


def test_a_message_is_skipped_only_where_the_source_stopped_or_waits() -> None:
    stopped = replace(a_record(Phase.STOPPED), stop=a_stop(batch=Span(end={0: 9}, count=2, first=0)))
    assert stopped.skips is not None
    assert stopped.skips.until == {0: 9}
    assert a_record(Phase.WAITING).skips == SkipSearch(count=1, until={0: 5}, why="half", half_in=3)
    assert replace(a_record(Phase.WAITING), source=None).skips is None
    assert replace(a_record(Phase.WAITING), source=a_source()).skips is None
    for phase in set(Phase) - {Phase.WAITING}:
        assert a_record(phase).skips is None


@pytest.mark.parametrize("event", [Event.REOPEN, Event.FAIL])
def test_a_source_that_is_opened_again_still_knows_what_it_waits_and_searches_for(event: Event) -> None:
    done = a_record(Phase.READING).move(event)
    assert (done.key, done.alias, done.source) == (KEY, "a", None)
    assert (done.wait, done.search, done.trouble) == (WAIT, SEARCH, TROUBLE)
    longer, other, worse = (
        Wait(end={0: 6}, tries=3, why="half"),
        replace(SEARCH, count=2),
        replace(TROUBLE, tries=2),
    )
    done = a_record(Phase.READING).move(event, wait=longer, search=other, trouble=worse)
    assert (done.wait, done.search, done.trouble, done.last_trouble) == (longer, other, worse, worse)


@pytest.mark.parametrize(
    ("event", "phase"), [(Event.OPENED, Phase.READING), (Event.OPENED_SHORT, Phase.WAITING)]
)
def test_an_open_source_keeps_its_problem_but_neither_wait_nor_search(event: Event, phase: Phase) -> None:
    source = a_source()
    done = replace(a_record(Phase.OPENING), source=None).move(event, source=source)
    assert (done.phase, done.source, done.wait, done.search) == (phase, source, None, None)
    # Opening alone does not prove progress.
    assert (done.trouble, done.last_trouble) == (TROUBLE, TROUBLE)
    assert done.suspect is None


def test_a_source_is_kept_from_one_live_phase_to_the_next() -> None:
    before = a_record(Phase.READING)
    paused = before.move(Event.AHEAD)
    assert paused.phase in LIVE
    assert paused.source is before.source
    assert paused.move(Event.CAUGHT_UP).source is before.source
    assert paused.since > before.since, "it entered this phase now"


def test_a_stopped_source_knows_why_until_it_is_resumed() -> None:
    stop = a_stop()
    done = a_record(Phase.READING).move(Event.STOP, stop=stop)
    assert (done.phase, done.stop, done.source) == (Phase.STOPPED, stop, None)
    assert (done.wait, done.search, done.trouble) == (None, None, None)
    assert done.last_trouble == TROUBLE, "so that the backoff grows"
    resumed = done.move(Event.RESUME, search=SEARCH)
    assert (resumed.phase, resumed.stop, resumed.search) == (Phase.OPENING, None, SEARCH)
    with pytest.raises(IllegalTransition):
        done.move(Event.OPENED)
