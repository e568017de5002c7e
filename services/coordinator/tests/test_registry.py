"""What the registry knows of datasets that appear or disappear, and which objects a block needs."""

import pytest
from odf_testing.builders import a_checkpoint, a_dataset
from odf_testing.coordinator import Coordinator

from odf_common.adapters.memory import MemoryBlobStore, MemoryRefStore
from odf_common.chain.state import ChainState
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import ExecuteTransform
from odf_common.ports.store import ObjectKind
from odf_coordinator.storage.object_checks import ObjectMissing, require_objects


def test_a_dataset_that_was_named_just_after_its_head_was_looked_for_is_found(
    node: Coordinator, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.add(root)
    current, misses = node.states.current, [None]

    def late(dataset: DatasetId) -> ChainState | None:
        return misses.pop() if misses else current(dataset)

    monkeypatch.setattr(node.states, "current", late)
    assert node.find("cities").state == current(node.find("cities").id)


def test_nothing_is_remembered_of_a_deleted_dataset(node: Coordinator, root: str) -> None:
    node.add(root)
    cities = node.find("cities").id
    list(node.datasets.dependants(cities))
    node.record_reader.slices.all(node.find("cities"))
    node.datasets.waits.note(cities, "x")
    node.datasets.troubles.note(cities, "x")
    node.datasets.forget(cities)
    node.record_reader.slices.forget(cities)
    known = (node.datasets.waits, node.datasets.troubles, node.datasets.roots, node.record_reader.slices)
    assert [len(one) for one in known] == [0, 0, 0, 0]
    assert len(node.states) == 0


@pytest.mark.parametrize("content", [None, b"", b"x" * 99])
def test_a_checkpoint_that_a_block_declares_has_to_be_there_with_its_size(content: bytes | None) -> None:
    blobs, checkpoint = MemoryBlobStore(MemoryRefStore()), a_checkpoint()
    event = ExecuteTransform(query_inputs=(), new_checkpoint=checkpoint)
    if content is not None:
        blobs.put(a_dataset(), ObjectKind.CHECKPOINT, checkpoint.physical_hash, content)
    with pytest.raises(ObjectMissing) as caught:
        require_objects(blobs, a_dataset(), event)
    assert (caught.value.size, caught.value.found) == (100, None if content is None else len(content))


def test_a_checkpoint_of_the_declared_size_is_enough() -> None:
    blobs, checkpoint = MemoryBlobStore(MemoryRefStore()), a_checkpoint()
    blobs.put(a_dataset(), ObjectKind.CHECKPOINT, checkpoint.physical_hash, bytes(checkpoint.size))
    require_objects(blobs, a_dataset(), ExecuteTransform(query_inputs=(), new_checkpoint=checkpoint))
