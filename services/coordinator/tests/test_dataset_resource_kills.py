"""Datasets are what their resources declare, once, whichever write the coordinator was killed at."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from odf_testing.coordinator import Coordinator, FakeTopics
from odf_testing.flow_bench import FakeTasks
from odf_testing.killer import Killed, Killer

from odf_common.chain.walk import iterate
from odf_common.errors import OdfError
from odf_common.metadata.events import AddPushSource, Seed, SetInfo
from odf_common.resources.resource_manifests import written_resources
from odf_coordinator.resources.callers import Subject
from odf_coordinator.resources.dataset_controller import DatasetController
from odf_coordinator.resources.flows.flow_wiring import FlowPorts
from odf_coordinator.resources.store import StoredResource
from odf_coordinator.resources.use_cases import Batch, ResourceRef
from odf_coordinator.resources.wiring import DatasetPorts, build_resources

NODE = Subject()
MANIFEST = (
    "{$schema: Dataset, headers: {name: cities}, spec: {kind: Root, metadata: [{kind: SetInfo, description: %s}, "
    "{kind: AddPushSource, sourceName: default, read: {kind: NdJson}, merge: {kind: Append}}]}}"
)
FIRST, SECOND = MANIFEST % "first", MANIFEST % "second"


class Process:
    """A coordinator over the files of a home, whose controller runs when it is called."""

    def __init__(self, home: Path, topics: FakeTopics) -> None:
        self.node = Coordinator(home=home, topics=topics, is_durable=True)
        flow_ports = FlowPorts(tasks=FakeTasks(), datasets=self.node.datasets)
        node = self.node
        datasets = DatasetPorts(creator=node.creator, names=node.names, reader=node.record_reader)
        parts = build_resources(home, datasets, flow_ports)
        self.resources = parts.resources
        self.controller = DatasetController(
            creator=self.node.creator, names=self.node.names, status=parts.status
        )

    def apply(self, text: str) -> None:
        self.resources.apply(NODE, Batch(written=written_resources(text.encode())))

    def apply_and_reconcile(self, text: str) -> None:
        self.apply(text)
        self.controller.reconcile(dict(self.get("cities").document))

    def get(self, name: str) -> StoredResource:
        return self.resources.get(NODE, ResourceRef(type="Dataset", ref=name), is_deleted_too=True)

    def delete(self, name: str) -> None:
        found = self.get(name)
        if found.deleted_ms is None:
            self.resources.delete(NODE, ResourceRef(type="Dataset", ref=name))
        self.controller.finalize(dict(self.get(name).document))

    def declared(self) -> StoredResource:
        """Return the only resource of a dataset, whatever its name."""
        (entry,) = self.node.catalog.entries()
        return self.get(str(entry.dataset_id))

    def events(self) -> list[type]:
        (entry,) = self.node.catalog.entries()
        handle = self.node.find(entry.alias)
        links = iterate(self.node.datasets.reader(handle.id), handle.state.head)
        return [type(decoded.block.event) for _, decoded, _ in links][::-1]


class World:
    """A home whose process is killed, and processes over what it leaves."""

    def __init__(self, killer: Killer, home: Path) -> None:
        self.killer, self.home, self.tries = killer, home, 0
        self.topics = FakeTopics()
        home.mkdir()

    def prepare(self, act: Callable[[Process], object]) -> None:
        act(Process(self.home, self.topics))

    def killed_at_each_write(self, act: Callable[[Process], object]) -> Iterator[Process]:
        is_done = False
        while not is_done:
            home = self.home.with_name(f"killed-at-{self.tries}")
            shutil.copytree(self.home, home)
            topics = FakeTopics()
            topics.names = dict(self.topics.names)
            is_done = self._is_survived(Process(home, topics), act)
            self.tries += 1
            yield Process(home, topics)

    def _is_survived(self, process: Process, act: Callable[[Process], object]) -> bool:
        try:
            with self.killer.after(self.tries):
                act(process)
        except Killed:
            return False
        return True


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    killer = Killer(monkeypatch)
    for change in ("create_push_topic", "delete_topic"):
        monkeypatch.setattr(FakeTopics, change, killer.counted(getattr(FakeTopics, change)))
    return World(killer, tmp_path / "home")


def require_one_dataset(process: Process) -> None:
    process.node.collector.collect()
    (entry,) = process.node.catalog.entries()
    found = process.get(entry.alias)
    assert str(entry.dataset_id) == found.did
    assert process.node.keys.has(entry.dataset_id)
    assert set(process.node.blobs.datasets()) == {entry.dataset_id}
    assert set(process.node.topics.names) == set(entry.push_topics.values())


@pytest.mark.parametrize("is_collected", [True, False])
def test_a_creation_is_completed_once(world: World, *, is_collected: bool) -> None:
    for process in world.killed_at_each_write(lambda process: process.apply_and_reconcile(FIRST)):
        if is_collected:
            process.node.collector.collect()
        try:
            process.apply_and_reconcile(FIRST)
        except OdfError:  # the remains of the killed one are removed now, and the loop tries again
            process.apply_and_reconcile(FIRST)
        require_one_dataset(process)
        assert process.events() == [Seed, SetInfo, AddPushSource]
        assert process.get("cities").generation == 1
    assert world.tries > 20


def test_a_change_is_completed_once(world: World) -> None:
    world.prepare(lambda process: process.apply_and_reconcile(FIRST))
    for process in world.killed_at_each_write(lambda process: process.apply_and_reconcile(SECOND)):
        process.apply_and_reconcile(SECOND)
        require_one_dataset(process)
        assert process.events() == [Seed, SetInfo, AddPushSource, SetInfo]
        assert process.get("cities").generation == 2
    assert world.tries > 5


def test_a_renamed_dataset_and_its_resource_have_one_name_in_the_end(world: World) -> None:
    world.prepare(lambda process: process.apply_and_reconcile(FIRST))
    for process in world.killed_at_each_write(lambda process: process.node.names.rename("cities", "towns")):
        process.node.catalog.repair_names()
        process.controller.reconcile(dict(process.declared().document))
        process.node.catalog.repair_names()
        require_one_dataset(process)
    assert world.tries > 5


@pytest.mark.parametrize("by", ["resource", "dataset"])
def test_a_deletion_is_completed(world: World, by: str) -> None:
    world.prepare(lambda process: process.apply_and_reconcile(FIRST))

    def delete(process: Process) -> None:
        if by == "resource":
            process.delete("cities")
        else:
            process.node.names.delete("cities")

    for process in world.killed_at_each_write(delete):
        assert (process.get("cities").deleted_ms is not None) or any(process.node.catalog.entries())
        process.delete("cities")
        process.node.collector.collect()
        assert list(process.node.catalog.entries()) == []
        assert list(process.node.blobs.datasets()) == []
        assert [*process.node.home.glob("keys/fed01*")] == []
        assert process.node.topics.names == {}
    assert world.tries > 5
