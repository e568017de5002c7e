import pytest

from odf_common.adapters.memory import MemoryBlobStore, MemoryCatalog, MemoryRefStore
from odf_common.ports.store import ObjectKind
from odf_common.testing.contracts import (
    CONTENT,
    NAME,
    BlobStoreContract,
    CatalogContract,
    RefStoreContract,
    a_dataset,
)


class TestMemoryBlobStore(BlobStoreContract):
    @pytest.fixture
    def blobs(self) -> MemoryBlobStore:
        return MemoryBlobStore()


class TestMemoryRefStore(RefStoreContract):
    @pytest.fixture
    def refs(self) -> MemoryRefStore:
        return MemoryRefStore()


class TestMemoryCatalog(CatalogContract):
    @pytest.fixture
    def catalog(self) -> MemoryCatalog:
        return MemoryCatalog()


def test_deleting_a_dataset_takes_its_heads_along() -> None:
    refs = MemoryRefStore()
    blobs = MemoryBlobStore(refs)
    blobs.put(a_dataset(), ObjectKind.BLOCK, NAME, CONTENT)
    refs.compare_and_set(a_dataset(), expected=None, new=NAME)
    blobs.delete_dataset(a_dataset())
    assert refs.head(a_dataset()) is None
