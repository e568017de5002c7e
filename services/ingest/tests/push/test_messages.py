from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from odf_testing.ingest_batches import a_kafka_batch, a_message_batch, commit_messages
from structlog.testing import capture_logs

from odf_common.dataset.open_rejects import (
    HandledRejects,
    MessagePosition,
    Rejects,
    SourceProgress,
    load_handled,
    open_rejects,
    save_handled,
    source_progress,
)
from odf_common.errors import Refused, Unavailable
from odf_common.metadata.events import DisablePushSource, MergeStrategyLedger, ReadStepNdJson, SetVocab
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import ObjectKind
from odf_ingest.commit.committer import position_of
from odf_ingest.errors import PositionChanged, RecordRejected, SourceGone, TooManyRejected, TopicReplaced
from odf_ingest.prepare.batch import NOT_READ, BadRecord, MessageBatch
from odf_ingest.prepare.message_values import TOMBSTONE
from odf_ingest.prepare.plan import Plan, plan_of
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.push.batches.kafka_batch import KafkaBatch
from odf_ingest.source_settings import BadRecords

LEDGER = MergeStrategyLedger(primary_key=("id",))


def message(number: int, day: int = 1) -> bytes:
    return b'{"id":%d,"v":"a","event_time":"2020-01-%02dT00:00:00Z"}' % (number, day)


def test_the_position_is_in_the_block_of_the_records(bench: Any) -> None:
    commit_messages(bench, a_message_batch({0: [message(1), message(2)]}))
    assert position_of(bench.state, "default").topics["topic"].next == {0: 2}
    assert bench.state.source_states["default"].value == (
        '{"topics":{"topic":{"id":"one","next":{"0":2}}},"v":1}'
    )


def test_a_rejected_message_names_its_key_in_another_case(make_bench: Any) -> None:
    bench = make_bench(LEDGER)
    commit_messages(bench, a_message_batch({0: [message(1), message(2).replace(b"id", b"ID")]}))
    assert [letter.reason for letter in bench.coordinator.letters] == [
        "column id: null is not allowed; a value of BIGINT is required; it has ID: case matters"
    ]


def test_a_batch_that_is_in_the_chain_is_not_repeated(bench: Any) -> None:
    commit_messages(bench, a_message_batch({0: [message(1)]}))
    assert not commit_messages(bench, a_message_batch({0: [message(1)]})).is_new
    assert len(bench.rows()) == 1


def test_a_slice_that_was_just_written_is_not_read_by_the_next_batch(make_bench: Any) -> None:
    bench = make_bench(LEDGER)
    commit_messages(bench, a_message_batch({0: [message(1)]}))
    read = bench.record_slice_reads()
    for number in (2, 3):
        commit_messages(bench, a_message_batch({0: [message(number)]}, start={0: number - 1}))
    assert [row["id"] for row in bench.rows()] == [1, 2, 3]
    assert read == []


def test_a_batch_that_does_not_follow_is_not_committed(bench: Any) -> None:
    with pytest.raises(PositionChanged):
        commit_messages(bench, a_message_batch({0: [message(1)]}, start={0: 5}))
    commit_messages(bench, a_message_batch({0: [message(1)]}))
    with pytest.raises(PositionChanged):
        commit_messages(bench, a_message_batch({0: [message(1), message(2)]}))


def test_a_topic_that_was_recreated_is_noticed(bench: Any) -> None:
    commit_messages(bench, a_message_batch({0: [message(1)]}))
    with pytest.raises(TopicReplaced):
        commit_messages(bench, a_message_batch({0: [message(2)]}, start={0: 1}, topic_id="two"))


def test_dead_letters_that_were_lost_are_written_when_their_batch_is_retried(bench: Any) -> None:
    work = a_kafka_batch(bench, a_message_batch({0: [b"junk", message(1)]}))
    bench.coordinator.lost_flushes = 1
    with pytest.raises(Unavailable):
        bench.queues.commit(bench.dataset, work)
    assert (bench.coordinator.letters, work.rejected) == ([], ())

    bench.queues.commit(bench.dataset, work)
    assert [letter.offset for letter in bench.coordinator.letters] == [0]
    assert [row.offset for row in work.rejected] == [0]
    assert position_of(bench.state, "default").rejected == 1


def test_a_batch_that_the_coordinator_refuses_is_not_committed(bench: Any) -> None:
    head = bench.state.head

    def lose_the_slice() -> None:
        names = list(bench.blobs.names(bench.dataset, ObjectKind.DATA))
        bench.blobs.remove(bench.dataset, ObjectKind.DATA, names)

    bench.coordinator.before = [lose_the_slice]
    with pytest.raises(Refused) as refused:
        commit_messages(bench, a_message_batch({0: [message(1)]}))
    assert refused.value.reason == "ObjectMissing"
    assert bench.state.head == head

    assert commit_messages(bench, a_message_batch({0: [message(1)]})).is_new


def test_bad_messages_are_dead_letters_and_their_neighbours_continue(make_bench: Any) -> None:
    bench = make_bench(LEDGER)
    values = [message(1), b"junk", None, b'{"id":2}', b'{"event_time":"2020-01-01T00:00:00Z"}', message(3)]
    commit_messages(bench, a_message_batch({0: values}))
    assert [row["id"] for row in bench.rows()] == [1, 3]
    assert [(letter.offset, letter.reason) for letter in bench.coordinator.letters] == [
        (1, "expected one JSON object"),
        (2, TOMBSTONE),
        (3, "column event_time: null is not allowed; a value of TIMESTAMP(3) is required"),
        (4, "column id: null is not allowed; a value of BIGINT is required"),
    ]
    assert [letter.value for letter in bench.coordinator.letters] == [values[1], b"", values[3], values[4]]


def test_a_batch_of_bad_and_known_messages_moves_the_position_alone(make_bench: Any) -> None:
    bench = make_bench(LEDGER)
    commit_messages(bench, a_message_batch({0: [message(1)]}))
    outcome = commit_messages(bench, a_message_batch({0: [b"junk", message(1)]}, start={0: 1}))
    assert (outcome.count, outcome.is_new) == (0, True)
    assert bench.events()[-1].new_data is None
    assert bench.state.watermark == Timestamp.parse("2020-01-01T00:00:00Z")
    assert position_of(bench.state, "default").topics["topic"].next == {0: 3}


def test_a_batch_is_read_again_after_a_transient_failure(bench: Any) -> None:
    reading: Future[PreparedRecords] = Future()
    reading.set_exception(Unavailable(what="the engine"))
    bench.queues.commit(bench.dataset, a_kafka_batch(bench, a_message_batch({0: [message(1)]}), reading))
    assert [row["id"] for row in bench.rows()] == [1]


def read_first(bench: Any, batch: MessageBatch) -> "tuple[KafkaBatch, list[Plan]]":
    """Return a batch that was read with the present plan, and the plans with which it is read again."""
    plans: list[Plan] = []
    reading: Future[PreparedRecords] = Future()
    usual = bench.preparer.messages
    reading.set_result(usual(plan_of(bench.state, bench.state.push_sources["default"]), batch))

    def noted(plan: Plan, batch: MessageBatch) -> PreparedRecords:
        plans.append(plan)
        read: PreparedRecords = usual(plan, batch)
        return read

    bench.preparer.messages = noted
    return a_kafka_batch(bench, batch, reading), plans


def test_messages_are_read_once_although_others_change_the_chain(bench: Any) -> None:
    work, plans = read_first(bench, a_message_batch({0: [message(1)]}))
    bench.coordinator.before = [lambda: bench.propose(SetVocab(event_time_column="event_time"))]
    bench.queues.commit(bench.dataset, work)
    assert (bench.values("id"), plans) == ([(1,)], [])


@pytest.mark.parametrize("is_late", [False, True])
def test_messages_are_read_again_if_their_source_has_changed(bench: Any, *, is_late: bool) -> None:
    work, plans = read_first(bench, a_message_batch({0: [message(1)]}))
    columns = ("v STRING", "event_time TIMESTAMP")
    source = replace(bench.state.push_sources["default"], read=ReadStepNdJson(ddl_schema=columns))
    if is_late:
        bench.coordinator.before = [lambda: bench.propose(source)]
    else:
        bench.propose(source)
    bench.queues.commit(bench.dataset, work)
    assert [plan.source for plan in plans] == [source]
    assert bench.values("id", "v") == [(None, "a")]


def test_messages_of_a_removed_source_are_not_committed(bench: Any) -> None:
    work, _ = read_first(bench, a_message_batch({0: [message(1)]}))
    bench.propose(DisablePushSource(source_name="default"))
    with pytest.raises(SourceGone):
        bench.queues.commit(bench.dataset, work)


def test_a_topic_of_the_source_that_is_not_being_read_holds_the_watermark(bench: Any) -> None:
    commit_messages(bench, replace(a_message_batch({0: [message(1)]}), others={"other": NOT_READ}))
    assert bench.state.watermark is None


def test_dead_letters_that_cannot_be_reported_fail_nothing(bench: Any) -> None:
    bench.coordinator.lost_flushes = 1
    with capture_logs() as entries:
        bench.rejecting.announce(
            bench.state, "default", [BadRecord(partition=0, offset=0, value=b"", reason="x")]
        )
    noted = [one["event"] for one in entries if one["log_level"] != "debug"]
    assert noted == ["messages rejected", "cannot send progress"]


def test_messages_are_read_again_when_their_timestamps_are_needed(bench: Any) -> None:
    bench.coordinator.before = [lambda: bench.propose(SetVocab(event_time_column="sent"))]
    with pytest.raises(PositionChanged):
        commit_messages(bench, a_message_batch({0: [message(1)]}, sent_ms=None))
    commit_messages(bench, a_message_batch({0: [message(1)]}))
    assert [row["sent"] for row in bench.rows()] == [datetime(2020, 9, 13, 12, 26, 40, tzinfo=UTC)]


def test_with_several_partitions_the_watermark_is_the_least_of_their_greatest_times(bench: Any) -> None:
    commit_messages(bench, a_message_batch({0: [message(1, day=9)], 1: [message(2, day=3)]}))
    assert bench.state.watermark == Timestamp.parse("2020-01-03T00:00:00Z")
    commit_messages(bench, a_message_batch({1: [message(3, day=20)]}, start={1: 1}, partitions=2))
    assert bench.state.watermark == Timestamp.parse("2020-01-09T00:00:00Z")


def test_a_batch_is_no_repeat_because_one_of_its_partitions_has_nothing_new(bench: Any) -> None:
    commit_messages(bench, a_message_batch({0: [message(1)], 1: [message(2)]}))

    assert commit_messages(bench, a_message_batch({0: [message(3)]}, start={0: 1, 1: 1})).is_new

    assert sorted(bench.values("id")) == [(1,), (2,), (3,)]
    assert position_of(bench.state, "default").topics["topic"].next == {0: 2, 1: 1}


def test_a_batch_of_which_one_partition_begins_elsewhere_is_not_committed(bench: Any) -> None:
    commit_messages(bench, a_message_batch({0: [message(1)], 1: [message(2)]}))
    with pytest.raises(PositionChanged):
        commit_messages(bench, a_message_batch({0: [message(3)], 1: [message(4)]}, start={0: 1, 1: 2}))
    assert sorted(bench.values("id")) == [(1,), (2,)]


def test_the_state_of_a_partition_is_kept_while_others_are_read_and_its_time_never_decreases(
    bench: Any,
) -> None:
    commit_messages(bench, a_message_batch({0: [message(1, day=9)], 1: [message(2, day=3)]}))
    commit_messages(bench, a_message_batch({1: [message(3, day=2)]}, start={1: 1}, partitions=2))

    topic = position_of(bench.state, "default").topics["topic"]
    assert topic.next == {0: 1, 1: 2}
    days = {number: Timestamp.from_ms(ms) for number, ms in topic.greatest.items()}
    assert days == {
        0: Timestamp.parse("2020-01-09T00:00:00Z"),
        1: Timestamp.parse("2020-01-03T00:00:00Z"),
    }
    assert bench.state.watermark == Timestamp.parse("2020-01-03T00:00:00Z")


def test_a_partition_that_was_never_read_holds_the_watermark(bench: Any) -> None:
    commit_messages(bench, a_message_batch({0: [message(1, day=20)]}, partitions=2, unread=frozenset((0, 1))))
    assert bench.state.watermark is None
    commit_messages(bench, a_message_batch({1: [message(2, day=3)]}, start={1: 0}, partitions=2))
    assert bench.state.watermark == Timestamp.parse("2020-01-03T00:00:00Z")


def test_an_empty_partition_does_not_hold_the_watermark(bench: Any) -> None:
    commit_messages(bench, a_message_batch({0: [message(1, day=20)]}, partitions=2, unread=frozenset((0,))))
    assert bench.state.watermark == Timestamp.parse("2020-01-20T00:00:00Z")


def test_records_are_numbered_by_event_time_across_partitions(bench: Any) -> None:
    commit_messages(
        bench, a_message_batch({0: [message(1, day=9), message(2, day=2)], 1: [message(3, day=3)]})
    )
    assert bench.values("offset", "id") == [(0, 2), (1, 3), (2, 1)]


JUNK: list[bytes | None] = [message(1), b"junk", b"more junk", message(2)]


def test_rejected_messages_are_counted_with_the_position(bench: Any) -> None:
    commit_messages(bench, a_message_batch({0: JUNK}))
    commit_messages(bench, a_message_batch({0: [b"last"]}, start={0: 4}))
    assert source_progress(bench.state.source_states["default"]).rejected == 3
    waiting = open_rejects(bench.blobs, bench.state, ("default",))
    assert waiting.since is not None
    assert waiting == Rejects(count=3, reason="expected one JSON object", since=waiting.since)
    assert {one.facts["topic-id"] for one in bench.coordinator.letters} == {"one"}


def test_a_batch_that_is_drafted_again_counts_and_buries_its_bad_messages_once(bench: Any) -> None:
    bench.coordinator.before = [lambda: bench.propose(SetVocab(event_time_column="event_time"))]
    work = a_kafka_batch(bench, a_message_batch({0: JUNK}))
    bench.queues.commit(bench.dataset, work)
    assert source_progress(bench.state.source_states["default"]).rejected == 2
    assert (
        [one.offset for one in work.rejected] == [one.offset for one in bench.coordinator.letters] == [1, 2]
    )
    assert len(bench.rows()) == 2


def test_handled_messages_are_not_open(bench: Any) -> None:
    commit_messages(bench, a_message_batch({0: JUNK}))
    handled = HandledRejects().with_positions(
        "default", [MessagePosition(topic_id="one", partition=0, offset=1)]
    )
    again = handled.with_positions("default", [MessagePosition(topic_id="one", partition=0, offset=1)])
    assert again == handled
    save_handled(bench.blobs, bench.dataset, handled)
    assert load_handled(bench.blobs, bench.dataset) == handled
    assert open_rejects(bench.blobs, bench.state, ("default",)).count == 1
    save_handled(
        bench.blobs,
        bench.dataset,
        handled.with_all("default", SourceProgress(rejected=2, ends={("one", 0): 4})),
    )
    assert open_rejects(bench.blobs, bench.state, ("default",)) == Rejects()
    assert load_handled(bench.blobs, bench.dataset).holds(
        MessagePosition(topic_id="one", partition=0, offset=3)
    )


def test_a_source_stops_at_a_batch_of_which_too_much_is_bad(bench: Any) -> None:
    bench.set(max_rejected_share=0.4)
    with pytest.raises(
        TooManyRejected, match=r"^2 of 4 messages .* maxRejectedShare=0\.4 allows; the first: expected"
    ):
        commit_messages(bench, a_message_batch({0: JUNK}))
    assert bench.rows() == []
    commit_messages(bench, a_message_batch({0: [*JUNK, message(3)]}))
    assert [row["id"] for row in bench.rows()] == [1, 2, 3]


def test_a_source_that_stops_at_bad_records_stops_in_each_partition_separately(bench: Any) -> None:
    bench.set(bad_records=BadRecords.STOP)
    values: dict[int, list[bytes | None]] = {0: [message(1), b"junk", message(2)], 1: [message(3)]}
    commit_messages(bench, a_message_batch(values))
    assert sorted(row["id"] for row in bench.rows()) == [1, 3]
    assert position_of(bench.state, "default").topics["topic"].next == {0: 1, 1: 1}
    with pytest.raises(
        RecordRejected, match=r"^message 0/1 of topic topic is not a record: expected one JSON object"
    ):
        commit_messages(bench, a_message_batch({0: [b"junk", message(2)]}, start={0: 1}))
    assert bench.coordinator.letters == []
