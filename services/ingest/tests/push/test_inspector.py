"""Inspections of datasets in the background: a slow or failing one does not delay others."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from odf_testing.builders import a_dataset
from odf_testing.guarded import GuardedDict, GuardedSet
from odf_testing.memory_store import MemoryBlobStore, MemoryCatalog
from structlog.testing import capture_logs

from odf_common.chain.state import ChainState
from odf_common.errors import VerificationFailed
from odf_common.identity.did import DatasetId
from odf_common.ports.store import CatalogEntry
from odf_ingest.push.lifecycle import inspector as inspector_module
from odf_ingest.push.lifecycle.inspector import Inspection, Inspector
from odf_ingest.push.source_topics import Key, SourceTopics

from .in_memory_broker import TOPIC, Broker, message, running


def an_inspector(
    pool: Executor,
    *,
    catalog: MemoryCatalog,
    current: Callable[[DatasetId], ChainState | None],
    deliver: Callable[[Sequence[Inspection]], None],
) -> Inspector:
    topics = SourceTopics(Broker(), MemoryBlobStore())  # type: ignore[arg-type]
    return Inspector(catalog=catalog, current=current, topics=topics, pool=pool, deliver=deliver)


def a_catalog(datasets: Iterable[DatasetId]) -> MemoryCatalog:
    catalog = MemoryCatalog()
    for number, dataset in enumerate(datasets):
        catalog.add(CatalogEntry(alias=f"d{number}", dataset_id=dataset))
    return catalog


def test_a_dataset_that_cannot_be_read_hides_no_other() -> None:
    names = [a_dataset(number) for number in range(600)]
    found = list[Inspection]()
    faults: dict[DatasetId, Exception] = {
        names[1]: OSError(5, "Input/output error"),
        names[2]: VerificationFailed(),
        names[3]: ValueError("a bug"),
    }

    def current(dataset: DatasetId) -> ChainState | None:
        if dataset in faults:
            raise faults[dataset]
        return None

    with ThreadPoolExecutor(2) as pool:
        inspector = an_inspector(pool, catalog=a_catalog(names), current=current, deliver=found.extend)
        inspector.ask(names)
        while len(found) < len(names):
            time.sleep(0.005)
    assert sorted(str(one.dataset) for one in found) == sorted(map(str, names))
    assert {one.dataset for one in found if one.error is not None} == set(faults)


def test_a_bug_in_the_inspection_of_some_does_not_affect_others() -> None:
    names = [a_dataset(number) for number in range(2)]
    found: list[DatasetId] = []

    def deliver(inspections: Sequence[Inspection]) -> None:
        if names[0] in {one.dataset for one in inspections}:
            raise ValueError("a bug")
        found.extend(one.dataset for one in inspections)

    with ThreadPoolExecutor(1) as pool:
        inspector = an_inspector(pool, catalog=a_catalog(()), current=lambda _: None, deliver=deliver)
        with capture_logs() as logs:
            inspector.ask(names[:1])
            while not logs:
                time.sleep(0.005)
            inspector.ask(names[1:])
            while not found:
                time.sleep(0.005)
    assert found == names[1:]
    assert [line["event"] for line in logs] == ["cannot inspect datasets"]


def test_a_slow_dataset_delays_only_itself() -> None:
    names, release, done = [a_dataset(number) for number in range(50)], threading.Event(), set[DatasetId]()

    def current(dataset: DatasetId) -> None:
        if dataset == names[0]:
            release.wait(10)

    with ThreadPoolExecutor(2) as pool:
        inspector = an_inspector(
            pool,
            catalog=a_catalog(names),
            current=current,
            deliver=lambda found: done.update(one.dataset for one in found),
        )
        inspector.ask(names[:1])
        inspector.ask(names[1:])
        while len(done) < 49:
            assert not release.wait(0.01)
        release.set()
    assert done == set(names)


def test_a_dataset_is_read_by_one_thread_at_a_time_and_again_if_requested_meanwhile() -> None:
    dataset, release, begun = a_dataset(), threading.Event(), list[int]()
    delivered, reading = list[DatasetId](), list[int]()

    def current(_: DatasetId) -> None:
        reading.append(1)
        begun.append(len(reading))
        release.wait(10)
        reading.pop()

    with ThreadPoolExecutor(3) as pool:
        inspector = an_inspector(
            pool,
            catalog=a_catalog([dataset]),
            current=current,
            deliver=lambda found: delivered.extend(one.dataset for one in found),
        )
        inspector.ask([dataset])
        while not begun:
            time.sleep(0.005)
        for _ in range(5):
            inspector.ask([dataset])
        pool.submit(lambda: None).result(10)  # the tasks before it have begun
        release.set()
        while len(delivered) < 2:
            time.sleep(0.005)
    assert begun == [1, 1]


def test_finished_inspections_are_delivered_before_the_slow_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector_module, "GATHER_SECONDS", 0.0)
    names, delivered = [a_dataset(number) for number in range(3)], list[list[DatasetId]]()
    with ThreadPoolExecutor(1) as pool:
        inspector = an_inspector(
            pool,
            catalog=a_catalog(names),
            current=lambda _: None,
            deliver=lambda found: delivered.append([one.dataset for one in found]),
        )
        inspector.ask(names)
        while len(delivered) < len(names):
            time.sleep(0.005)
    assert delivered == [[name] for name in names]


def test_inspections_that_are_quick_are_delivered_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector_module, "GATHER_SECONDS", 60.0)
    names, delivered = [a_dataset(number) for number in range(3)], list[list[DatasetId]]()
    with ThreadPoolExecutor(1) as pool:
        inspector = an_inspector(
            pool,
            catalog=a_catalog(names),
            current=lambda _: None,
            deliver=lambda found: delivered.append([one.dataset for one in found]),
        )
        inspector.ask(names)
    assert delivered == [names]


def test_a_dataset_that_was_renamed_continues_under_its_new_name(make_bench: Any) -> None:
    broker = Broker()
    broker.make(TOPIC)
    with running(make_bench(), broker) as node:
        node.ingest([message(1)])
        key = Key(node.bench.dataset, "default")
        entry = node.entry
        node.catalog.rename("a", replace(entry, alias="b"))
        node.ask(lambda: node.owned.inspect(node.bench.dataset, "b"))
        node.wait(lambda: node.reader.sources[key].alias == "b")
        broker.logs[TOPIC, 0] += [message(2)]
        node.wait(lambda: node.ids == [1, 2])
        broker.make(TOPIC)
        node.wait(lambda: node.owned.reason(key) is not None)
        assert "odf source resume b " in str(getattr(node.owned.reason(key), "advice", str)())


def test_a_reused_name_does_not_refer_to_the_former_dataset() -> None:
    old, new = (a_dataset(number) for number in range(2))
    found = list[Inspection]()
    with ThreadPoolExecutor(1) as pool:
        inspector = an_inspector(pool, catalog=a_catalog([new]), current=lambda _: None, deliver=found.extend)
        inspector.ask([old], "d0")
    assert [(one.dataset, one.entry) for one in found] == [(old, None)]


def test_requested_and_busy_datasets_are_changed_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspector_module, "GATHER_SECONDS", 0.0)
    names, found = [a_dataset(number) for number in range(3)], list[Inspection]()
    at_once = cast("Executor", SimpleNamespace(submit=lambda run: run()))
    inspector = an_inspector(at_once, catalog=a_catalog(names), current=lambda _: None, deliver=found.extend)
    inspector._queue = GuardedDict(inspector._lock)
    inspector._busy = GuardedSet(inspector._lock)
    with capture_logs() as logs:
        inspector.ask(names)
    assert {one.dataset for one in found} == set(names)
    assert logs == []
