"""Whenever the power is cut, each head names only blocks and objects that are whole."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from odf_testing.coordinator import Coordinator
from odf_testing.power_cut import Disk, Files, Recorder
from structlog.testing import capture_logs

from odf_common.adapters.local import durable
from odf_common.chain.walk import iterate
from odf_common.errors import OdfError
from odf_common.hashing.multihash import Multihash, physical_hash_of
from odf_common.metadata.scalars import Timestamp
from odf_coordinator.storage import objects_of

Plant = Callable[[pytest.MonkeyPatch], None]


def faults(files: Files) -> Iterator[str]:
    """Iterate over what is wrong with the heads of a home."""
    for place, content in files.items():
        folder, _, ref = place.rpartition("/refs/")
        if ref != "head" or "/.pending-" in place:
            continue
        try:
            yield from _torn(files, folder, Multihash.parse(content.decode()))
        except KeyError as error:
            yield f"{error} is lost"
        except OdfError as error:
            yield str(error)


def _torn(files: Files, folder: str, head: Multihash) -> Iterator[str]:
    for _, decoded, _ in iterate(lambda name: files[f"{folder}/blocks/{name}"], head):
        for one in objects_of(decoded.block.event):
            if physical_hash_of(files[f"{folder}/{one.kind}/{one.name}"]) != one.name:
                yield f"{one.kind}/{one.name} is torn"


def cuts(disk: Disk) -> Iterator[Files]:
    """Iterate over what a power cut may leave: the names of all folders late or early, or of one otherwise."""
    yield disk.after_cut(lambda _: False)
    yield disk.after_cut(lambda _: True)
    for chosen in disk.folders:
        yield disk.after_cut(lambda folder, one=chosen: folder == one)  # type: ignore[misc]
        yield disk.after_cut(lambda folder, one=chosen: folder != one)  # type: ignore[misc]


def whole_life(home: Path, root: str, derivative: str) -> None:
    """Commit in every possible way."""
    node = Coordinator(home=home, is_durable=True)
    node.add(root)
    node.add(derivative)
    first = node.push("cities", "Oslo", "Rome").state.head
    node.work()
    node.push("cities", "Lima", minute=1)
    node.work()
    node.editor.set_watermark("cities", Timestamp.parse("2030-01-01T00:00:00Z"))
    node.work()
    node.names.rename("cities", "towns")
    node.editor.reset("towns", first, is_forced=True)
    node.names.delete("cities.copy")


def nothing(*_: object) -> None:
    """Do nothing: plant no fault, or forget to sync."""


def recorded(home: Path, patch: pytest.MonkeyPatch, plant: Plant, *manifests: str) -> Recorder:
    home.mkdir()
    recorder = Recorder(home)
    with recorder.recording(patch), capture_logs(), patch.context() as planted:
        plant(planted)
        whole_life(home, *manifests)
    return recorder


def all_faults(recorder: Recorder) -> set[str]:
    found: set[str] = set()
    seen: set[int] = set()
    for disk in recorder.disks():
        for files in cuts(disk):
            what = hash(frozenset((place, id(content)) for place, content in files.items()))
            if what not in seen:
                seen.add(what)
                found.update(faults(files))
    return found


def test_a_power_cut_at_any_time_leaves_whole_chains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str, derivative: str
) -> None:
    recorder = recorded(tmp_path / "home", monkeypatch, nothing, root, derivative)
    assert all_faults(recorder) == set()
    *_, last = recorder.disks()
    assert last.after_cut(lambda _: False).keys() >= {"names/towns"}


def folders_only(fsync: Callable[[int], None]) -> Callable[[int], None]:
    """Return a sync that forgets files."""
    return lambda handle: fsync(handle) if Path(f"/proc/self/fd/{handle}").is_dir() else None


PLANTED: dict[str, Plant] = {
    "folders": lambda patch: patch.setattr(durable, "sync_folder", nothing),
    "files": lambda patch: patch.setattr(os, "fsync", folders_only(os.fsync)),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_missing_sync_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: str, derivative: str, what: str
) -> None:
    recorder = recorded(tmp_path / "home", monkeypatch, PLANTED[what], root, derivative)
    assert all_faults(recorder)
