"""Why a source is stalled, and since when: short delays are not reported, and the first cause of several counts."""

from types import SimpleNamespace

import pytest
from odf_testing.builders import a_dataset

from odf_common.chain.state import DEFAULT_SOURCE
from odf_common.errors import Unavailable
from odf_ingest.errors import SourceBuildsIndex, SourceQueries, SourceRetries, SourceStopped, SourceWaiting
from odf_ingest.history.indexes import BuildProgress
from odf_ingest.push.batches.source import Trouble, Wait
from odf_ingest.push.lifecycle import start_position
from odf_ingest.push.lifecycle.source_record import Phase, SourceRecord, Stop
from odf_ingest.push.lifecycle.start_position import REPORT_RETRIES_AFTER_SECONDS, STALLED_AFTER_SECONDS
from odf_ingest.push.source_topics import Key

from .test_source import a_source

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
    return start_position.of_source(record, lambda *_: building), start_position.since_of(
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
    why = start_position.of_dataset(
        Trouble.after_try(Unavailable(what="its folder", why="Permission denied"), None)
    )
    assert "Permission denied" in why.text
    assert "delete the dataset" in why.advice()
    assert start_position.of_dataset(Trouble(since=1.0, why="x", advice="do this")).advice() == "do this"
