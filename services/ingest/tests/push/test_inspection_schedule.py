"""Datasets are inspected when they are due, once, and all in turn; a scan of the catalog finds what has changed."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from types import SimpleNamespace
from typing import cast

import pytest
from odf_testing.builders import a_dataset
from odf_testing.memory_store import MemoryCatalog

from odf_common.errors import StorageUnavailable
from odf_common.identity.did import DatasetId
from odf_common.ports.clock import PERIODIC_SHARE
from odf_common.ports.store import Catalog, CatalogEntry
from odf_ingest.push.lifecycle import inspector as inspector_module
from odf_ingest.push.lifecycle.inspector import (
    MAX_PER_PATROL,
    PATROL_SECONDS,
    RESCAN_SECONDS,
    InspectionSchedule,
    Inspector,
)

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
