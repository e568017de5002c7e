"""Inspections of datasets in the background: when they are due, all in turn, and a slow or failing one delays no other."""

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
from odf_common.errors import StorageUnavailable, VerificationFailed
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.clock import PERIODIC_SHARE
from odf_common.ports.store import Catalog, CatalogEntry
from odf_ingest.push.lifecycle import inspector as inspector_module
from odf_ingest.push.lifecycle.inspector import (
    MAX_PER_PATROL,
    PATROL_SECONDS,
    RESCAN_SECONDS,
    Inspection,
    InspectionSchedule,
    Inspector,
)
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


ONE, TWO = a_dataset(1), a_dataset(2)


class Bench:
    """A schedule, its requests, and the time."""

    def __init__(self, catalog: Catalog, owned: Callable[[DatasetId], bool] = lambda _: True) -> None:
        self.now = 1000.0
        self.cpu_seconds = 100.0
        self.scan_seconds = 0.0
        self.asked: list[Sequence[DatasetId]] = []
        self.known: dict[DatasetId, CatalogEntry | None] = {}
        self.scans = 0
        self.is_scanning_slowly = False
        self.schedule = InspectionSchedule(
            inspector=cast("Inspector", SimpleNamespace(ask=self._ask)),
            catalog=catalog,
            pool=cast("Executor", SimpleNamespace(submit=self._scan)),
            request=lambda action: action(),
            is_owned=owned,
            snapshot=lambda: self.known,
        )

    def _ask(self, datasets: Iterable[DatasetId]) -> None:
        self.asked.append(sorted(datasets, key=str))

    def _scan(self, scan: Callable[[], None]) -> None:
        self.scans += 1
        if self.is_scanning_slowly:
            return
        scan()

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        self.cpu_seconds += self.scan_seconds
        return self.cpu_seconds

    def after(self, seconds: float) -> list[Sequence[DatasetId]]:
        """Return the inspections requested after that time."""
        self.now += seconds
        self.asked.clear()
        self.schedule.step()
        return list(self.asked)


@pytest.fixture
def catalog() -> MemoryCatalog:
    return MemoryCatalog()


@pytest.fixture
def bench(catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(catalog)
    monkeypatch.setattr(inspector_module, "time", made)
    return made


def an_entry(alias: str, dataset: DatasetId) -> CatalogEntry:
    return CatalogEntry(alias=alias, dataset_id=dataset, push_topics={"default": f"odf.push.{alias}.default"})


def test_of_two_planned_inspections_the_earlier_one_is_kept(bench: Bench) -> None:
    bench.schedule.later(ONE, 3)
    bench.schedule.later(ONE, 1)
    bench.schedule.later(ONE, 2)
    assert bench.after(0.5) == []
    assert bench.after(0.5) == [[ONE]]
    assert bench.after(5) == []


def test_datasets_due_at_the_same_time_are_requested_together(bench: Bench) -> None:
    bench.schedule.later(TWO, 1)
    bench.schedule.later(ONE, 1)
    assert bench.after(1) == [sorted([ONE, TWO], key=str)]


def test_a_dataset_that_was_inspected_can_be_planned_again(bench: Bench) -> None:
    bench.schedule.later(ONE, 1)
    assert bench.after(1) == [[ONE]]
    bench.schedule.later(ONE, 1)
    assert bench.after(1) == [[ONE]]


def test_a_forgotten_dataset_is_not_inspected(bench: Bench) -> None:
    bench.schedule.later(ONE, 1)
    bench.schedule.forget(ONE)
    bench.schedule.forget(TWO)
    assert bench.after(1) == []


def test_nothing_is_scanned_before_the_start(bench: Bench, catalog: MemoryCatalog) -> None:
    catalog.add(an_entry("a", ONE))
    assert bench.after(10 * RESCAN_SECONDS) == []
    bench.schedule.start()
    assert bench.asked == [[ONE]]


def test_a_scan_finds_new_changed_and_removed_datasets_with_push_topics(
    bench: Bench, catalog: MemoryCatalog
) -> None:
    same, gone = a_dataset(3), a_dataset(4)
    catalog.add(an_entry("new", ONE))
    catalog.add(an_entry("renamed", TWO))
    catalog.add(an_entry("same", same))
    catalog.add(CatalogEntry(alias="without", dataset_id=a_dataset(5)))
    bench.known = {TWO: an_entry("old", TWO), same: an_entry("same", same), gone: an_entry("gone", gone)}
    bench.schedule.start()
    assert bench.asked == [sorted([ONE, TWO, gone], key=str)]


def test_others_datasets_are_not_inspected(catalog: MemoryCatalog) -> None:
    bench = Bench(catalog, owned=lambda dataset: dataset == TWO)
    catalog.add(an_entry("a", ONE))
    bench.schedule.start()
    assert bench.asked == []
    catalog.add(an_entry("b", TWO))
    bench.schedule.start()
    assert bench.asked == [[TWO]]


def test_the_catalog_is_scanned_repeatedly(bench: Bench) -> None:
    bench.schedule.start()
    bench.after(RESCAN_SECONDS - 1)
    assert bench.scans == 1
    bench.after(1)
    assert bench.scans == 2
    bench.after(RESCAN_SECONDS)
    assert bench.scans == 3


def test_a_scan_that_takes_long_is_repeated_less_often(bench: Bench) -> None:
    bench.scan_seconds = RESCAN_SECONDS * PERIODIC_SHARE * 1.5
    bench.schedule.start()
    bench.after(RESCAN_SECONDS)
    assert bench.scans == 1
    bench.after(RESCAN_SECONDS)
    assert bench.scans == 2


def test_no_scan_begins_while_another_one_is_in_progress(bench: Bench) -> None:
    bench.schedule.start()
    bench.is_scanning_slowly = True
    bench.after(RESCAN_SECONDS)
    bench.after(RESCAN_SECONDS)
    assert bench.scans == 2


def test_a_catalog_that_fails_once_is_scanned_again(
    bench: Bench, catalog: MemoryCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise StorageUnavailable(what="names", why="EIO")

    with monkeypatch.context() as patch:
        patch.setattr(catalog, "entries", fail)
        bench.schedule.start()
    assert bench.asked == []
    catalog.add(an_entry("a", ONE))
    assert [ONE] in bench.after(RESCAN_SECONDS)


def test_all_datasets_are_inspected_in_turn_within_one_period_of_the_scan(bench: Bench) -> None:
    bench.schedule.start()
    bench.known = {a_dataset(number): None for number in range(3)}
    first, second = bench.after(PATROL_SECONDS), bench.after(PATROL_SECONDS)
    assert [len(some) for some in first] == [
        2
    ]  # two thirds, as the patrol's period is two thirds of the scan's
    patrolled = [*first[0], *second[-1]]
    assert sorted(patrolled, key=str) == sorted(bench.known, key=str)


def test_a_patrol_inspects_a_limited_number(bench: Bench) -> None:
    bench.schedule.start()
    bench.known = {a_dataset(number): None for number in range(2 * MAX_PER_PATROL)}
    assert [len(some) for some in bench.after(PATROL_SECONDS)] == [MAX_PER_PATROL]


def test_without_assignments_nothing_is_requested(bench: Bench) -> None:
    bench.schedule.start()
    assert bench.after(PATROL_SECONDS) == []


def test_no_patrol_is_early(bench: Bench) -> None:
    bench.schedule.start()
    bench.known = {ONE: None}
    assert bench.after(PATROL_SECONDS - 1) == []
    assert bench.after(1) == [[ONE]]
    assert bench.after(1) == []
