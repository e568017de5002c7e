"""The slices of a dataset: which ones are listed, in which order, and which ones a tail reads."""

import pytest
from odf_testing.coordinator import Coordinator
from odf_testing.guarded import GuardedDict

from odf_common.chain.walk import iterate
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DataEvent, SetInfo
from odf_common.ports.store import ObjectKind
from odf_coordinator.catalog.datasets import DatasetHandle


@pytest.fixture
def cities(node: Coordinator, root: str) -> Coordinator:
    """Return a node with a root of three slices: of two records, one, and two."""
    node.add(root)
    for minute, names in enumerate((("Oslo", "Rome"), ("Lima",), ("Bern", "Bonn"))):
        node.push("cities", *names, minute=minute)
    return node


def listed(node: Coordinator) -> list[int]:
    """Return the first offsets of the slices."""
    return [one.offset_interval.start for one in node.record_reader.slices.all(node.find("cities"))]


def test_all_slices_are_listed_oldest_first(cities: Coordinator) -> None:
    assert listed(cities) == [0, 2, 3]


def test_new_slices_follow_those_that_were_listed_before(cities: Coordinator) -> None:
    listed(cities)
    cities.push("cities", "Riga", minute=4)
    cities.push("cities", "Kyiv", minute=5)

    assert listed(cities) == [0, 2, 3, 5, 6]
    assert listed(cities) == [0, 2, 3, 5, 6]


def test_after_a_reset_only_the_slices_that_are_left_are_listed(cities: Coordinator) -> None:
    known = cities.find("cities")
    before = data_events(cities, known)[1]
    listed(cities)
    cities.editor.reset("cities", before)

    assert listed(cities) == [0, 2]


def test_blocks_that_were_listed_are_not_read_again(
    cities: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed(cities)
    known = cities.push("cities", "Riga", minute=4)
    read: list[Multihash] = []
    reader = cities.datasets.reader(known.id)

    def counting(name: Multihash) -> bytes:
        read.append(name)
        return reader(name)

    monkeypatch.setattr(type(cities.datasets), "reader", lambda *_: counting)

    assert listed(cities) == [0, 2, 3, 5]
    assert len(read) == 2


@pytest.mark.parametrize(
    ("records", "names"),
    [
        (0, []),
        (1, ["Bonn"]),
        (2, ["Bern", "Bonn"]),
        (3, ["Lima", "Bern", "Bonn"]),
        (4, ["Rome", "Lima", "Bern", "Bonn"]),
        (9, ["Oslo", "Rome", "Lima", "Bern", "Bonn"]),
    ],
)
def test_a_tail_has_the_last_records_in_their_order(
    cities: Coordinator, records: int, names: list[str]
) -> None:
    table = cities.record_reader.tail("cities", records)

    assert (table["city"].to_pylist() if table.num_rows else []) == names


def test_blocks_without_records_do_not_end_a_tail(cities: Coordinator) -> None:
    cities.propose(cities.find("cities"), [SetInfo(description="x")])

    assert cities.record_reader.tail("cities", 1)["city"].to_pylist() == ["Bonn"]


def test_lists_are_looked_up_kept_and_dropped_by_one_thread_at_a_time(cities: Coordinator) -> None:
    slices = cities.record_reader.slices
    slices._listings = GuardedDict(slices._lock)

    assert listed(cities) == [0, 2, 3]
    slices.forget(cities.find("cities").id)

    assert len(slices) == 0


def test_a_tail_needs_no_slice_but_those_of_its_records(cities: Coordinator) -> None:
    known = cities.find("cities")
    slices = cities.record_reader.slices.all(known)
    cities.blobs.remove(known.id, ObjectKind.DATA, [one.physical_hash for one in slices[:2]])

    assert cities.record_reader.tail("cities", 2)["city"].to_pylist() == ["Bern", "Bonn"]


def data_events(node: Coordinator, known: DatasetHandle) -> list[Multihash]:
    """Return the blocks with data, oldest first."""
    links = iterate(node.datasets.reader(known.id), known.state.head)
    return [name for name, decoded, _ in links if isinstance(decoded.block.event, DataEvent)][::-1]
