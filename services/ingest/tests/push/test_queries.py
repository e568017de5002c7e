"""The SQL of a source, `preprocess`: missing values in its output, records that it drops, and those for which it fails."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from odf_testing.builders import a_query
from odf_testing.ingest_batches import commit_file

from odf_common.errors import InvalidInput
from odf_common.metadata.steps import MergeStrategy, MergeStrategyLedger, Transform
from odf_common.ports.engine import IsWanted
from odf_ingest.commit.committer import position_of
from odf_ingest.errors import SourceStopped
from odf_ingest.prepare.preparer import Preparer

from .in_memory_broker import TOPIC, Broker, message, running

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
