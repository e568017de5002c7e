"""Batches of messages: cut before one of them, computed by the SQL of the source (`preprocess`), or each a snapshot."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from odf_testing.builders import a_query
from odf_testing.ingest_batches import commit_file

from odf_common.errors import InvalidInput, StorageUnavailable
from odf_common.metadata.events import (
    MergeStrategy,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    ReadStepJson,
    Transform,
)
from odf_common.ports.engine import IsWanted
from odf_ingest.commit.committer import position_of
from odf_ingest.errors import (
    AwaitingCorrection,
    PositionChanged,
    RegistryUnavailable,
    SourceGone,
    SourceStopped,
    TopicGone,
    TopicReplaced,
)
from odf_ingest.prepare.batch import MessageBatch, Part, SkipSearch
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.push.batches.batch_worker import _is_to_be_skipped
from odf_ingest.push.source_topics import Key
from odf_ingest.read.message_buffer import MessageBuffer
from odf_ingest.source_settings import EmptySnapshot

from .in_memory_broker import TOPIC, Broker, message, running
from .test_control import resume, stop


def a_batch(offsets: Mapping[int, Sequence[int]]) -> MessageBatch:
    return MessageBatch(
        topic="topic",
        topic_id="one",
        partitions=len(offsets),
        parts=tuple(
            Part(
                partition=number, values=MessageBuffer.pack([b"x"] * len(some)), offsets=some, timestamps=None
            )
            for number, some in offsets.items()
        ),
        start={number: some[0] for number, some in offsets.items()},
        end={number: some[-1] + 1 for number, some in offsets.items()},
        beginning=dict.fromkeys(offsets, 0),
        begun=0.0,
        size=sum(map(len, offsets.values())),
        unread=frozenset({9}),
    )


BATCH = a_batch({0: [0, 2, 5], 1: [10, 11]})


def kept(batch: MessageBatch | None) -> dict[int, list[int]]:
    return {} if batch is None else {part.partition: list(part.offsets) for part in batch.parts}


def test_a_batch_is_cut_before_a_record_which_is_counted_without_bad_messages() -> None:
    bad = {(0, 2)}
    assert kept(BATCH.before(0, bad)) == {}
    assert kept(BATCH.before(1, bad)) == {0: [0, 2]}
    assert kept(BATCH.before(2, bad)) == {0: [0, 2, 5]}
    assert kept(BATCH.before(3, bad)) == {0: [0, 2, 5], 1: [10]}
    assert kept(BATCH.before(4, bad)) == {0: [0, 2, 5], 1: [10, 11]}


def test_messages_cut_off_are_unread_and_the_position_follows_the_last_one_kept() -> None:
    cut = BATCH.before(1, {(0, 2)})
    assert cut is not None
    assert (cut.start, cut.end, cut.size) == (BATCH.start, {0: 3, 1: 10}, 2)
    assert cut.unread == {0, 1, 9}


def test_a_batch_is_cut_in_each_partition_before_its_first_bad_message() -> None:
    cut = BATCH.before_bad({(0, 5), (0, 2), (1, 11)})
    assert cut is not None
    assert kept(cut) == {0: [0], 1: [10]}
    assert cut.end == {0: 1, 1: 11}
    assert cut.unread == {0, 1, 9}
    assert kept(BATCH.before_bad({(0, 0), (1, 10)})) == {}


def test_a_search_is_over_once_every_partition_is_past_it() -> None:
    search = SkipSearch(count=8, until={0: 5, 1: 7}, why="x")
    assert not search.is_over({0: 5, 1: 6})
    assert search.is_over({0: 5, 1: 7, 2: 0})
    assert [search.halve(count).count for count in (8, 3, 1)] == [4, 1, 1]
    assert search.double(4).count == 8


def test_the_first_result_of_a_search_is_kept() -> None:
    search = SkipSearch(count=1, until={}, why="x")
    search.finish((0, 3))
    search.finish(None)
    assert search.found.result() == (0, 3)


SEARCH = SkipSearch(count=1, until={1: 9, 2: 9}, why="bad", half_in=1)
ALONE = replace(a_batch({1: [4]}), search=SEARCH)
HALF = AwaitingCorrection(end={1: 5}, tries=1, why="half")


@pytest.mark.parametrize(
    "error", [InvalidInput(text="bad"), TypeError("a bug"), HALF], ids=lambda error: type(error).__name__
)
def test_a_message_that_fails_alone_is_skipped_while_one_is_searched(error: Exception) -> None:
    assert _is_to_be_skipped(ALONE, error)
    assert not _is_to_be_skipped(replace(ALONE, search=None), error)
    assert not _is_to_be_skipped(replace(a_batch({1: [4, 5]}), search=SEARCH), error)
    assert not _is_to_be_skipped(replace(a_batch({1: [4], 2: [4]}), search=SEARCH), error)


def test_a_message_after_the_search_is_not_skipped() -> None:
    assert _is_to_be_skipped(replace(a_batch({2: [8]}), search=SEARCH), InvalidInput(text="bad"))
    for place in ({2: [9]}, {3: [0]}):
        assert not _is_to_be_skipped(replace(a_batch(place), search=SEARCH), InvalidInput(text="bad"))


def test_half_of_a_correction_is_skipped_in_the_partition_of_the_search_only() -> None:
    assert not _is_to_be_skipped(replace(a_batch({2: [4]}), search=SEARCH), HALF)
    assert _is_to_be_skipped(replace(a_batch({2: [4]}), search=SEARCH), InvalidInput(text="bad"))


@pytest.mark.parametrize(
    "error",
    [
        PositionChanged(source="default"),
        SourceGone.for_source("default"),
        TopicGone(topic="topic"),
        TopicReplaced(topic="topic", expected="one", actual="two"),
        StorageUnavailable(why="the disk is full"),
        RegistryUnavailable(what="http://registry", why="no answer"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_no_message_is_skipped_for_an_unrelated_fault(error: Exception) -> None:
    assert not _is_to_be_skipped(ALONE, error)


LEDGER = MergeStrategyLedger(primary_key=("id",))
Query = Callable[[pa.Table], pa.Table | None]


class Queries:
    """Port `Preprocessor` whose SQL is a function; returns None if no record is left, as the engine does."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def run(self, transform: Transform, records: pa.Table, is_wanted: IsWanted) -> pa.Table | None:
        output = self._query(records)
        return output if output is not None and len(output) else None


def a_bench(make_bench: Any, query: Query, merge: MergeStrategy | None = LEDGER) -> Any:
    bench = make_bench(merge)
    bench.propose(replace(bench.state.push_sources["default"], preprocess=a_query()))
    bench.preparer = Preparer(Queries(query))  # type: ignore[arg-type]
    return bench


def reasons(bench: Any) -> dict[int, str]:
    return {letter.offset: letter.reason for letter in bench.coordinator.letters}


def null_where(name: str, ident: int) -> Query:
    """Return a query that sets a column to null in the record with this id."""

    def query(records: pa.Table) -> pa.Table:
        column = records.column(name)
        nulls = pa.nulls(len(records), column.type)
        values = pc.if_else(pc.equal(records.column("id"), ident), nulls, column)
        return records.set_column(records.column_names.index(name), name, values)

    return query


@pytest.mark.parametrize("name", ["id", "event_time"])
def test_a_record_of_which_the_query_makes_one_without_a_required_value_is_a_dead_letter(
    make_bench: Any, broker: Broker, name: str
) -> None:
    bench = a_bench(make_bench, null_where(name, 2))
    broker.logs[TOPIC, 0] += [message(number) for number in range(4)]
    with running(bench, broker) as node:
        node.drain()
        assert node.ids == [0, 1, 3]
    assert list(reasons(bench)) == [2]
    assert reasons(bench)[2].startswith(f"record 1 of the query's output: column {name}: null is not allowed")


def test_records_for_which_the_query_fails_are_dead_letters(make_bench: Any, broker: Broker) -> None:
    def query(records: pa.Table) -> pa.Table:
        if 2 in records.column("id").to_pylist():
            raise InvalidInput(text="division by zero")
        return records

    bench = a_bench(make_bench, query)
    broker.logs[TOPIC, 0] += [b"no JSON", *(message(number) for number in range(4))]
    with running(bench, broker) as node:
        node.drain()
        assert node.ids == [0, 1, 3]
    assert reasons(bench)[3] == "division by zero"
    assert set(reasons(bench)) == {0, 3}, "offsets are those in the topic"


def test_a_query_may_drop_some_records_and_fail_for_another(make_bench: Any, broker: Broker) -> None:
    def query(records: pa.Table) -> pa.Table:
        if 2 in records.column("id").to_pylist():
            raise InvalidInput(text="division by zero")
        return records.filter(pc.greater(records.column("id"), 2))

    bench = a_bench(make_bench, query)
    broker.logs[TOPIC, 0] += [message(number) for number in range(4)]
    with running(bench, broker) as node:
        node.drain()
        assert node.ids == [3]
    assert reasons(bench) == {2: "division by zero"}


def test_a_query_that_always_fails_stops_the_source(make_bench: Any, broker: Broker) -> None:
    def query(_: pa.Table) -> pa.Table:
        raise InvalidInput(text="no column a")

    bench = a_bench(make_bench, query)
    broker.logs[TOPIC, 0] += [message(1)]
    with running(bench, broker) as node, pytest.raises(SourceStopped, match="no column a"):
        node.drain()
    assert bench.coordinator.letters == []


def test_a_time_that_the_query_drops_is_that_of_the_message(make_bench: Any, broker: Broker) -> None:
    bench = a_bench(make_bench, lambda records: records.drop_columns(["event_time"]))
    broker.logs[TOPIC, 0] += [message(1)]
    with running(bench, broker) as node:
        node.drain()
        assert node.ids == [1]
    assert bench.rows()[0]["event_time"] is not None
    assert bench.state.watermark is not None


def test_messages_that_the_query_leaves_out_are_read_once(make_bench: Any, broker: Broker) -> None:
    bench = a_bench(make_bench, lambda _: None)
    broker.logs[TOPIC, 0] += [message(1), message(2)]
    with running(bench, broker) as node:
        node.drain()
        assert node.ids == []
    assert position_of(bench.state, "default").topics[TOPIC].next == {0: 2}
    assert bench.coordinator.letters == []


def push(bench: Any, file: Path, text: str) -> Any:
    return commit_file(bench, file, text)


LINES = '{"id":1,"v":"a","event_time":"2020-01-01T00:00:00Z"}\n{"id":2,"v":"b","event_time":"2020-01-01T00:00:00Z"}\n'


def test_a_file_of_which_the_query_leaves_nothing_adds_nothing(make_bench: Any, tmp_path: Path) -> None:
    bench = a_bench(make_bench, lambda _: None)
    assert push(bench, tmp_path / "batch", LINES).count == 0
    assert bench.rows() == []


def test_a_file_of_which_the_query_makes_records_without_a_key_is_refused_whole(
    make_bench: Any, tmp_path: Path
) -> None:
    bench = a_bench(make_bench, null_where("id", 2))
    with pytest.raises(InvalidInput, match=r"record 2 of the query's output: column id: null is not allowed"):
        push(bench, tmp_path / "batch", LINES)
    assert bench.rows() == []


RETRACT = 1


@pytest.fixture
def snapshots(make_bench: Any) -> Any:
    columns = ("id BIGINT NOT NULL", "v STRING", "event_time TIMESTAMP")
    return make_bench(MergeStrategySnapshot(primary_key=("id",)), ReadStepJson(ddl_schema=columns))


def snapshot(count: int) -> bytes:
    return json.dumps(
        [{"id": number, "event_time": "2020-01-01T00:00:00Z"} for number in range(count)]
    ).encode()


def test_an_empty_snapshot_retracts_every_record_where_the_source_says_so(
    snapshots: Any, broker: Broker
) -> None:
    snapshots.set(empty_snapshot=EmptySnapshot.RETRACT)
    broker.logs[TOPIC, 0] += [snapshot(3), b"[]"]
    with running(snapshots, broker) as node:
        node.drain()
    assert snapshots.values("op", "id")[3:] == [(RETRACT, 0), (RETRACT, 1), (RETRACT, 2)]
    assert snapshots.coordinator.letters == []


def test_an_empty_snapshot_is_rejected_where_the_source_says_so(snapshots: Any, broker: Broker) -> None:
    snapshots.set(empty_snapshot=EmptySnapshot.REFUSE)
    broker.logs[TOPIC, 0] += [snapshot(3), b"[]", snapshot(2)]
    with running(snapshots, broker) as node:
        node.drain()
    assert snapshots.values("op", "id")[3:] == [(RETRACT, 2)]
    (letter,) = snapshots.coordinator.letters
    assert letter.offset == 1
    assert "the snapshot has no records" in letter.reason


def test_a_key_that_repeats_in_a_snapshot_is_named_with_its_records(snapshots: Any, broker: Broker) -> None:
    twice = json.dumps([*json.loads(snapshot(2)), *json.loads(snapshot(1))]).encode()
    broker.logs[TOPIC, 0] += [snapshot(3), twice]
    with running(snapshots, broker) as node:
        node.drain()
    (letter,) = snapshots.coordinator.letters
    assert "the key id = 0 in 2 records: line 1, record 1 and line 1, record 3" in letter.reason
    assert len(snapshots.rows()) == 3


@pytest.mark.parametrize("empty", list(EmptySnapshot))
def test_a_replaced_topic_is_accepted_without_retracting_anything(
    snapshots: Any, broker: Broker, empty: EmptySnapshot
) -> None:
    snapshots.set(empty_snapshot=empty)
    broker.logs[TOPIC, 0] += [snapshot(3)]
    with running(snapshots, broker) as node:
        node.drain()
        broker.make(TOPIC)
        stop(node)
        resume(node, "earliest")
        node.drain()
        assert len(snapshots.values("op", "id")) == 3
        node.ingest([snapshot(2)])
    assert snapshots.values("op", "id")[3:] == [(RETRACT, 2)]


def test_an_invalid_snapshot_retracts_nothing(snapshots: Any, broker: Broker) -> None:
    broker.logs[TOPIC, 0] += [snapshot(3), b"junk", None]
    with running(snapshots, broker) as node:
        node.drain()
    assert snapshots.values("op", "id") == [(0, 0), (0, 1), (0, 2)]
    assert [letter.offset for letter in snapshots.coordinator.letters] == [1, 2]


def test_a_large_snapshot_in_which_nothing_changed_adds_no_record(snapshots: Any, broker: Broker) -> None:
    broker.logs[TOPIC, 0] += [snapshot(200), snapshot(200)]
    with running(snapshots, broker) as node:
        node.drain()
    assert len(snapshots.rows()) == 200
    assert position_of(snapshots.state, "default").topics[TOPIC].next == {0: 2}


def test_a_snapshot_that_retracts_too_much_stops_the_source_until_its_limit_is_raised(
    snapshots: Any, broker: Broker
) -> None:
    broker.logs[TOPIC, 0] += [snapshot(200), b'{"id": 0, "event_time": "2020-01-01T00:00:00Z"}', snapshot(5)]
    with running(snapshots, broker) as node:
        node.wait(lambda: node.owned.reason(Key(snapshots.dataset, "default")) is not None)
        why = node.owned.reason(Key(snapshots.dataset, "default"))
    assert why is not None
    assert why.reason == "SnapshotRetractsTooMuch"
    assert "retract 199 of 200 rows" in why.text
    assert "maxRetractedShare=1`, then `odf source resume" in why.advice()
    assert len(snapshots.rows()) == 200
    assert snapshots.coordinator.letters == []
    snapshots.set(max_retracted_share=1.0)
    with running(snapshots, broker) as node:
        node.drain()
    assert len(snapshots.rows()) == 200 + 199 + 4
