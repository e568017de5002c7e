"""Rejected messages: found among the dead letters, retried, dropped."""

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import pytest
from odf_testing.ingest_batches import a_message_batch
from odf_testing.letters import StoredLetters

from odf_common.dataset.open_rejects import (
    HANDLED,
    KIND,
    REASONS,
    SourceProgress,
    load_handled,
    load_reasons,
    rows_part,
)
from odf_common.errors import NotFound, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddData, SourceState
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.bus import StoredLetter
from odf_ingest.commit import rejects
from odf_ingest.commit.committer import CommitQueues, Pools
from odf_ingest.commit.position import SourcePosition, TopicPosition, key_of_message
from odf_ingest.commit.rejects import RejectedOfFile
from odf_ingest.control.rejected_messages import MessageLocation, RejectedMessages
from odf_ingest.errors import CannotRetry
from odf_ingest.prepare.batch import BadRecord
from odf_ingest.source_settings import ReservedTopics, SourceSettings, save_settings


@pytest.fixture
def rejected(make_bench: Any) -> Any:
    """A source that has rejected messages 1, 2, 5 of 8, one of them read twice before it was committed."""
    bench = make_bench()
    letters = StoredLetters(bench.coordinator.letters)
    made = bench.rejected_messages(letters)
    for offset, reason in ((1, "first"), (1, "first"), (2, "second"), (5, "third"), (9, "not passed yet")):
        bury(bench, offset, reason)
    commit(bench, position_at(8, rejected=3))
    return made, letters, bench


def position_at(offset: int, topic_id: str = "one", *, rejected: int) -> SourcePosition:
    topic = TopicPosition(topic_id=topic_id, next={0: offset})
    return SourcePosition(topics={"odf.push.a.default": topic}).with_rejected(rejected)


def bury(
    bench: Any,
    offset: int,
    reason: str,
    topic_id: str = "one",
    position: SourcePosition | None = None,
    *,
    start: int = 0,
) -> None:
    batch = a_message_batch({}, {0: start}, topic="odf.push.a.default", topic_id=topic_id)
    bad = BadRecord(partition=0, offset=offset, value=f"value {offset}".encode(), reason=reason)
    bench.rejecting.write_dead_letters(bench.dataset, "default", batch, [bad], position or SourcePosition())


def commit(bench: Any, position: SourcePosition) -> None:
    state = SourceState(source_name="default", kind=KIND, value=position.text())
    bench.propose(AddData(new_source_state=state))


def offsets(letters: Iterable[StoredLetter]) -> list[int]:
    return [letter.offset for letter in letters]


def test_each_open_message_is_found_once_and_none_that_may_still_be_read(rejected: Any) -> None:
    made, _, bench = rejected
    assert offsets(made.open(bench.dataset)) == [1, 2, 5]
    assert made.count(bench.dataset) == 3
    assert load_reasons(bench.blobs, bench.dataset) == {"default": "first"}


def test_dropped_messages_are_no_longer_open_and_the_next_reason_is_reported(rejected: Any) -> None:
    made, _, bench = rejected
    settled = made.drop(bench.dataset, [MessageLocation(source="", location="0/1")])
    assert (settled.count, settled.open) == (1, 2)
    assert offsets(made.open(bench.dataset)) == [2, 5]
    assert load_reasons(bench.blobs, bench.dataset) == {"default": "second"}
    message = bench.coordinator.sent[-1][1]
    progress = message.ingest_progress
    assert message.may_ignore  # by readers of an earlier version
    assert (progress.source_name, progress.rejected, progress.rejected_reason) == ("", 2, "second")
    with pytest.raises(NotFound, match="open rejected message 0/1 does not exist"):
        made.drop(bench.dataset, [MessageLocation(source="", location="0/1")])


def test_all_are_dropped_also_those_whose_letters_were_lost(rejected: Any) -> None:
    made, letters, bench = rejected
    letters.lost = 3
    assert offsets(made.open(bench.dataset)) == [5]
    assert (made.count(bench.dataset), made.drop(bench.dataset, []).open) == (3, 0)
    assert offsets(made.open(bench.dataset)) == []
    assert load_reasons(bench.blobs, bench.dataset) == {}


def test_a_retried_message_is_published_once_unchanged(rejected: Any) -> None:
    made, letters, bench = rejected
    settled = made.retry(bench.dataset, [])
    assert (settled.count, settled.cut, settled.open) == (3, 0, 0)
    assert [one.value for one in letters.again] == [b"value 1", b"value 2", b"value 5"]
    assert made.retry(bench.dataset, []).count == 0
    assert load_handled(bench.blobs, bench.dataset).positions == frozenset(), "one mark in place of many"


def test_a_message_that_could_not_be_published_again_stays_open(
    rejected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, letters, bench = rejected

    def fail(_: object) -> int:
        raise Unavailable(what="Kafka")

    monkeypatch.setattr(letters, "send_again", fail)
    with pytest.raises(Unavailable):
        made.retry(bench.dataset, [])
    assert made.count(bench.dataset) == 3


def test_the_message_that_a_source_reads_next_is_not_rejected_yet(rejected: Any) -> None:
    made, _, bench = rejected
    bury(bench, 8, "read again")
    assert [letter.offset for letter in made.open(bench.dataset)] == [1, 2, 5]


def test_a_letter_that_was_cut_is_not_retried_and_stays_open(rejected: Any) -> None:
    made, letters, bench = rejected
    letters.sizes[2] = 1000
    settled = made.retry(bench.dataset, [])
    assert (settled.count, settled.cut, settled.open) == (2, 1, 1)
    assert offsets(made.open(bench.dataset)) == [2]


def test_a_message_rejected_after_all_were_handled_is_counted(rejected: Any) -> None:
    made, _, bench = rejected
    made.drop(bench.dataset, [])
    commit(bench, position_at(10, rejected=4))
    assert made.count(bench.dataset) == 1
    assert offsets(made.open(bench.dataset)) == [9]


def test_a_later_topic_of_the_same_name_has_separate_messages(rejected: Any) -> None:
    made, _, bench = rejected
    made.drop(bench.dataset, [])
    fresh = position_at(0, "two", rejected=3)
    bury(bench, 1, "of another topic", "two", position=fresh)
    commit(bench, position_at(2, "two", rejected=4))
    assert [letter.reason for letter in made.open(bench.dataset)][-1] == "of another topic"
    assert made.count(bench.dataset) == 1


def test_a_message_rejected_again_after_a_reset_is_open_again(rejected: Any) -> None:
    made, _, bench = rejected
    made.drop(bench.dataset, [])
    before = position_at(2, rejected=1)
    commit(bench, before)  # as a reset would leave it
    assert made.count(bench.dataset) == 0
    bury(bench, 5, "again", position=before, start=2)
    commit(bench, position_at(8, rejected=2))
    assert made.count(bench.dataset) == 1
    assert {letter.offset for letter in made.open(bench.dataset)} == {2, 5}


def test_a_new_message_is_not_hidden_by_decisions_that_a_reset_rolled_back(rejected: Any) -> None:
    made, _, bench = rejected
    made.drop(bench.dataset, [MessageLocation(source="", location=f"0/{at}") for at in (1, 5)])
    start = SourcePosition(topics={"odf.push.a.default": TopicPosition(topic_id="one", next={0: 0})})
    commit(bench, start)
    later = SourcePosition(topics={"odf.push.a.default": TopicPosition(topic_id="one", next={0: 20})})
    commit(bench, later)  # read again, this time without a fault
    bury(bench, 20, "new", position=later, start=20)
    after = SourcePosition(topics={"odf.push.a.default": TopicPosition(topic_id="one", next={0: 21})})
    commit(bench, after.with_rejected(1))
    assert made.count(bench.dataset) == 1


def test_a_message_rejected_again_after_a_reset_to_the_beginning_is_open_again(rejected: Any) -> None:
    made, _, bench = rejected
    made.drop(bench.dataset, [])
    commit(bench, SourcePosition())  # as a reset to before the first batch would leave it
    for offset in (1, 2, 5):
        bury(bench, offset, "again")
    commit(bench, position_at(8, rejected=3))
    assert made.count(bench.dataset) == 3
    assert offsets(made.open(bench.dataset)) == [1, 2, 5]


def test_concurrent_decisions_of_two_instances_are_kept(rejected: Any, monkeypatch: Any) -> None:
    made, letters, bench = rejected
    queues = CommitQueues(bench.blobs, bench.states, cast("Any", None), Pools.with_one_pool(bench.pool))
    other = RejectedMessages(
        queues=queues, blobs=bench.blobs, letters=letters, preparer=bench.preparer, bus=bench.coordinator
    )
    usual, others = bench.blobs.note, list[threading.Thread]()

    def note(dataset: DatasetId, name: str) -> str | None:
        """Have the other instance decide concurrently: between this one's read and write of the decisions."""
        found: str | None = usual(dataset, name)
        if not others and name == HANDLED and bench.queues.queue(dataset).lock.locked():
            wanted = [MessageLocation(source="", location="0/2")]
            others.append(threading.Thread(target=other.drop, args=(dataset, wanted), daemon=True))
            others[0].start()
            others[0].join(0.5)
        return found

    monkeypatch.setattr(bench.blobs, "note", note)
    made.drop(bench.dataset, [MessageLocation(source="", location="0/1")])
    others[0].join()
    assert offsets(made.open(bench.dataset)) == [5]
    assert made.count(bench.dataset) == 1


def test_a_message_that_cannot_be_published_unchanged_is_not_retried(rejected: Any) -> None:
    made, letters, bench = rejected
    columns = SourceSettings.from_plain({"headerColumns": "trace-id:v"})
    save_settings(bench.blobs, bench.dataset, "default", columns)
    with pytest.raises(CannotRetry, match="0/1 cannot be retried: columns are read from its key or headers"):
        made.retry(bench.dataset, [])
    bench.set()
    made = RejectedMessages(
        queues=bench.queues,
        blobs=bench.blobs,
        letters=letters,
        preparer=bench.preparer,
        bus=bench.coordinator,
        is_own=ReservedTopics("north.").is_own,
    )
    with pytest.raises(CannotRetry, match="belongs to others"):
        made.retry(bench.dataset, [])
    assert letters.again == []
    assert made.drop(bench.dataset, []).count == 3


def test_dead_letters_are_flushed_in_parts_and_all_before_the_reason_is_stored(
    make_bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejects, "LETTERS_PER_FLUSH", 2)
    bench = make_bench()
    flush, written = bench.coordinator.flush, []

    def counted() -> None:
        assert load_reasons(bench.blobs, bench.dataset) == {}
        flush()
        written.append(len(bench.coordinator.letters))

    monkeypatch.setattr(bench.coordinator, "flush", counted)
    rows = RejectedOfFile(
        dataset=bench.dataset, source="default", label="file", event_time=Timestamp.from_ms(0)
    )
    bad = [BadRecord(partition=0, offset=at, value=b"", reason=f"line {at + 1}") for at in range(5)]
    bench.rejecting.bury_rows(rows, bad, SourceProgress())
    assert written == [2, 4, 5]
    assert load_reasons(bench.blobs, bench.dataset)["default"] == "file, line 1"


@pytest.mark.parametrize(
    ("rows", "kept"),
    [
        ({}, {}),
        ({"input_format": ""}, {"input-format": "", "push": ""}),
        ({"input_format": "text/csv", "push": "key"}, {"input-format": "text/csv", "push": "key"}),
    ],
)
def test_a_dead_letter_of_a_row_says_how_to_read_it_again(
    bench: Any, rows: dict[str, str], kept: dict[str, str]
) -> None:
    file = RejectedOfFile(
        dataset=bench.dataset, source="default", label="file", event_time=Timestamp.from_ms(7), **rows
    )
    bad = BadRecord(partition=0, offset=0, value=b"head,row", header_bytes=5, reason="line 1")
    bench.rejecting.bury_rows(file, [bad, replace(bad, header_bytes=0)], SourceProgress())
    same = {"dataset": str(bench.dataset), "source": "default", "event-time": "7", **kept}
    facts = [letter.facts for letter in bench.coordinator.letters]
    assert facts == [{**same, "header-bytes": "5"}, same]


def test_letters_of_a_removed_source_hide_no_others(rejected: Any) -> None:
    made, _, bench = rejected
    policy = bench.rejecting
    bad = BadRecord(partition=0, offset=0, value=b"row", reason="line 1")
    for source in ("gone", "default"):
        file = RejectedOfFile(
            dataset=bench.dataset,
            source=source,
            label=source,
            event_time=Timestamp.from_ms(7),
            input_format="",
        )
        policy.bury_rows(file, [bad], SourceProgress())
    topics = {"odf.push.a.default": TopicPosition(topic_id="one", next={0: 8})}
    commit(bench, SourcePosition(topics=topics).with_rejected(3).with_rejected_rows(1))
    assert [(one.topic, one.offset) for one in made.open(bench.dataset)] == [
        *[("odf.push.a.default", at) for at in (1, 2, 5)],
        ("", 0),
    ]


def bury_row(bench: Any, push: str, number: int) -> None:
    file = RejectedOfFile(
        dataset=bench.dataset,
        source="default",
        label="file",
        event_time=Timestamp.from_ms(7),
        input_format="",
        push=push,
    )
    bad = BadRecord(partition=0, offset=0, value=push.encode(), reason="line 1")
    before = SourceProgress(ends={rows_part("default"): number})
    bench.rejecting.bury_rows(file, [bad], before)


@pytest.mark.parametrize("is_first", [True, False])
def test_of_letters_with_one_number_that_of_the_committed_message_or_push_counts(
    bench: Any, is_first: bool
) -> None:
    made = bench.rejected_messages(StoredLetters(bench.coordinator.letters))
    position = SourcePosition()
    for number in range(4):
        topic = TopicPosition(topic_id="one", next={0: number + 1})
        message = key_of_message("odf.push.a.default", 0, number + 1)
        committed, killed = (message, f"{number}") if number % 2 else (f"{number}", message)
        for push in (committed, killed) if is_first else (killed, committed):
            bury_row(bench, push, number)
        position = position.with_rejected_rows(1)
        if number % 2:
            position = position.with_topic("odf.push.a.default", topic)
        else:
            position = position.with_receipt(f"{number}")
        commit(bench, position)
    last = key_of_message("odf.push.a.default", 0, 4).encode()
    first = key_of_message("odf.push.a.default", 0, 2).encode()
    assert [letter.value for letter in made.open(bench.dataset)] == [b"0", first, b"2", last]


def test_messages_of_an_earlier_topic_of_the_same_name_stay_open(rejected: Any) -> None:
    made, _, bench = rejected
    fresh = TopicPosition(topic_id="two", next={0: 0})
    commit(bench, SourcePosition(topics={"odf.push.a.default": fresh}).with_rejected(3))
    assert {1, 2, 5} <= set(offsets(made.open(bench.dataset)))
    commit(bench, SourcePosition().with_rejected(3))
    assert {1, 2, 5} <= set(offsets(made.open(bench.dataset)))


def test_a_letter_without_the_id_of_its_topic_is_of_the_one_that_is_read(rejected: Any) -> None:
    """As written by releases that did not store the id."""
    made, _, bench = rejected
    for offset in (5, 6, 8):
        bury(bench, offset, "old", topic_id="")
    assert offsets(made.open(bench.dataset)) == [1, 2, 5, 6]


def test_no_message_of_a_partition_that_was_not_read_is_open(rejected: Any) -> None:
    made, letters, bench = rejected
    letters.sent.append(replace(letters.sent[0], partition=1, offset=0))
    assert offsets(made.open(bench.dataset)) == [1, 2, 5]


def test_the_reason_of_what_is_open_stays_where_its_letter_was_lost(rejected: Any) -> None:
    made, letters, bench = rejected
    letters.lost = 3
    assert made.drop(bench.dataset, [MessageLocation(source="", location="0/5")]).open == 2
    assert load_reasons(bench.blobs, bench.dataset) == {"default": "first"}


def test_the_first_open_reason_of_each_source_is_stored(rejected: Any) -> None:
    made, _, bench = rejected
    other = replace(bench.state.push_sources["default"], source_name="other")
    bench.propose(other)
    rows = RejectedOfFile(
        dataset=bench.dataset, source="other", label="f", event_time=Timestamp(0), input_format=""
    )
    bad = [BadRecord(partition=0, offset=0, value=b"", reason=f"line {n}") for n in (1, 2)]
    bench.rejecting.bury_rows(rows, bad, SourceProgress())
    text = SourcePosition().with_rejected_rows(2).text()
    bench.propose(AddData(new_source_state=SourceState(source_name="other", kind=KIND, value=text)))

    made.drop(bench.dataset, [MessageLocation(source="other", location="row/0")])

    assert load_reasons(bench.blobs, bench.dataset) == {"default": "first", "other": "f, line 2"}


def test_decisions_and_reasons_are_stored_under_the_datasets_lock_and_then_announced(
    rejected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _, bench = rejected
    set_note, written = bench.blobs.set_note, list[str]()

    def under_lock(dataset: DatasetId, name: str, text: str | None) -> None:
        assert bench.queues.queue(dataset).lock.locked()
        written.append(name)
        set_note(dataset, name, text)

    def flush() -> None:
        written.append(str(bench.coordinator.sent[-1][1].ingest_progress.rejected))

    monkeypatch.setattr(bench.blobs, "set_note", under_lock)
    monkeypatch.setattr(bench.coordinator, "flush", flush)
    made.drop(bench.dataset, [MessageLocation(source="", location="0/1")])
    assert written == [HANDLED, REASONS, "2"]


@pytest.mark.parametrize(("is_skipped", "is_bad"), [(False, False), (True, True)])
def test_a_source_that_stops_at_bad_messages_commits_good_ones_and_the_one_to_skip(
    bench: Any, is_skipped: bool, is_bad: bool
) -> None:
    save_settings(bench.blobs, bench.dataset, "default", SourceSettings.from_plain({"badRecords": "stop"}))
    batch = a_message_batch({}, {0: 0}, end={0: 9}, is_skipped=is_skipped)
    bad = [BadRecord(partition=0, offset=8, value=b"x", reason="no")] if is_bad else []
    policy = bench.rejecting
    assert policy.committable(bench.dataset, "default", batch, bad) is batch
