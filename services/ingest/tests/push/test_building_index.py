"""An index for merging is built in the background: no other source waits, and nothing is lost or doubled."""

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

from odf_common.chain.state import ChainState
from odf_common.errors import StorageUnavailable
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.steps import MergeStrategyLedger, MergeStrategyUpsertStream, ReadStepNdJson
from odf_common.ports.store import ObjectKind, block_reader
from odf_ingest.history import indexes
from odf_ingest.history.dataset_history import DatasetHistory
from odf_ingest.history.keys import key_array
from odf_ingest.push.lifecycle import start_position
from odf_ingest.push.source_topics import Key

from .in_memory_broker import TOPIC, Broker, Running, message, running

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
