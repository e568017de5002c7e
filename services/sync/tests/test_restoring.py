"""Objects of a copy that were lost locally are fetched again by the next pull, with the same checks."""

import shutil
import time
from functools import partial
from pathlib import Path

import pytest
from odf_testing.builders import a_hash
from odf_testing.chains import flip
from odf_testing.sync_node import SyncNode

from odf_common.adapters.local.exported_dataset import FolderDataset
from odf_common.chain.walk import blocks_between
from odf_common.codec.flatbuffers import decode_block
from odf_common.dataset.dataset_notes import complete_until, dropped_blocks, note_drop
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddData, Seed
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_sync.transfer.local_copy import Step
from odf_sync.transfer.objects import ObjectDiffers
from odf_sync.transfer.remote_chain import LocalAhead

NAME = "cities.population"
VECTOR = Path(__file__).parents[3] / "tests" / "vectors" / "datasets" / NAME


@pytest.fixture
def node(tmp_path: Path) -> SyncNode:
    """Have a whole copy of a dataset."""
    home = tmp_path / "home"
    dataset = dataset_of(VECTOR)
    shutil.copytree(VECTOR, home / "datasets" / dataset.folder)
    made = SyncNode(home)
    made.catalog.add(CatalogEntry(alias=NAME, dataset_id=dataset))
    return made


def dataset_of(folder: Path) -> DatasetId:
    store = FolderDataset(folder)
    events = (decode_block(store.read_block(name)).block.event for name in store.names(ObjectKind.BLOCK))
    return next(event.dataset_id for event in events if isinstance(event, Seed))


def last(node: SyncNode, url: str, *, rechecks: bool = False) -> Step:
    return node.pull(url, NAME, rechecks=rechecks)[-1]


def lose(node: SyncNode, count: int) -> None:
    dataset = dataset_of(VECTOR)
    names = sorted(node.blobs.names(dataset, ObjectKind.DATA), key=str)
    node.blobs.remove(dataset, ObjectKind.DATA, names[:count])


def test_lost_objects_are_fetched_again_and_nothing_else_changes(node: SyncNode) -> None:
    dataset = dataset_of(VECTOR)
    before = set(node.blobs.names(dataset, ObjectKind.DATA))
    head = node.refs.head(dataset)
    assert last(node, VECTOR.as_uri()) == Step(alias=NAME, state="up-to-date", head=head)
    lose(node, 1)
    assert head is not None
    note_drop(node.blobs, dataset, head)

    assert last(node, VECTOR.as_uri()) == Step(alias=NAME, state="restored", head=head)

    assert set(node.blobs.names(dataset, ObjectKind.DATA)) == before
    assert dropped_blocks(node.blobs, dataset) is None
    assert last(node, VECTOR.as_uri()).state == "up-to-date"


def test_an_older_copy_provides_its_objects_and_the_rest_stays_marked(node: SyncNode, tmp_path: Path) -> None:
    """Otherwise objects dropped after its head would be reported as lost."""
    dataset = dataset_of(VECTOR)
    head = node.refs.head(dataset)
    assert head is not None
    older = tmp_path / "older"
    shutil.copytree(VECTOR, older)
    reader = FolderDataset(VECTOR).read_block
    names = [
        name for name, decoded, _ in blocks_between(reader, head, None) if _has_data(decoded.block.event)
    ]
    (older / "refs" / "head").write_text(str(names[0]))
    lose(node, 100)
    note_drop(node.blobs, dataset, head)

    assert last(node, older.as_uri()).state == "restored"
    assert dropped_blocks(node.blobs, dataset) is not None
    with pytest.raises(LocalAhead):
        last(node, older.as_uri())
    last(node, VECTOR.as_uri())
    assert dropped_blocks(node.blobs, dataset) is None


def _has_data(event: object) -> bool:
    return isinstance(event, AddData) and event.new_data is not None


def test_lost_objects_are_fetched_oldest_first_since_the_newest_stands_for_all(node: SyncNode) -> None:
    dataset = dataset_of(VECTOR)
    state = node.datasets.states.current(dataset)
    assert state is not None
    read = partial(node.blobs.read, dataset, ObjectKind.BLOCK)
    declared = [
        event.new_data.physical_hash
        for _, decoded, _ in blocks_between(read, state.head, None)
        if isinstance(event := decoded.block.event, AddData) and event.new_data is not None
    ]
    lose(node, len(declared))
    stored: list[Multihash] = []
    put_file = node.blobs.put_file

    def noted(dataset: DatasetId, kind: ObjectKind, name: Multihash, file: Path) -> None:
        if not stored:
            time.sleep(0.05)  # a later one would overtake it
        stored.append(name)
        put_file(dataset, kind, name, file)

    node.blobs.put_file = noted  # type: ignore[method-assign]

    assert last(node, VECTOR.as_uri()).state == "restored"

    assert len(declared) > 1
    assert stored == declared


def test_a_different_object_is_not_stored(node: SyncNode, tmp_path: Path) -> None:
    there = tmp_path / "there"
    shutil.copytree(VECTOR, there)
    for file in (there / "data").iterdir():
        flip(file)
    lose(node, 1)
    left = set(node.blobs.names(dataset_of(VECTOR), ObjectKind.DATA))

    with pytest.raises(ObjectDiffers):
        last(node, there.as_uri())

    assert set(node.blobs.names(dataset_of(VECTOR), ObjectKind.DATA)) == left


def test_objects_complete_at_this_head_are_checked_again_only_on_request(node: SyncNode) -> None:
    url, dataset = VECTOR.as_uri(), dataset_of(VECTOR)
    assert last(node, url).state == "up-to-date"
    assert complete_until(node.blobs, dataset) == node.refs.head(dataset)
    lose(node, 1)
    read = node.blobs.read
    node.blobs.read = None  # type: ignore[method-assign, assignment]
    node.blobs.has = None  # type: ignore[method-assign, assignment]
    assert last(node, url).state == "up-to-date", "no block is read, no object is searched for"
    del node.blobs.has
    node.blobs.read = read  # type: ignore[method-assign]
    assert last(node, url, rechecks=True).state == "restored"
    assert last(node, url, rechecks=True).state == "up-to-date"


def test_a_marker_of_another_head_and_a_damaged_one_are_ignored(node: SyncNode) -> None:
    dataset = dataset_of(VECTOR)
    for text in (str(a_hash("other")), "damaged"):
        lose(node, 1)
        node.blobs.set_note(dataset, "whole", text)
        assert last(node, VECTOR.as_uri()).state == "restored"


def test_a_copy_that_is_extended_stays_marked(tmp_path: Path) -> None:
    source, copy = SyncNode(tmp_path / "source"), SyncNode(tmp_path / "copy")
    source.add_cities(["Kyiv"])
    with source.served() as base:
        entry = source.catalog.by_alias("cities")
        assert entry is not None
        for minute in (1, 2):
            source.coordinator.push("cities", "Quito", minute=minute)
            assert copy.pull(f"{base}/cities", "cities")[-1].state == "updated"
            assert complete_until(copy.blobs, entry.dataset_id) == source.head("cities")
        copy.blobs.set_note(entry.dataset_id, "whole", None)
        source.coordinator.push("cities", "Oslo", minute=3)
        assert copy.pull(f"{base}/cities", "cities")[-1].state == "updated"
        assert complete_until(copy.blobs, entry.dataset_id) is None, (
            "the earlier objects were not searched for"
        )
