import errno
import itertools
import threading
import time
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
import structlog
from odf_testing.builders import a_dataset
from structlog.testing import capture_logs

from odf_common.adapters.kafka.records import PollResult
from odf_common.errors import Damaged, Refused, StorageUnavailable, Unavailable
from odf_common.metadata.events import (
    AddPushSource,
    DisablePushSource,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategySnapshot,
    ReadStepNdJson,
    SetVocab,
)
from odf_common.metadata.scalars import CLOCK_TOLERANCE_MS
from odf_ingest import metrics
from odf_ingest.commit.committer import position_of
from odf_ingest.errors import PositionChanged, SourceStopped
from odf_ingest.history.indexes import IndexBehind
from odf_ingest.push import reader
from odf_ingest.push.batches.source import PartitionOffsets, PushSource
from odf_ingest.push.lifecycle import inspector, start_position
from odf_ingest.push.source_topics import Key
from odf_ingest.source_settings import BadRecords

from .in_memory_broker import LEDGER, TOPIC, Broker, Running, message, running


def test_messages_in_the_topic_are_committed_in_order_and_once(bench: Any, broker: Broker) -> None:
    broker.logs[TOPIC, 0] += [message(number) for number in range(500)]
    with running(bench, broker) as node:
        node.drain()
        node.ingest([message(number) for number in range(500, 800)])
        assert node.ids == list(range(800))
    assert position_of(bench.state, "default").topics[TOPIC].next == {0: 800}


def test_a_restart_continues_at_the_position_of_the_chain(bench: Any, broker: Broker) -> None:
    for start in range(0, 300, 100):
        broker.logs[TOPIC, 0] += [message(number) for number in range(start, start + 100)]
        with running(bench, broker) as node:
            node.drain()
    assert [row["id"] for row in bench.rows()] == list(range(300))


def test_a_reader_replaces_its_clients(broker: Broker) -> None:
    reader.PushReader(broker, 1000).renew()
    assert broker.renewed == 1


def sources_of_one_topic(count: int) -> list[PushSource]:
    return [
        cast(
            "PushSource",
            SimpleNamespace(
                partitions=((TOPIC, 0),),
                offsets=PartitionOffsets({0: 7}),
                topic=TOPIC,
                key=number,
                dataset=a_dataset(),
                alias="a",
                name=number,
                log=structlog.get_logger(),
            ),
        )
        for number in range(count)
    ]


def test_a_further_source_of_a_topic_is_not_read_without_another_client(broker: Broker) -> None:
    alone = reader.PushReader(broker, 1000)
    with pytest.raises(Unavailable, match="another source reads the topic"):
        alone.open(sources_of_one_topic(2))
    assert (alone.sources, broker.at) == ({}, {})


def test_an_idle_reader_polls_less_often(make_bench: Any, broker: Broker) -> None:
    with patch.object(reader, "BUSY_SECONDS", 0.0), running(make_bench(), broker) as node:
        node.wait(lambda: reader.IDLE_POLL_SECONDS in broker.waits)


@pytest.mark.parametrize("happens", ["a message", "a request"])
def test_a_reader_polls_often_after(node: Running, broker: Broker, happens: str) -> None:
    node.wait(lambda: bool(node.reader.sources))
    with patch.object(inspector, "PATROL_SECONDS", 60):
        node.wait(lambda: broker.waits[-1] == reader.IDLE_POLL_SECONDS)
        if happens == "a message":
            broker.logs[TOPIC, 0].append(message(1))
        else:
            node.ask(lambda: None)
        node.wait(lambda: broker.waits[-1] == reader.POLL_SECONDS)


def test_messages_that_a_source_cannot_buffer_yet_stay_in_the_client(make_bench: Any, broker: Broker) -> None:
    bench, may_commit = make_bench(), threading.Event()
    broker.logs[TOPIC, 0] += [message(number) for number in range(10_000, 20_000)]
    bench.coordinator.before = [lambda: may_commit.wait(10)]

    def is_resting() -> bool:
        before = broker.at.get((TOPIC, 0), 0)
        time.sleep(0.2)
        return 0 < before == broker.at[TOPIC, 0]

    with running(bench, broker, size=10_000) as node:
        node.wait(is_resting)
        assert broker.at[TOPIC, 0] < 3000
        may_commit.set()
        node.drain()
    assert len(bench.rows()) == 10_000


def test_a_poll_waits_until_a_batch_is_due(make_bench: Any, broker: Broker) -> None:
    numbers = itertools.count()

    def has_waited() -> bool:
        broker.logs[TOPIC, 0].append(message(next(numbers)))
        return any(reader.DUE_POLL_SECONDS < wait < reader.POLL_SECONDS for wait in broker.waits)

    with running(make_bench(), broker) as node:
        node.wait(has_waited)


def test_another_writer_of_the_chain_is_harmless(make_bench: Any, broker: Broker) -> None:
    bench = make_bench(LEDGER)
    bench.coordinator.before = [lambda: bench.propose(SetVocab(event_time_column="event_time"))] * 1
    with running(bench, broker) as node:
        node.ingest([message(number) for number in range(100)])
        assert node.ids == list(range(100))


def test_a_fault_of_the_partition_triggers_an_inspection(node: Running, broker: Broker) -> None:
    node.ingest([message(1)])
    broker.faults = {(TOPIC, 0): "hiccup"}
    node.wait(lambda: not broker.faults)
    broker.logs[TOPIC, 0] += [message(2)]
    node.wait(lambda: node.ids == [1, 2])


def test_a_fault_of_a_partition_that_is_no_longer_read_disturbs_no_other(
    node: Running, broker: Broker
) -> None:
    broker.faults = {("gone", 0): "hiccup"}
    broker.logs[TOPIC, 0] += [message(1)]
    node.wait(lambda: not broker.faults and node.ids == [1])


def test_a_snapshot_that_contradicts_itself_is_a_dead_letter(make_bench: Any, broker: Broker) -> None:
    bench = make_bench(MergeStrategySnapshot(primary_key=("id",)))
    broker.logs[TOPIC, 0] += [message(1) + b"\n" + message(1), message(2)]
    with running(bench, broker) as node:
        node.drain()
        assert node.ids == [2]
    # A batch that is read again repeats its dead letters.
    assert {letter.offset for letter in bench.coordinator.letters} == {0}
    assert all("the key id = 1 in 2 records" in letter.reason for letter in bench.coordinator.letters)


def test_records_without_an_operation_are_dead_letters(make_bench: Any, broker: Broker) -> None:
    step = ReadStepNdJson(ddl_schema=("id BIGINT", "op INT"))
    bench = make_bench(MergeStrategyChangelogStream(primary_key=("id",)), step)
    broker.logs[TOPIC, 0] += [b'{"id":1,"op":0}', b'{"id":2,"op":9}', b'{"id":3}']
    with running(bench, broker) as node:
        node.drain()
        assert node.ids == [1]
    assert [(letter.offset, letter.reason) for letter in bench.coordinator.letters] == [
        (1, "column op: 9 is not an operation; 0 is +A, 1 is -R, 2 is -C, 3 is +C"),
        (2, "has no operation in op"),
    ]


def test_an_incompatible_schema_stops_the_source_with_the_reason(
    node: Running, bench: Any, broker: Broker
) -> None:
    broker.logs[TOPIC, 0] += [message(1)]
    node.drain()
    other = AddPushSource(
        source_name="default",
        read=ReadStepNdJson(ddl_schema=("id STRING", "event_time TIMESTAMP")),
        merge=MergeStrategyAppend(),
    )
    bench.propose(other)
    broker.logs[TOPIC, 0] += [b'{"id":"x","event_time":"2020-01-01T00:00:00Z"}']
    with pytest.raises(SourceStopped, match="column"):
        node.drain()
    assert node.ids == [1]


def test_a_disabled_source_is_closed(node: Running, bench: Any) -> None:
    node.wait(lambda: bool(node.reader.sources))
    bench.propose(DisablePushSource(source_name="default"))
    node.ask(lambda: node.owned.inspect(bench.dataset, "a"))
    node.wait(lambda: not node.reader.sources)


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (StorageUnavailable(file="datasets/fed01/data/x", why="the disk is full"), "the disk is full"),
        (Damaged(file="datasets/fed01/data/x", why="Permission denied"), "Permission denied"),
        (Refused(reason="StorageUnavailable", text="from the coordinator"), "from the coordinator"),
        (Refused(reason="LockHeld", text="from the coordinator"), "from the coordinator"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    ],
    ids=["full", "damaged", "refused", "locked", "raw"],
)
def test_a_source_whose_files_are_unusable_for_a_while_says_so_once_and_recovers(
    bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch, fault: Exception, why: str
) -> None:
    faults = [fault, fault]
    commit = bench.queues.committer.commit

    def full(*arguments: object) -> object:
        if faults:
            raise faults.pop()
        return commit(*arguments)

    monkeypatch.setattr(bench.queues.committer, "commit", full)
    with capture_logs() as logs, running(bench, broker) as node:
        broker.logs[TOPIC, 0] += [message(1), message(2)]
        node.wait(lambda: node.ids == [1, 2])
        node.wait(lambda: not node.owned.stuck())
    assert faults == []
    (entry,) = (one for one in logs if one["event"] == "source cannot be read yet")
    assert why in entry["why"]


def test_a_request_that_meets_an_error_of_the_process_is_repeated_and_reading_continues(
    make_bench: Any, broker: Broker
) -> None:
    faults, done = [OSError(errno.EMFILE, "Too many open files")], threading.Event()

    def request() -> None:
        if faults:
            raise faults.pop()
        done.set()

    with running(make_bench(), broker) as node:
        node.reader.request(request)
        assert done.wait(10)
        broker.logs[TOPIC, 0] += [message(1)]
        node.wait(lambda: node.ids == [1])


def test_a_source_that_stops_at_bad_records_commits_the_records_before(bench: Any, broker: Broker) -> None:
    bench.set(bad_records=BadRecords.STOP)
    broker.logs[TOPIC, 0] += [message(1), message(2), b"junk", message(3)]
    with running(bench, broker) as node:
        with pytest.raises(SourceStopped, match=r"message 0/2 of .*: expected one JSON object"):
            node.drain()
        assert node.ids == [1, 2]
        assert bench.coordinator.letters == []
    bench.set()
    with running(bench, broker) as node:
        node.drain()
        assert node.ids == [1, 2, 3]


def test_progress_reports_how_many_messages_wait_for_a_decision_and_metrics_count_them(
    bench: Any, broker: Broker
) -> None:
    before = metrics.BAD.labels("a", "default")._value.get()
    broker.logs[TOPIC, 0] += [message(1), b"junk", b""]
    with running(bench, broker) as node:
        node.drain()
        node.wait(lambda: metrics.BAD.labels("a", "default")._value.get() == before + 2)
        node.wait(lambda: any(one.ingest_progress.rejected == 2 for _, one in bench.coordinator.sent))
    progress = [one.ingest_progress for _, one in bench.coordinator.sent if one.HasField("ingest_progress")]
    assert progress[-1].rejected_reason == "expected one JSON object"
    assert max(one.elapsed_ms for one in progress) < 60_000


def test_progress_is_sent_at_once(make_bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the next message, which may arrive tomorrow."""
    bench = make_bench()
    flush, sent_at_flush = bench.coordinator.flush, list[int]()

    def noted(timeout: float = 10.0) -> None:
        sent_at_flush.append(len(bench.coordinator.sent))
        flush(timeout)

    monkeypatch.setattr(bench.coordinator, "flush", noted)
    broker.logs[TOPIC, 0] += [message(1)]
    with running(bench, broker) as node:
        node.drain()
        node.wait(lambda: any(one.ingest_progress.records == 1 for _, one in bench.coordinator.sent))
    progress = [
        place for place, (_, one) in enumerate(bench.coordinator.sent) if one.ingest_progress.records == 1
    ]
    assert sent_at_flush[-1] > progress[-1]


def test_large_messages_are_read_in_small_numbers(make_bench: Any, broker: Broker) -> None:
    counts: list[int] = []
    take = broker.take

    def counted(count: int, timeout: float) -> PollResult:
        counts.append(count)
        return take(count, timeout)

    broker.take = counted  # type: ignore[method-assign]
    text = "x" * 10_000
    broker.logs[TOPIC, 0] += [b'{"id":%d,"v":"%s"}' % (number, text.encode()) for number in range(200)]
    with running(make_bench(), broker, size=100_000) as node:
        node.drain()
    several = [count for count in counts if count > 1]  # one, if it only waits for the next
    assert several[-1] in {9, 10}, "a slice of them"


@pytest.mark.parametrize("error", [IndexBehind(), PositionChanged(source="default")])
def test_messages_whose_batch_was_started_too_early_are_read_again(
    bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    errors, commit = [error], bench.queues.commit_indexed

    def failing(*args: object) -> object:
        if errors:
            raise errors.pop()
        return commit(*args)

    monkeypatch.setattr(bench.queues, "commit_indexed", failing)
    broker.logs[TOPIC, 0] += [message(1), message(2)]
    with running(bench, broker) as node:
        node.drain()
        assert node.ids == [1, 2]


def test_a_bug_in_a_commit_stops_the_source_and_is_reported(
    bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> object:
        raise ZeroDivisionError

    monkeypatch.setattr(bench.queues, "commit_indexed", failing)
    broker.logs[TOPIC, 0].append(message(1))
    with capture_logs() as logs, running(bench, broker) as node:
        node.wait(lambda: node.owned.reason(Key(bench.dataset, "default")) is not None)
    assert "source stopped by a bug" in [line["event"] for line in logs]


def test_a_commit_that_succeeded_although_it_raised_is_no_problem_once_the_topic_is_read_to_its_end(
    bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, commit = [StorageUnavailable(file="data/x", why="the disk is full")], bench.queues.commit_indexed

    def committed(*args: object) -> object:
        outcome = commit(*args)
        if errors:
            raise errors.pop()
        return outcome

    monkeypatch.setattr(bench.queues, "commit_indexed", committed)
    broker.logs[TOPIC, 0] += [message(1), message(2)]
    with running(bench, broker) as node:
        node.wait(lambda: not errors and node.ids == [1, 2])
        node.wait(lambda: trouble(node) is None)


def test_a_source_waits_while_the_clock_is_behind_and_says_so(bench: Any, broker: Broker) -> None:
    broker.logs[TOPIC, 0] += [message(1)]
    with running(bench, broker) as node, patch.object(start_position, "REPORT_RETRIES_AFTER_SECONDS", 0.0):
        node.drain()
        bench.clock.ms -= 2 * CLOCK_TOLERANCE_MS
        broker.logs[TOPIC, 0] += [message(2)]
        node.wait(lambda: bool(node.owned.stuck()))
        ((key, why),) = node.owned.stuck().items()
        assert (key.source, why.reason) == ("default", "ClockBehind")
        assert "the last block is from 2027-" in str(why)
        assert "if the clock is wrong, set it: commits then continue automatically" in why.advice()
        assert node.ids == [1]
        bench.clock.ms += 2 * CLOCK_TOLERANCE_MS
        node.wait(lambda: node.ids == [1, 2])
        node.wait(lambda: not node.owned.stuck())


def trouble(node: Running) -> object:
    record = node.owned.record(Key(node.bench.dataset, "default"))
    assert record is not None
    return record.trouble
