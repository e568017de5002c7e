"""Snapshots over a topic: each message is the whole state of the source."""

import json
from typing import Any

import pytest

from odf_common.metadata.steps import MergeStrategySnapshot, ReadStepJson
from odf_ingest.commit.committer import position_of
from odf_ingest.push.source_topics import Key
from odf_ingest.source_settings import EmptySnapshot

from .in_memory_broker import TOPIC, Broker, running
from .test_control import resume, stop

RETRACT = 1


def a_bench(make_bench: Any) -> Any:
    columns = ("id BIGINT NOT NULL", "v STRING", "event_time TIMESTAMP")
    return make_bench(MergeStrategySnapshot(primary_key=("id",)), ReadStepJson(ddl_schema=columns))


def snapshot(count: int) -> bytes:
    return json.dumps(
        [{"id": number, "event_time": "2020-01-01T00:00:00Z"} for number in range(count)]
    ).encode()


def test_an_empty_snapshot_retracts_every_record_where_the_source_says_so(
    make_bench: Any, broker: Broker
) -> None:
    bench = a_bench(make_bench)
    bench.set(empty_snapshot=EmptySnapshot.RETRACT)
    broker.logs[TOPIC, 0] += [snapshot(3), b"[]"]
    with running(bench, broker) as node:
        node.drain()
    assert bench.values("op", "id")[3:] == [(RETRACT, 0), (RETRACT, 1), (RETRACT, 2)]
    assert bench.coordinator.letters == []


def test_an_empty_snapshot_is_rejected_where_the_source_says_so(make_bench: Any, broker: Broker) -> None:
    bench = a_bench(make_bench)
    bench.set(empty_snapshot=EmptySnapshot.REFUSE)
    broker.logs[TOPIC, 0] += [snapshot(3), b"[]", snapshot(2)]
    with running(bench, broker) as node:
        node.drain()
    assert bench.values("op", "id")[3:] == [(RETRACT, 2)]
    (letter,) = bench.coordinator.letters
    assert letter.offset == 1
    assert "the snapshot has no records" in letter.reason


def test_a_key_that_repeats_in_a_snapshot_is_named_with_its_records(make_bench: Any, broker: Broker) -> None:
    bench = a_bench(make_bench)
    twice = json.dumps([*json.loads(snapshot(2)), *json.loads(snapshot(1))]).encode()
    broker.logs[TOPIC, 0] += [snapshot(3), twice]
    with running(bench, broker) as node:
        node.drain()
    (letter,) = bench.coordinator.letters
    assert "the key id = 0 in 2 records: line 1, record 1 and line 1, record 3" in letter.reason
    assert len(bench.rows()) == 3


@pytest.mark.parametrize("empty", list(EmptySnapshot))
def test_a_replaced_topic_is_accepted_without_retracting_anything(
    make_bench: Any, broker: Broker, empty: EmptySnapshot
) -> None:
    bench = a_bench(make_bench)
    bench.set(empty_snapshot=empty)
    broker.logs[TOPIC, 0] += [snapshot(3)]
    with running(bench, broker) as node:
        node.drain()
        broker.make(TOPIC)
        stop(node)
        resume(node, "earliest")
        node.drain()
        assert len(bench.values("op", "id")) == 3
        node.ingest([snapshot(2)])
    assert bench.values("op", "id")[3:] == [(RETRACT, 2)]


def test_an_invalid_snapshot_retracts_nothing(make_bench: Any, broker: Broker) -> None:
    bench = a_bench(make_bench)
    broker.logs[TOPIC, 0] += [snapshot(3), b"junk", None]
    with running(bench, broker) as node:
        node.drain()
    assert bench.values("op", "id") == [(0, 0), (0, 1), (0, 2)]
    assert [letter.offset for letter in bench.coordinator.letters] == [1, 2]


def test_a_large_snapshot_in_which_nothing_changed_adds_no_record(make_bench: Any, broker: Broker) -> None:
    bench = a_bench(make_bench)
    broker.logs[TOPIC, 0] += [snapshot(200), snapshot(200)]
    with running(bench, broker) as node:
        node.drain()
    assert len(bench.rows()) == 200
    assert position_of(bench.state, "default").topics[TOPIC].next == {0: 2}


def test_a_snapshot_that_retracts_too_much_stops_the_source_until_its_limit_is_raised(
    make_bench: Any, broker: Broker
) -> None:
    bench = a_bench(make_bench)
    broker.logs[TOPIC, 0] += [snapshot(200), b'{"id": 0, "event_time": "2020-01-01T00:00:00Z"}', snapshot(5)]
    with running(bench, broker) as node:
        node.wait(lambda: node.owned.reason(Key(bench.dataset, "default")) is not None)
        why = node.owned.reason(Key(bench.dataset, "default"))
    assert why is not None
    assert why.reason == "SnapshotRetractsTooMuch"
    assert "retract 199 of 200 rows" in why.text
    assert "maxRetractedShare=1`, then `odf source resume" in why.advice()
    assert len(bench.rows()) == 200
    assert bench.coordinator.letters == []
    bench.set(max_retracted_share=1.0)
    with running(bench, broker) as node:
        node.drain()
    assert len(bench.rows()) == 200 + 199 + 4
