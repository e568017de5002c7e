"""How often the collector looks at every dataset, what it removes, and what it keeps."""

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from odf_testing.coordinator import Coordinator
from structlog.testing import capture_logs

from odf_common.adapters.local import durable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_coordinator.lifecycle import Collector


class Hour(threading.Event):
    """Advances the clock on each wait; set after an hour."""

    def __init__(self, node: Coordinator) -> None:
        super().__init__()
        self.node, self.end = node, node.now + 3600

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.node.now += timeout
        if self.node.now >= self.end:
            self.set()
        return self.is_set()


@pytest.mark.parametrize(("seconds", "times"), [(0.01, 6), (3.0, 2)])
def test_a_scan_of_all_datasets_is_repeated_less_often_if_it_takes_long(
    node: Coordinator, monkeypatch: pytest.MonkeyPatch, seconds: float, times: int
) -> None:
    looks: list[float] = []

    def sweep(_: Collector) -> None:
        looks.append(node.now)

    monkeypatch.setattr(Collector, "sweep", sweep)
    replace(node.collector, cpu_seconds=lambda: seconds * len(looks)).run(Hour(node))
    assert len(looks) == times


def test_the_duration_of_a_scan_excludes_earlier_work(
    node: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    monkeypatch.setattr(Collector, "sweep", lambda _: looks.append(node.now))
    replace(node.collector, cpu_seconds=lambda: 1e6).run(Hour(node))
    assert len(looks) == 6


class Once(threading.Event):
    """Set after the first round."""

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.set()
        return True


@pytest.fixture
def files(tmp_path: Path, root: str) -> Coordinator:
    """Return a coordinator over files, with one dataset, long after all of them were written."""
    node = Coordinator(home=tmp_path, is_durable=True, now=1e12)
    node.add(root)
    return node


def abandon(node: Coordinator, entry: CatalogEntry) -> None:
    """Leave the claim of a killed process."""
    claim = node.catalog.claim(entry.dataset_id)
    assert claim is not None
    claim.write(entry)
    claim.release()


def stray(node: Coordinator) -> DatasetId:
    """Leave an object of a dataset that never had a name."""
    dataset = DatasetId.of_key(bytes([1]) * 32)
    node.blobs.put(dataset, ObjectKind.BLOCK, node.find("cities").state.head, b"")
    return dataset


def test_the_first_round_settles_collects_repairs_and_reserves(files: Coordinator) -> None:
    known = files.find("cities")
    abandon(files, known.entry)
    stray(files)
    alias = files.home / "datasets" / known.id.folder / "info" / "alias"
    alias.unlink()

    files.collector.run(Once())

    assert alias.read_text() == "cities"
    assert files.catalog.claims() == ()
    assert set(files.blobs.datasets()) == {known.id}
    assert (files.home / "reserve").exists()


def test_while_a_name_cannot_be_read_only_datasets_with_a_name_are_settled(files: Coordinator) -> None:
    known = files.find("cities")
    nameless = DatasetId.of_key(bytes(32))  # listed before all others
    abandon(files, CatalogEntry(alias="towns", dataset_id=nameless))
    abandon(files, known.entry)
    other = stray(files)
    durable.write(files.home / "names" / "towns", b"")

    with capture_logs():
        files.collector.collect()
    assert [entry.dataset_id for entry in files.catalog.claims()] == [nameless]
    assert set(files.blobs.datasets()) == {known.id, other}

    files.catalog.remove("towns")
    files.collector.collect()
    assert files.catalog.claims() == ()
    assert set(files.blobs.datasets()) == {known.id}


def test_a_download_that_continues_while_strays_are_listed_is_kept(files: Coordinator) -> None:
    download = stray(files)
    times = iter((1e12, 0.0))
    replace(files.collector, now=lambda: next(times)).collect()
    assert download in set(files.blobs.datasets())


def test_only_old_unfinished_writes_are_removed(files: Coordinator) -> None:
    folder = files.home / "names"
    old, young = folder / f"{durable.PENDING}old", folder / f"{durable.PENDING}young"
    for file, written in ((old, 399.0), (young, 401.0)):
        file.write_bytes(b"")
        os.utime(file, (written, written))
    files.now = 1000.0

    files.collector.run(Once())

    assert not old.exists()
    assert young.exists()


@pytest.mark.parametrize(("hours", "is_kept"), [(23.9, True), (24.1, False)])
def test_a_dataset_without_a_name_is_kept_for_a_day_after_its_last_write(
    files: Coordinator, hours: float, is_kept: bool
) -> None:
    download = stray(files)
    folder = files.home / "datasets" / download.folder
    os.utime(folder, (0.0, 0.0))
    for inside in folder.iterdir():
        os.utime(inside, (1e9, 1e9))
    files.now = 1e9 + hours * 3600

    files.collector.collect()

    assert (download in set(files.blobs.datasets())) == is_kept


def test_a_claim_of_a_process_that_was_killed_before_its_first_record_removes_nothing(
    files: Coordinator,
) -> None:
    download = stray(files)
    claim = files.home / "claims" / download.folder
    claim.parent.mkdir(exist_ok=True)
    claim.touch()
    files.collector.settle()
    assert download in set(files.blobs.datasets())


def test_an_unreadable_claim_does_not_prevent_settling_others(files: Coordinator) -> None:
    damaged, other = (DatasetId.of_key(bytes([n]) * 32) for n in (0, 1))
    assert damaged.folder < other.folder
    abandon(files, CatalogEntry(alias="towns", dataset_id=other))
    (files.home / "claims" / damaged.folder).mkdir()
    with capture_logs():
        files.collector.settle()
    assert [entry.dataset_id for entry in files.catalog.claims()] == [damaged]


def test_a_dataset_that_once_had_a_name_is_kept(files: Coordinator) -> None:
    cities = files.find("cities").id
    files.catalog.remove("cities")
    files.collector.collect()
    assert set(files.blobs.datasets()) == {cities}


def test_each_round_removes_files_of_killed_commands_and_finishes_deletions(
    files: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    monkeypatch.setattr(type(files.collector.staging), "sweep", lambda _: done.append("files"))
    monkeypatch.setattr(type(files.blobs), "finish_deletions", lambda _: done.append("deletions"))
    files.collector.settle()
    assert done == ["files", "deletions"]


def test_what_is_kept_while_a_name_cannot_be_read_is_logged_with_that_name(files: Coordinator) -> None:
    abandon(files, CatalogEntry(alias="towns", dataset_id=DatasetId.of_key(bytes(32))))
    durable.write(files.home / "names" / "towns", b"")
    with capture_logs() as entries:
        files.collector.settle()
    (kept,) = [one for one in entries if one["event"] == "leftovers kept while names cannot be read"]
    assert kept["names"] == ("towns",)
