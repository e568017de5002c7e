"""A dataset of a node read through its stores, and the check of the block that a chain continues from."""

from pathlib import Path

import pytest
from odf_testing.builders import a_chain, a_dataset, a_hash
from odf_testing.memory_store import MemoryBlobStore, MemoryRefStore

from odf_common.adapters.local.stores import LocalBlobStore
from odf_common.dataset.node_datasets import StoredDataset, require_readable_block, require_stored_block
from odf_common.errors import Damaged
from odf_common.ports.store import ObjectKind

DATASET = a_dataset()
NAME, OTHER = a_hash("one"), a_hash("other")


def test_a_dataset_has_its_own_objects_and_references_only(tmp_path: Path) -> None:
    refs, blobs = MemoryRefStore(), LocalBlobStore(tmp_path)
    for dataset, name in ((DATASET, NAME), (a_dataset("other"), OTHER)):
        refs.compare_and_set(dataset, expected=None, new=name)
        for kind in (ObjectKind.BLOCK, ObjectKind.DATA):
            blobs.put(dataset, kind, name, kind.value.encode())
    refs.compare_and_set(DATASET, expected=None, new=OTHER, ref="next")
    stored = StoredDataset(DATASET, blobs, refs)

    assert (stored.head(), stored.head("next"), stored.head("none")) == (NAME, OTHER, None)
    assert stored.has(ObjectKind.DATA, NAME)
    assert not stored.has(ObjectKind.DATA, OTHER)
    assert stored.read_block(NAME) == b"blocks"
    assert list(stored.names(ObjectKind.DATA)) == [NAME]
    assert stored.size(ObjectKind.DATA, NAME) == len(b"data")
    assert stored.local_path(ObjectKind.DATA, NAME).read_bytes() == b"data"
    with stored.open(ObjectKind.DATA, NAME) as file:
        assert file.read() == b"data"


def test_a_block_that_cannot_be_continued_from_is_named_by_its_file() -> None:
    blobs, block = MemoryBlobStore(), a_chain().blocks[0]
    file = f"datasets/{DATASET.folder}/blocks/{block.hash}"
    for require in (require_readable_block, require_stored_block):
        with pytest.raises(Damaged, match="the file is missing") as damaged:
            require(blobs, DATASET, block.hash)
        assert damaged.value.file == file

    blobs.put(DATASET, ObjectKind.BLOCK, block.hash, block.raw[:-1])
    require_stored_block(blobs, DATASET, block.hash)
    with pytest.raises(Damaged, match="does not match its hash") as damaged:
        require_readable_block(blobs, DATASET, block.hash)
    assert damaged.value.file == file
