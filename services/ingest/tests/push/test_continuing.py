"""Datasets continue with their schema, whoever wrote it, and while an index for merging is built in the background."""

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from odf_testing.builders import a_push_source
from odf_testing.ingest_batches import commit_file

from odf_common.chain.state import ChainState
from odf_common.chain.walk import fold
from odf_common.data.columns import stored_schema
from odf_common.data.schema_evolution import schema_of_event
from odf_common.data.slices import hash_slice, slice_schema
from odf_common.errors import InvalidInput, StorageUnavailable
from odf_common.hashing.multihash import Multihash, physical_hash
from odf_common.metadata.events import (
    AddData,
    AddPushSource,
    DisablePollingSource,
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepCsv,
    ReadStepNdJson,
    SetDataSchema,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import ObjectKind, block_reader
from odf_ingest.commit.committer import Outcome
from odf_ingest.history import indexes
from odf_ingest.history.dataset_history import DatasetHistory
from odf_ingest.history.keys import key_array
from odf_ingest.prepare.plan import plan_of
from odf_ingest.push.lifecycle import start_position
from odf_ingest.push.source_topics import Key

from .in_memory_broker import TOPIC, Broker, Running, message, running

APPEND = MergeStrategyAppend()
EVENT_TIME = Timestamp.parse("2026-12-01T00:00:00Z")
CITIES = (
    "city,population,area,founded,capital\n"
    "Berlin,4000000,891.7,1237-10-28,true\n"
    "Porto,231000,,0868-01-01,false\n"
)


def push(bench: Any, tmp_path: Path, text: str, *, key: str = "key", source: str = "default") -> Outcome:
    return commit_file(bench, tmp_path / "batch", text, key, source=source)


def a_source(name: str, *columns: str, merge: MergeStrategy = APPEND) -> AddPushSource:
    return AddPushSource(source_name=name, read=ReadStepNdJson(ddl_schema=columns), merge=merge)


def slice_files(bench: Any) -> list[tuple[AddData, Path]]:
    return [
        (event, bench.blobs.local_path(bench.dataset, ObjectKind.DATA, event.new_data.physical_hash))
        for event in bench.events()
        if isinstance(event, AddData) and event.new_data is not None
    ]


def check_integrity(bench: Any) -> None:
    """All blocks are accepted again from their bytes, and every slice matches its block."""
    state = fold(lambda name: bench.blobs.read(bench.dataset, ObjectKind.BLOCK, name), bench.state.head)
    assert state == bench.state
    for event, file in slice_files(bench):
        assert event.new_data is not None
        assert hash_slice(file) == event.new_data.logical_hash
        with file.open("rb") as content:
            assert physical_hash(content) == event.new_data.physical_hash


def test_a_snapshot_of_another_implementation_continues(bench_of: Any, tmp_path: Path) -> None:
    bench = bench_of("cities.population")
    schema = bench.state.schema
    push(bench, tmp_path, CITIES)
    assert bench.state.schema == schema, "no other schema is announced"
    assert stored_schema(schema_of_event(schema)).equals(slice_schema(slice_files(bench)[-1][1]))
    assert bench.values("op", "city", "population")[10:] == [
        (0, "Berlin", 4000000),
        (1, "Oslo", 709037),
        (0, "Porto", 231000),
        (1, "Vancouver", 700000),
    ]
    check_integrity(bench)


def test_a_column_that_another_implementation_requires_has_to_have_values(
    bench_of: Any, tmp_path: Path
) -> None:
    bench = bench_of("cities.population")
    head = bench.state.head
    with pytest.raises(
        InvalidInput, match="line 3: column founded: null is not allowed; a value of DATE is required"
    ):
        push(bench, tmp_path, CITIES.replace("0868-01-01", ""))
    assert bench.state.head == head


def test_a_polled_dataset_of_another_implementation_continues_by_push(bench_of: Any, tmp_path: Path) -> None:
    bench = bench_of("polled.weather")
    read = ReadStepCsv(
        ddl_schema=("event_time TIMESTAMP", "station STRING", "temp DOUBLE", "hum FLOAT"), header=True
    )
    bench.propose(DisablePollingSource(), AddPushSource(source_name="default", read=read, merge=APPEND))
    schema = bench.state.schema
    push(bench, tmp_path, "event_time,station,temp,hum\n2026-02-01T00:00:00Z,A,1.5,0.5\n")
    assert bench.state.schema == schema
    assert bench.values("offset", "op", "station", "temp")[-1] == (9, 0, "A", 1.5)
    check_integrity(bench)


@pytest.mark.parametrize("is_signed", [True, False])
def test_the_setting_applies_to_new_datasets(make_bench: Any, tmp_path: Path, is_signed: bool) -> None:
    bench = make_bench(is_signed=is_signed)
    text = '{"id":1,"v":"a","event_time":"2020-01-01T00:00:00Z"}\n'
    push(bench, tmp_path, text, key="a")
    drafter = bench.queues.committer.drafter
    drafter._is_signed = not is_signed
    push(bench, tmp_path, text, key="b")
    types = [slice_schema(file) for _, file in slice_files(bench)]
    assert types[0] == types[1]
    assert types[0].field("offset").type == (pa.int64() if is_signed else pa.uint64())
    assert types[0].field("op").type == (pa.int32() if is_signed else pa.uint8())
    assert bench.values("offset") == [(0,), (1,)]
    check_integrity(bench)


def test_a_timestamp_continues_in_the_unit_that_it_began_with(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench(None, ReadStepNdJson(ddl_schema=("event_time TIMESTAMP", "at TIMESTAMP(3)")))
    bench.propose(a_source("finer", "event_time TIMESTAMP", "at TIMESTAMP(6)"))
    text = '{"event_time":"2020-01-01T00:00:00Z","at":"2020-01-01T00:00:00.123456Z"}\n'
    push(bench, tmp_path, text, key="a")
    push(bench, tmp_path, text, key="b", source="finer")
    ((first,), (second,)) = bench.values("at")
    assert first == second
    check_integrity(bench)


def test_a_source_without_an_optional_column_leaves_it_null(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench()
    bench.propose(a_source("two", "event_time TIMESTAMP", "id BIGINT"))
    push(bench, tmp_path, '{"id":1,"v":"a","event_time":"2020-01-01T00:00:00Z"}\n')
    schema = bench.state.schema
    push(bench, tmp_path, '{"id":2,"event_time":"2020-01-01T00:00:00Z"}\n', source="two")
    assert bench.values("id", "v") == [(1, "a"), (2, None)]
    assert bench.state.schema == schema, "columns stay where they are"
    check_integrity(bench)


def test_a_source_without_a_required_column_is_refused_by_its_name(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench()
    bench.propose(a_source("two", "v STRING", "event_time TIMESTAMP"))
    push(bench, tmp_path, '{"id":1,"v":"a","event_time":"2020-01-01T00:00:00Z"}\n')
    with pytest.raises(InvalidInput, match="column id: is required"):
        push(bench, tmp_path, '{"v":"b","event_time":"2020-01-01T00:00:00Z"}\n', source="two")
    assert plan_of(bench.state, bench.state.push_sources["default"]).also_required == ()


def test_a_source_with_one_more_optional_column_evolves_the_schema(make_bench: Any, tmp_path: Path) -> None:
    bench = make_bench()
    bench.propose(a_source("two", "w INT", "id BIGINT NOT NULL", "v STRING", "event_time TIMESTAMP"))
    push(bench, tmp_path, '{"id":1,"v":"a","event_time":"2020-01-01T00:00:00Z"}\n', key="a")
    push(bench, tmp_path, '{"id":2,"w":5,"event_time":"2020-01-01T00:00:00Z"}\n', source="two")
    push(bench, tmp_path, '{"id":3,"v":"c","event_time":"2020-01-01T00:00:00Z"}\n', key="b")
    schemas = [event for event in bench.events() if isinstance(event, SetDataSchema)]
    assert [schema_of_event(event).names[4:] for event in schemas] == [["id", "v"], ["id", "v", "w"]]
    assert slice_schema(slice_files(bench)[-1][1]).names[4:] == ["id", "v", "w"]
    check_integrity(bench)


def test_a_snapshot_without_an_optional_column_retracts_whole_records(
    make_bench: Any, tmp_path: Path
) -> None:
    merge = MergeStrategySnapshot(primary_key=("id",))
    bench = make_bench(merge)
    bench.propose(a_source("two", "id BIGINT NOT NULL", "event_time TIMESTAMP", merge=merge))
    at = '"event_time":"2020-01-01T00:00:00Z"'
    push(bench, tmp_path, f'{{"id":1,"v":"a",{at}}}\n{{"id":2,"v":"b",{at}}}\n')
    push(bench, tmp_path, f'{{"id":2,{at}}}\n', source="two")
    assert bench.values("op", "id", "v")[2:] == [(1, 1, "a"), (2, 2, "b"), (3, 2, None)]
    check_integrity(bench)


def test_nullability_inside_lists_and_structs_continues_too(make_bench: Any, tmp_path: Path) -> None:
    strict = ("event_time TIMESTAMP", "s STRUCT<a: INT NOT NULL, b: ARRAY<INT NOT NULL>>")
    loose = ("event_time TIMESTAMP", "s STRUCT<a: INT, b: ARRAY<INT>>")
    bench = make_bench(None, ReadStepNdJson(ddl_schema=strict))
    bench.propose(a_source("loose", *loose))
    line = '{"event_time":"2020-01-01T00:00:00Z","s":%s}\n'
    push(bench, tmp_path, line % '{"a":1,"b":[1,2]}', key="a")
    schema = bench.state.schema
    push(
        bench, tmp_path, line % "null" + line % '{"a":2,"b":[3]}' + line % '{"a":2}', key="b", source="loose"
    )
    assert bench.values("s")[1:] == [(None,), ({"a": 2, "b": [3]},), ({"a": 2, "b": None},)]
    assert bench.state.schema == schema
    with pytest.raises(InvalidInput, match=r"column s\.a: is required in this dataset, and 1 records"):
        push(bench, tmp_path, line % "null" + line % '{"b":[3]}', key="c", source="loose")
    with pytest.raises(InvalidInput, match=r"column s\.b\[\]: is required"):
        push(bench, tmp_path, line % '{"a":1,"b":[3,null]}', key="d", source="loose")
    check_integrity(bench)


def test_a_repeated_snapshot_is_no_change_whatever_the_precision_of_its_timestamps(
    make_bench: Any, tmp_path: Path
) -> None:
    merge = MergeStrategySnapshot(primary_key=("id",))
    columns = ("id BIGINT NOT NULL", "event_time TIMESTAMP(6)", "at TIMESTAMP(6)")
    bench = make_bench(merge, ReadStepNdJson(ddl_schema=columns))
    text = '{"id":1,"event_time":"2020-01-01T00:00:00.123456Z","at":"2020-01-01T00:00:00.123456Z"}\n'
    push(bench, tmp_path, text, key="a")
    push(bench, tmp_path, text, key="b")
    assert bench.values("op", "id") == [(0, 1)]


COLUMNS = ("id BIGINT NOT NULL", "v STRING", "event_time TIMESTAMP")
STEP = ReadStepNdJson(ddl_schema=COLUMNS)
OTHER = "odf.push.a.other"
KEY = ("id",)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_position, "REPORT_RETRIES_AFTER_SECONDS", 0.0)


@pytest.fixture
def broker(broker: Broker) -> Broker:
    broker.make(OTHER)
    return broker


@pytest.fixture(params=[MergeStrategyLedger, MergeStrategyUpsertStream])
def bench(request: Any, make_bench: Any) -> Any:
    """A dataset whose source `default` needs an index, and `other` does not."""
    return make_bench(request.param(primary_key=KEY), STEP, replace(a_push_source("other"), read=STEP))


def filled(bench: Any, broker: Broker, batches: int = 3) -> None:
    """Commit some batches, then lose the index and all state in memory."""
    with running(bench, broker, other=OTHER) as node:
        for number in range(batches):
            broker.logs[TOPIC, 0] += [message(number)]
            await_ids(node, range(number + 1))
    lose(bench)


def await_ids(node: Running, ids: Iterable[int]) -> None:
    node.wait(lambda: node.ids == list(ids))


def lose(bench: Any) -> None:
    bench.queues.forget(bench.dataset)
    shutil.rmtree(bench.blobs.index_folder(bench.dataset), ignore_errors=True)  # few records are in no file


@contextmanager
def held_slices(bench: Any) -> Iterator[threading.Event]:
    """Block the first read of a slice; yield the event that is set when it does."""
    is_waiting, may_continue = threading.Event(), threading.Event()
    history = bench.queues.queue(bench.dataset).history
    path: Callable[[Multihash], Path] = history._slice_path

    def held(name: Multihash) -> Path:
        is_waiting.set()
        assert may_continue.wait(20)
        return path(name)

    history._slice_path = held
    try:
        yield is_waiting
    finally:
        may_continue.set()


def why(bench: Any, node: Any, source: str = "default") -> str:
    return str(node.owned.stuck().get(Key(bench.dataset, source), ""))


def test_no_other_source_waits_while_an_index_is_built(bench: Any, broker: Broker) -> None:
    filled(bench, broker)
    with held_slices(bench) as is_waiting, running(bench, broker, other=OTHER) as node:
        broker.logs[TOPIC, 0] += [message(1), message(7)]
        assert is_waiting.wait(10)
        for number in range(100, 103):
            broker.logs[OTHER, 0] += [message(number)]
            await_ids(node, [0, 1, 2, *range(100, number + 1)])
        assert why(bench, node) == "push source default is building the index for merging: 0 of 3 slices"
        assert (
            "as soon as the index is complete" in node.owned.stuck()[Key(bench.dataset, "default")].advice()
        )
        assert why(bench, node, "other") == ""
        assert (node.owned.stuck_since(Key(bench.dataset, "default")) or 0) > 0
    with running(bench, broker, other=OTHER) as node:
        await_ids(node, [0, 1, 2, 100, 101, 102, 7])
        node.wait(lambda: node.owned.stuck() == {})


def test_an_index_that_another_thread_updates_is_behind(
    bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "BUSY_SECONDS", 0.0)
    filled(bench, broker)
    queues, found = bench.queues, list[object]()
    history, keys = queues.queue(bench.dataset).history, key_array(pa.table({"id": [0]}), KEY)

    def current() -> ChainState:
        state: ChainState = bench.state
        with pytest.raises(indexes.IndexBehind) as behind:
            (history.fresh if isinstance(merge, MergeStrategyLedger) else history.current)(state, KEY, keys)
        found.append(behind.value)
        return state

    merge = bench.state.push_sources["default"].merge
    history.catch_up(merge, current, lambda: True)
    assert found


def test_an_index_that_fell_far_behind_is_updated_outside_of_the_commit(
    bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "MAX_BLOCKS_IN_COMMIT", 2)
    with running(bench, broker, other=OTHER) as node:
        broker.logs[TOPIC, 0] += [message(0)]
        node.wait(lambda: node.ids == [0])
        for number in range(1, 6):
            broker.logs[OTHER, 0] += [message(number)]
            await_ids(node, range(number + 1))
        broker.logs[TOPIC, 0] += [message(3), message(6)]
        await_ids(node, range(7))


def test_storage_that_fails_while_an_index_is_built_is_named_until_the_index_is_built(
    bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(bench, broker)
    build, is_full = bench.queues.catch_up, threading.Event()
    is_full.set()

    def failing(*arguments: Any) -> None:
        if is_full.is_set():
            raise StorageUnavailable(file="index", why="no space left on device")
        build(*arguments)

    monkeypatch.setattr(bench.queues, "catch_up", failing)
    with running(bench, broker, other=OTHER) as node:
        broker.logs[TOPIC, 0] += [message(1), message(7)]
        node.wait(lambda: "no space left on device" in why(bench, node))
        is_full.clear()
        await_ids(node, [0, 1, 2, 7])


def test_a_build_stops_when_it_is_cancelled_and_resumes_from_there(
    make_bench: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(MergeStrategyUpsertStream(primary_key=KEY), STEP)
    monkeypatch.setattr("odf_ingest.history.dataset_history.RECORDS_PER_UPDATE", 1)
    filled(bench, broker)
    bench.queues.catch_up(bench.dataset, "default", lambda: False)
    history = bench.queues.queue(bench.dataset).history
    with pytest.raises(indexes.IndexBehind):
        history.current(bench.state, KEY, None)
    read = bench.record_slice_reads()
    bench.queues.catch_up(bench.dataset, "default")
    assert len(read) == 2, "the first was read before"
    assert history.current(bench.state, KEY, None).column("id").to_pylist() == [0, 1, 2]


def test_what_another_process_has_added_to_an_index_is_not_read_again(bench: Any, broker: Broker) -> None:
    filled(bench, broker)
    merge, keys = bench.state.push_sources["default"].merge, key_array(pa.table({"id": [0]}), KEY)
    read = list[Multihash]()

    def path(name: Multihash) -> Path:
        read.append(name)
        found: Path = bench.blobs.local_path(bench.dataset, ObjectKind.DATA, name)
        return found

    histories = [
        DatasetHistory(
            block_reader(bench.blobs, bench.dataset), path, bench.blobs.index_folder(bench.dataset)
        )
        for _ in range(2)
    ]
    for history in histories:
        history.catch_up(merge, lambda: bench.state)
    with running(bench, broker, other=OTHER) as node:
        broker.logs[OTHER, 0] += [message(7)]
        await_ids(node, [0, 1, 2, 7])
    read.clear()
    for history in histories:
        is_ledger = isinstance(merge, MergeStrategyLedger)
        (history.fresh if is_ledger else history.current)(bench.state, KEY, keys)
    assert len(read) == 1, "by the first of them"


def test_an_index_that_was_never_built_is_behind(bench: Any) -> None:
    history = bench.queues.queue(bench.dataset).history
    keys = key_array(pa.table({"id": [1]}), KEY)
    with pytest.raises(indexes.IndexBehind):
        history.fresh(bench.state, KEY, keys)
    with pytest.raises(indexes.IndexBehind):
        history.current(bench.state, KEY, keys)


def test_an_index_with_its_last_slice_is_complete_although_it_was_cancelled(
    bench: Any, broker: Broker
) -> None:
    filled(bench, broker, batches=1)
    bench.queues.catch_up(bench.dataset, "default", lambda: False)
    history, keys = bench.queues.queue(bench.dataset).history, key_array(pa.table({"id": [0]}), KEY)
    if isinstance(bench.state.push_sources["default"].merge, MergeStrategyLedger):
        assert len(history.fresh(bench.state, KEY, keys)[0]) == 0
    else:
        assert len(history.current(bench.state, KEY, keys)) == 1
