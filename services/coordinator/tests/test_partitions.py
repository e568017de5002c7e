"""Which datasets an instance takes over when partitions are assigned to it, and which it retries."""

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest
from odf_testing.coordinator import Coordinator

from odf_common.adapters.kafka.cluster import partition_of
from odf_common.chain.state import ChainState
from odf_common.errors import StorageUnavailable, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.bus import PARTITIONS
from odf_common.ports.store import CatalogEntry
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets, Unreadable
from odf_coordinator.catalog.partitions import READ_AGAIN_SECONDS, PartitionOwnership

ALL = frozenset(range(PARTITIONS))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odf_coordinator.catalog.partitions.IDLE_SECONDS", 0.0)


class Instance:
    """An instance's partitions, and the names of the datasets that it has taken over."""

    def __init__(self, node: Coordinator) -> None:
        self.node, self.names = node, list[str]()
        self.owned = PartitionOwnership(
            datasets=node.datasets,
            keys=node.keys,
            announce=lambda state: self.names.append(self._name(state.dataset_id)),
            now=lambda: node.now,
        )

    def assigned(self, partitions: Iterable[int]) -> list[str]:
        """Return what is taken over once these partitions are assigned."""
        self.owned.on_assigned(frozenset(partitions))
        return self.stepped()

    def stepped(self) -> list[str]:
        self.names.clear()
        self.owned.step()
        return sorted(self.names)

    def _name(self, dataset: DatasetId) -> str:
        entry = self.node.catalog.by_id(dataset)
        return "" if entry is None else entry.alias


@pytest.fixture
def node(tmp_path: Path, root: str) -> Coordinator:
    node = Coordinator(home=tmp_path)
    node.add(root, root.replace("name: cities", "name: towns"))
    return node


@pytest.fixture
def instance(node: Coordinator) -> Instance:
    return Instance(node)


def partition(node: Coordinator, name: str) -> int:
    return partition_of(str(node.find(name).id).encode())


def test_partitions_that_stay_assigned_are_taken_over_once(instance: Instance) -> None:
    assert instance.assigned(ALL) == ["cities", "towns"]
    assert instance.assigned(ALL) == []
    assert instance.assigned(()) == []
    assert instance.assigned(ALL) == ["cities", "towns"]


def test_a_partition_that_is_lost_before_it_was_taken_over_is_ignored(instance: Instance) -> None:
    instance.owned.on_assigned(ALL)
    assert instance.assigned(()) == []


def test_only_datasets_of_gained_partitions_are_taken_over(node: Coordinator, instance: Instance) -> None:
    others = ALL - {partition(node, "cities")}
    assert "cities" not in instance.assigned(others)
    assert not instance.owned.is_assigned(node.find("cities").id)
    assert "cities" in instance.assigned(ALL)


def test_a_copy_is_updated_by_no_instance(node: Coordinator, instance: Instance) -> None:
    instance.assigned(ALL)
    cities = node.find("cities").id
    assert instance.owned.is_assigned(cities)
    node.keys.remove(cities)
    assert not instance.owned.is_assigned(cities)


def test_partitions_are_taken_over_once_the_names_can_be_read(
    node: Coordinator, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as failing:
        failing.setattr(node.catalog, "entries", _cannot_be_read)
        with pytest.raises(Unavailable):
            instance.assigned(ALL)
        with pytest.raises(Unavailable):
            instance.stepped()
    assert instance.stepped() == ["cities", "towns"]
    assert instance.stepped() == []


def test_an_unreadable_dataset_is_kept_while_the_names_cannot_be_read(
    node: Coordinator, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as failing:
        failing.setattr(Datasets, "_open_stored", _cannot_be_read)
        assert instance.assigned(ALL) == []
    node.now += READ_AGAIN_SECONDS
    with monkeypatch.context() as failing:
        failing.setattr(node.catalog, "by_id", _cannot_be_read)
        with pytest.raises(Unavailable):
            instance.stepped()
    assert instance.stepped() == ["cities", "towns"]


def _cannot_be_read(*_: object) -> None:
    raise StorageUnavailable(file="names", why="Input/output error")


@pytest.fixture
def reads(node: Coordinator, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Have no dataset readable, and return the names of those that were read."""
    names: list[str] = []

    def read(self: Datasets, entry: CatalogEntry) -> DatasetHandle | Unreadable:
        names.append(entry.alias)
        return self.unreadable(entry, Unavailable(what="the disk"))

    monkeypatch.setattr(Datasets, "read", read)
    return names


def test_an_unreadable_dataset_is_retried_after_a_pause_until_it_is_readable(
    node: Coordinator, instance: Instance, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert instance.assigned(ALL) == []
    for pause, tries in (
        (0.0, 1),
        (READ_AGAIN_SECONDS - 0.1, 1),
        (0.1, 2),
        (1.0, 2),
        (READ_AGAIN_SECONDS, 3),
    ):
        node.now += pause
        assert instance.stepped() == []
        assert sorted(reads) == ["cities"] * tries + ["towns"] * tries

    monkeypatch.undo()
    monkeypatch.setattr("odf_coordinator.catalog.partitions.IDLE_SECONDS", 0.0)
    node.now += READ_AGAIN_SECONDS
    assert instance.stepped() == ["cities", "towns"]
    node.now += READ_AGAIN_SECONDS
    assert instance.stepped() == []


@pytest.mark.usefixtures("reads")
def test_an_unreadable_dataset_is_not_retried_once_its_partition_is_lost(
    node: Coordinator, instance: Instance, reads: list[str]
) -> None:
    instance.assigned(ALL)
    reads.clear()
    instance.assigned(ALL - {partition(node, "cities")})
    node.now += READ_AGAIN_SECONDS
    instance.stepped()
    assert "cities" not in reads


class Changed(threading.Condition):
    """Notes what is done, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[object] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.done.append(timeout)
        return False

    def notify(self, n: int = 1) -> None:
        self.done.append("notified")
        super().notify(n)


def test_only_where_no_partition_is_gained_is_the_next_one_waited_for(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odf_coordinator.catalog.partitions.IDLE_SECONDS", 7.0)
    instance.owned._changed = changed = Changed()

    assert instance.assigned(ALL) == ["cities", "towns"]
    assert changed.done == ["notified"]
    assert instance.stepped() == []
    assert changed.done == ["notified", 7.0]


def test_partitions_are_taken_over_until_it_is_stopped(node: Coordinator) -> None:
    stop, heads = threading.Event(), list[Multihash]()

    def announce(state: ChainState) -> None:
        heads.append(state.head)
        stop.set()

    owned = PartitionOwnership(datasets=node.datasets, keys=node.keys, announce=announce)
    owned.on_assigned(ALL)
    owned.run(stop)

    assert set(heads) == {node.find(name).state.head for name in ("cities", "towns")}
