"""Corrections whose halves fall into two batches, because the batch was cut between them."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from odf_testing.builders import a_query
from odf_testing.table_batch import TableBatch

from odf_common.metadata.events import (
    DisablePushSource,
    MergeStrategyChangelogStream,
    ReadStepNdJson,
    Transform,
)
from odf_common.ports.engine import IsWanted
from odf_ingest.commit.committer import position_of
from odf_ingest.errors import SourceStopped, SourceWaiting
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.push.source_topics import Key

from .in_memory_broker import TOPIC, Broker, Running, running

ADD, RETRACT, FROM, TO = range(4)


@pytest.fixture
def bench(make_bench: Any) -> Any:
    columns = ("op INT", "id BIGINT", "v STRING", "event_time TIMESTAMP")
    return make_bench(MergeStrategyChangelogStream(primary_key=("id",)), ReadStepNdJson(ddl_schema=columns))


def message(op: int, key: int, value: str = "a") -> bytes:
    return b'{"op":%d,"id":%d,"v":"%s","event_time":"2020-01-01T00:00:00Z"}' % (op, key, value.encode())


def append(bench: Any, values: Mapping[int, str]) -> None:
    """Commit one record of each key."""
    time = datetime(2020, 1, 1, tzinfo=UTC)
    rows = [{"op": ADD, "id": key, "v": value, "event_time": time} for key, value in values.items()]
    schema = pa.schema(
        [
            ("op", pa.int32()),
            ("id", pa.int64()),
            ("v", pa.string()),
            ("event_time", pa.timestamp("ms", "UTC")),
        ]
    )
    bench.queues.commit(bench.dataset, TableBatch("default", pa.Table.from_pylist(rows, schema)))


def waits(node: Running) -> bool:
    source = node.reader.sources.get(Key(node.bench.dataset, "default"))
    return source is not None and source.is_waiting


def next_of(node: Running) -> dict[int, int] | None:
    source = node.reader.sources.get(Key(node.bench.dataset, "default"))
    return None if source is None else source.offsets.next


def reason(node: Running) -> SourceStopped | None:
    return node.owned.reason(Key(node.bench.dataset, "default"))


def test_a_half_waits_for_the_other_one_and_later_records_wait_too(bench: Any, broker: Broker) -> None:
    with running(bench, broker) as node:
        broker.logs[TOPIC, 0] += [message(ADD, 1), message(FROM, 1)]
        node.wait(lambda: waits(node) and len(bench.rows()) == 1)
        node.drains.waiting_timeout = 0.0
        with pytest.raises(SourceWaiting, match="a -C without a") as waiting:
            node.drain()
        assert "`odf source skip a --source default`" in waiting.value.advice()
        assert [str(why) for why in node.owned.stuck().values()] == [
            "push source default waits for more: record 1: a -C without a +C after it"
        ]
        broker.logs[TOPIC, 0] += [message(ADD, 2), message(ADD, 3), message(FROM, 2), message(TO, 2, "b")]
        node.wait(lambda: next_of(node) == {0: 6} and waits(node))
        assert bench.values("op", "id") == [(ADD, 1)]
        assert position_of(bench.state, "default").topics[TOPIC].next == {0: 1}
        broker.logs[TOPIC, 0] += [message(FROM, 2, "b"), message(TO, 2, "c"), message(TO, 1, "z")]
        node.drains.waiting_timeout = 60.0
        node.drain()
        assert reason(node) is None
        assert node.owned.stuck() == {}
    assert bench.values("op", "id", "v") == [
        (ADD, 1, "a"),
        (FROM, 1, "a"),
        (TO, 1, "z"),
        (ADD, 2, "a"),
        (FROM, 2, "a"),
        (TO, 2, "b"),
        (FROM, 2, "b"),
        (TO, 2, "c"),
        (ADD, 3, "a"),
    ]
    assert position_of(bench.state, "default").topics[TOPIC].next == {0: 9}


def test_pairs_that_follow_on_each_other_are_committed_though_each_is_cut_by_time(
    bench: Any, broker: Broker
) -> None:
    append(bench, dict.fromkeys(range(5), "a"))
    with running(bench, broker) as node:
        for number in range(5):
            broker.logs[TOPIC, 0] += [message(FROM, number, "a")]
            node.wait(lambda: waits(node))
            node.ingest([message(TO, number, "b")])
        assert bench.values("op", "id")[5:] == [(op, number) for number in range(5) for op in (FROM, TO)]


@pytest.mark.parametrize(
    ("size", "apart"),
    [
        *((70, 1), (130, 40), (200, 7), (1000, 2)),
        *(pytest.param(*one, marks=pytest.mark.soak) for one in ((70, 7), (130, 2), (200, 1), (1000, 40))),
    ],
)
def test_a_backlog_of_pairs_gets_through_small_batches(
    bench: Any, broker: Broker, size: int, apart: int
) -> None:
    append(bench, {key: str(key) for key in range(50)})
    # Each transaction corrects `apart` keys: first all -C, then all +C.
    for start in range(0, 120, apart):
        keys = range(start, start + apart)
        broker.logs[TOPIC, 0] += [message(FROM, key % 50, str(key)) for key in keys]
        broker.logs[TOPIC, 0] += [message(TO, key % 50, str(key + 50)) for key in keys]
    count = len(broker.logs[TOPIC, 0])
    with running(bench, broker, size) as node:
        node.drain()
        assert reason(node) is None
    rows = bench.values("op", "id", "v")[50:]
    assert len(rows) == count
    assert len(set(rows)) == count
    assert [row[:2] for row in rows[1::2]] == [(TO, key) for _, key, _ in rows[::2]]
    for key in range(50):
        values = [int(str(value)) for _, one, value in rows if one == key]
        assert values == sorted(values)
    assert position_of(bench.state, "default").topics[TOPIC].next == {0: count}


class Doubling:
    """Port `Preprocessor`: returns each record with two keys unless it is half of a correction."""

    def run(self, transform: Transform, records: pa.Table, is_wanted: IsWanted) -> pa.Table | None:
        twice = records.filter(pc.less(records.column("op"), FROM))
        twice = twice.set_column(1, "id", pc.negate(twice.column("id")))
        return pa.concat_tables([records, twice]) if len(records) else None


@pytest.mark.parametrize("apart", [1, 3, 30])
def test_a_backlog_gets_through_if_records_come_from_a_query(bench: Any, broker: Broker, apart: int) -> None:
    bench.propose(replace(bench.state.push_sources["default"], preprocess=a_query()))
    bench.preparer = Preparer(Doubling())  # type: ignore[arg-type]
    append(bench, dict.fromkeys([*range(60), 99], "a"))
    for start in range(0, 60, apart):
        keys = range(start, start + apart)
        broker.logs[TOPIC, 0] += [message(ADD, 1000 + start)]
        broker.logs[TOPIC, 0] += [message(FROM, key) for key in keys]
        broker.logs[TOPIC, 0] += [message(TO, key) for key in keys]
    broker.logs[TOPIC, 0] += [message(FROM, 99)]
    with running(bench, broker, 300) as node:
        node.wait(lambda: waits(node) and len(bench.rows()) == 61 + 120 + 2 * (60 // apart))
        node.ingest([message(TO, 99)])
    rows = [row for row in bench.values("op", "id") if row[0] != ADD]
    assert rows[1::2] == [(TO, key) for _, key in rows[::2]]
    assert sorted(rows[::2]) == [(FROM, key) for key in [*range(60), 99]]


def test_an_unfinished_correction_continues_after_a_restart(bench: Any, broker: Broker) -> None:
    broker.logs[TOPIC, 0] += [message(ADD, 1), message(FROM, 1)]
    with running(bench, broker) as node:
        node.wait(lambda: waits(node) and len(bench.rows()) == 1)
    broker.logs[TOPIC, 0] += [message(TO, 1)]
    with running(bench, broker) as node:
        node.drain()
    assert bench.values("op", "id") == [(ADD, 1), (FROM, 1), (TO, 1)]


def test_a_second_half_alone_stops_the_source_after_the_complete_records(bench: Any, broker: Broker) -> None:
    append(bench, {1: "a"})
    broker.logs[TOPIC, 0] += [message(FROM, 1), message(TO, 1), message(TO, 2), message(ADD, 3)]
    with running(bench, broker) as node:
        with pytest.raises(SourceStopped, match=r"record 1: a \+C without a -C before it"):
            node.drain()
        assert node.owned.stuck() == {Key(bench.dataset, "default"): reason(node)}
        assert bench.values("op", "id")[1:] == [(FROM, 1), (TO, 1)]


def test_a_first_half_with_too_many_records_after_it_stops_the_source(bench: Any, broker: Broker) -> None:
    broker.logs[TOPIC, 0] += [message(FROM, 1), *(message(ADD, key) for key in range(10, 99))]
    with running(bench, broker, size=200, most=4000) as node:
        with pytest.raises(SourceStopped, match=r"record 1: a -C without a \+C after it"):
            node.drain()
        assert bench.rows() == []


def test_an_invalid_record_is_a_dead_letter_once_though_its_batch_waits(bench: Any, broker: Broker) -> None:
    append(bench, {1: "a"})
    broker.logs[TOPIC, 0] += [b"junk", message(FROM, 1), b"trash"]
    with running(bench, broker) as node:
        node.wait(lambda: waits(node))
        broker.logs[TOPIC, 0] += [b"rubbish"]
        node.wait(lambda: next_of(node) == {0: 4} and waits(node))
        assert [letter.offset for letter in bench.coordinator.letters] == [0]
        node.ingest([message(TO, 1)])
    assert [letter.offset for letter in bench.coordinator.letters] == [0, 2, 3]
    assert bench.values("op", "id")[1:] == [(FROM, 1), (TO, 1)]


def test_halves_in_one_of_several_partitions_wait_as_well(bench: Any) -> None:
    broker = Broker()
    append(bench, {1: "a"})
    broker.make(TOPIC, 2)
    with running(bench, broker) as node:
        broker.logs[TOPIC, 1] += [message(FROM, 1)]
        node.wait(lambda: waits(node))
        broker.logs[TOPIC, 0] += [message(ADD, 2), message(FROM, 2)]
        node.wait(lambda: (2,) in bench.values("id"))
        broker.logs[TOPIC, 1] += [message(TO, 1)]
        node.ingest([message(TO, 2)])
    assert sorted(bench.values("op", "id")[1:]) == [(ADD, 2), (FROM, 1), (FROM, 2), (TO, 1), (TO, 2)]
    assert position_of(bench.state, "default").topics[TOPIC].next == {0: 3, 1: 2}


def test_a_source_that_waits_notices_a_reset_and_that_it_is_disabled(bench: Any, broker: Broker) -> None:
    before = bench.state.head
    with running(bench, broker) as node:
        node.ingest([message(ADD, 1)])
        broker.logs[TOPIC, 0] += [message(FROM, 1)]
        node.wait(lambda: waits(node))
        bench.refs.compare_and_set(bench.dataset, expected=bench.state.head, new=before)
        node.ask(lambda: node.owned.inspect(bench.dataset, "a"))
        node.wait(lambda: bench.values("op", "id") == [(ADD, 1)] and waits(node))
        bench.propose(DisablePushSource(source_name="default"))
        node.ask(lambda: node.owned.inspect(bench.dataset, "a"))
        node.wait(lambda: not node.reader.sources)
