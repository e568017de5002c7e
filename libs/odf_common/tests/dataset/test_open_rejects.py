"""Counts of rejected messages, and the notation of their places."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from odf_testing.builders import a_chain, a_dataset, a_polling_source, a_push_source, a_seed
from odf_testing.memory_store import MemoryBlobStore, MemoryRefStore
from structlog.testing import capture_logs

from odf_cli.commands.rejected import location_in
from odf_common.chain.state import DEFAULT_SOURCE, ChainState
from odf_common.dataset.open_rejects import (
    HANDLED,
    KIND,
    POLLED,
    REASONS,
    FirstReject,
    HandledRejects,
    MessagePosition,
    Numbers,
    Rejects,
    SourceProgress,
    current_rejects,
    load_first_rejects,
    load_handled,
    load_reasons,
    note_reason,
    open_rejects,
    rejected_by_source,
    rejecting_sources,
    rows_part,
    save_handled,
    source_progress,
)
from odf_common.errors import InvalidInput, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import SourceState
from odf_common.metadata.scalars import Timestamp


def place(offset: int) -> MessagePosition:
    return MessagePosition(topic_id="id", partition=0, offset=offset)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0/1234", ("", "0/1234")),
        ("00/07", ("", "0/7")),
        ("orders/2/7", ("orders", "2/7")),
        ("a/b/2/7", ("a/b", "2/7")),
        ("row/17", ("", "row/17")),
        ("orders/row/17", ("orders", "row/17")),
    ],
)
def test_a_place_is_read_as_it_is_listed(text: str, expected: tuple[str, str]) -> None:
    read = location_in(text)
    assert (read.source_name, read.location) == expected


@pytest.mark.parametrize(
    "text", ["", "7", "0/", "/1", "0/-1", "0/x", "a/0", "row/", "row/x", "0/" + "9" * 20]
)
def test_an_invalid_place_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="expected PARTITION/OFFSET"):
        location_in(text)


def test_a_state_of_another_kind_has_no_rejects() -> None:
    state = SourceState(source_name="a", kind="other", value='{"topics": {}, "rejected": 3}')
    assert source_progress(state) == source_progress(None) == SourceProgress()
    assert source_progress(replace(state, kind=KIND)).rejected == 3


@pytest.mark.parametrize("kind", ["odf/kafka", "other"])
@pytest.mark.parametrize("value", ["", "null", "[]", "{}", '{"topics": {"t": {}}, "rejected": 3}'])
def test_a_source_state_without_counts_has_no_progress(kind: str, value: str) -> None:
    assert source_progress(SourceState(source_name="a", kind=kind, value=value)) == SourceProgress()


def test_progress_is_by_topic_and_a_topic_that_others_read_too_is_counted_by_source() -> None:
    topics = {"odf.push.a": {"id": "own", "next": {"0": 4}}, "orders": {"id": "shared", "next": {"1": 9}}}
    rows = {"rejected": 2, "retried": [[1, 2]]}
    values = [{"topics": topics}, {"topics": topics, "rejected": 3, "rows": rows}]
    states = [SourceState(source_name="a", kind=KIND, value=json.dumps(value)) for value in values]
    ends = {("own", 0): 4, ("a shared", 1): 9, rows_part("a"): 0}
    assert source_progress(states[0]) == SourceProgress(ends=ends)
    assert source_progress(states[1]) == SourceProgress(
        rejected=3, ends={**ends, rows_part("a"): 2}, retried=Numbers.from_numbers([1])
    )


def test_progress_of_a_polling_source_is_its_number_of_rejects() -> None:
    value = {"rejected": 3, "retried": [[0, 1]]}
    progress = source_progress(SourceState(source_name=DEFAULT_SOURCE, kind=POLLED, value=json.dumps(value)))
    expected = SourceProgress(
        rejected=3, ends={rows_part(DEFAULT_SOURCE): 3}, retried=Numbers.from_numbers([0])
    )
    assert progress == expected


def test_messages_await_decisions_of_push_sources_and_of_the_polling_source() -> None:
    pushed = a_chain(a_seed(), a_push_source("b"), a_push_source("a")).state
    assert sorted(rejecting_sources(pushed)) == ["a", "b"]
    assert rejecting_sources(a_chain(a_seed(), a_polling_source()).state) == (DEFAULT_SOURCE,)


def test_decisions_are_read_as_they_were_written() -> None:
    blobs, dataset = MemoryBlobStore(MemoryRefStore()), a_dataset()
    handled = HandledRejects(
        counts={"a": 3},
        through={("id", 0): 2},
        positions=frozenset({place(7), replace(place(2), partition=1)}),
    )
    save_handled(blobs, dataset, handled)
    found = load_handled(blobs, dataset)
    assert found == handled
    asked = [place(1), place(2), place(7), replace(place(1), partition=1), replace(place(2), partition=1)]
    assert [found.holds(one) for one in asked] == [True, False, True, False, True]


def test_numbers_are_kept_as_intervals() -> None:
    some, more = Numbers.from_numbers([7, 2, 3]), Numbers.from_numbers([4, 9])
    assert (some.intervals, (some | more).intervals) == (((2, 4), (7, 8)), ((2, 5), (7, 8), (9, 10)))
    assert [number for number in range(12) if number in some | more] == [2, 3, 4, 7, 9]
    assert [(some | more).count_from(first) for first in (0, 3, 7, 10)] == [5, 4, 2, 0]
    assert Numbers.parse([[2, 4], [7, 8]]) == some == some | some


@pytest.mark.parametrize(
    "plain", [[[2, 2]], [[3, 2]], [[0, 2], [2, 3]], [[-1, 1]], [[1]], [1], 1, [["a", "b"]]]
)
def test_invalid_intervals_are_refused(plain: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        Numbers.parse(plain)
    state = {"rejected": 3, "retried": plain}
    assert (
        source_progress(SourceState(source_name="a", kind=POLLED, value=json.dumps(state)))
        == SourceProgress()
    )


@pytest.mark.parametrize("damage", ["", "{", "[]", "7"])
def test_damaged_notes_count_as_none(damage: str) -> None:
    blobs, dataset = MemoryBlobStore(MemoryRefStore()), a_dataset()
    blobs.set_note(dataset, HANDLED, damage)
    blobs.set_note(dataset, REASONS, damage)
    assert load_handled(blobs, dataset) == HandledRejects()
    note_reason(blobs, dataset, "a", "why", now=Timestamp(1))
    assert load_reasons(blobs, dataset) == {"a": "why"}
    note_reason(blobs, dataset, "a", None, now=Timestamp(2))
    assert blobs.note(dataset, REASONS) is None


def test_the_time_of_the_first_reject_stays_until_none_is_open() -> None:
    blobs, dataset = MemoryBlobStore(MemoryRefStore()), a_dataset()
    blobs.set_note(dataset, REASONS, '{"a": "of an earlier release"}')
    assert load_first_rejects(blobs, dataset) == {"a": FirstReject(reason="of an earlier release")}
    for reason, now, since in (("b", 5, 5), ("c", 6, 5), (None, 7, None), ("d", 8, 8)):
        note_reason(blobs, dataset, "a", reason, now=Timestamp(now))
        found = load_first_rejects(blobs, dataset).get("a")
        assert found == (None if reason is None else FirstReject(reason=reason, since=Timestamp(since or 0)))


def test_decisions_apply_up_to_the_position_of_the_source() -> None:
    handled = HandledRejects().with_positions("a", [place(1), place(5), place(9)])
    passed = SourceProgress(rejected=4, ends={("id", 0): 6})
    assert handled.as_of("a", passed) == HandledRejects(
        counts={"a": 2}, positions=frozenset({place(1), place(5)})
    )
    assert handled.as_of("a", SourceProgress(rejected=4, ends={("id", 0): 10})) == handled
    all_of_them = handled.with_all("a", SourceProgress(rejected=7, ends={("id", 0): 20}))
    assert all_of_them == HandledRejects(counts={"a": 7}, through={("id", 0): 20})
    assert all_of_them.as_of("a", passed) == HandledRejects(counts={"a": 4}, through={("id", 0): 6})


def test_numbers_within_others_add_nothing() -> None:
    wide, narrow, next_ = (Numbers(intervals=(one,)) for one in ((0, 10), (2, 3), (10, 12)))
    assert wide | narrow == narrow | wide == wide
    assert wide | next_ == Numbers(intervals=((0, 12),))
    assert [(wide | next_).count_from(first) for first in (0, 11, 12, 99)] == [12, 1, 0, 0]


def progress(end: int, rejected: int, *retried: int) -> SourceProgress:
    """Return the progress of a source with rows only, of which some were retried."""
    return SourceProgress(
        rejected=rejected, ends={rows_part("s"): end}, retried=Numbers.from_numbers(retried)
    )


def row(number: int) -> MessagePosition:
    return MessagePosition(topic_id=rows_part("s")[0], partition=0, offset=number)


def test_decisions_on_messages_after_a_reset_position_are_ignored() -> None:
    handled = HandledRejects().with_positions("s", [row(1), row(2)])
    assert handled.open_count("s", progress(3, 3)) == 1
    back = handled.as_of("s", progress(2, 2))
    assert (back.positions, back.counts) == (frozenset({row(1)}), {"s": 1})
    assert handled.as_of("s", progress(3, 3)) == handled


def test_a_mark_on_all_messages_is_reset_with_the_source() -> None:
    handled = HandledRejects().with_all("s", progress(5, 5))
    back = handled.as_of("s", progress(3, 3))
    assert (back.through, back.counts) == ({rows_part("s"): 3}, {"s": 3})
    assert back.open_count("s", progress(4, 4)) == 1


def test_a_mark_on_all_messages_covers_those_before_it_however_many_were_rejected_again() -> None:
    handled = HandledRejects().with_all("s", progress(5, 5))
    assert handled.open_count("s", progress(4, 7)) == 0
    assert handled.open_count("s", progress(6, 7)) == 2


def test_decisions_on_other_topics_and_later_messages_are_kept() -> None:
    other, later = MessagePosition(topic_id="other", partition=0, offset=0), place(5)
    handled = HandledRejects().with_positions("a", [other, place(4), later])
    all_of_one = handled.with_all("a", SourceProgress(rejected=4, ends={("id", 0): 5}))
    assert all_of_one.positions == frozenset({other, later})
    assert all_of_one.as_of("a", SourceProgress(rejected=5, ends={("id", 0): 6})).positions == {other, later}


def test_a_row_that_was_dropped_and_retried_is_counted_once() -> None:
    handled = HandledRejects().with_positions("s", [row(0), row(1)])
    assert handled.open_count("s", progress(4, 4, 1, 2)) == 1
    assert HandledRejects().open_count("s", progress(4, 4, 0)) == 3
    assert HandledRejects().with_all("s", progress(2, 2)).open_count("s", progress(4, 4, 1, 2)) == 1


def rejecting(**rejected: int) -> ChainState:
    """Return the state of a dataset whose sources have rejected that many messages."""
    return replace(
        a_chain().state,
        source_states={
            name: SourceState(
                source_name=name, kind=KIND, value=json.dumps({"topics": {}, "rejected": count})
            )
            for name, count in rejected.items()
        },
    )


class NoNotes(MemoryBlobStore):
    """Cannot read notes."""

    def note(self, dataset: DatasetId, name: str) -> str | None:
        raise Unavailable(what="the store")


def test_only_sources_with_open_rejects_give_the_reason_and_the_time() -> None:
    blobs, state = MemoryBlobStore(), rejecting(handled=2, old=1, late=3, early=1, never=0)
    note_reason(blobs, state.dataset_id, "handled", "stale", now=Timestamp(1))
    note_reason(blobs, state.dataset_id, "late", "second", now=Timestamp(7))
    note_reason(blobs, state.dataset_id, "early", "third", now=Timestamp(5))
    notes = json.loads(blobs.note(state.dataset_id, REASONS) or "")
    blobs.set_note(state.dataset_id, REASONS, json.dumps({**notes, "old": "first"}))
    save_handled(blobs, state.dataset_id, HandledRejects(counts={"handled": 2}))

    assert [*rejected_by_source(state, state.source_states)] == ["handled", "old", "late", "early"]
    found = open_rejects(blobs, state, state.source_states)
    assert found == Rejects(count=5, reason="first", since=Timestamp(5))
    assert open_rejects(blobs, state, ["handled"]) == Rejects()


def test_notes_are_read_only_of_datasets_that_reject_and_may_be_unreadable() -> None:
    blobs = NoNotes()
    assert open_rejects(blobs, rejecting(a=0), ["a"]) == Rejects()
    with pytest.raises(Unavailable):
        open_rejects(blobs, rejecting(a=1), ["a"])
    with capture_logs() as logs:
        assert current_rejects(blobs, rejecting(a=1), ["a"]) == Rejects()
    assert [one["event"] for one in logs] == ["cannot count rejected messages"]


class LockedNotes(MemoryBlobStore):
    """Refuses to read or write notes of a dataset that is not held."""

    is_held = False

    @contextmanager
    def lock_notes(self, dataset: DatasetId) -> Iterator[None]:
        self.is_held = True
        yield
        self.is_held = False

    def note(self, dataset: DatasetId, name: str) -> str | None:
        assert self.is_held
        return super().note(dataset, name)

    def set_note(self, dataset: DatasetId, name: str, text: str | None) -> None:
        assert self.is_held
        super().set_note(dataset, name, text)


def test_a_reason_is_changed_by_one_process_at_a_time() -> None:
    blobs = LockedNotes()
    note_reason(blobs, a_dataset(), "a", "why", now=Timestamp(1))
    assert not blobs.is_held
