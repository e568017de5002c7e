from concurrent.futures import ThreadPoolExecutor

import pytest
from odf_testing.bus import MemoryBus, MemoryTopics
from odf_testing.bus_contracts import BusContract, TopicsContract
from odf_testing.contracts import (
    CONTENT,
    NAME,
    BlobStoreContract,
    CatalogContract,
    RefStoreContract,
    a_dataset,
)
from odf_testing.engine_contract import EngineContract
from odf_testing.memory_store import MemoryBlobStore, MemoryCatalog, MemoryRefStore
from odf_testing.passing_engine import PassingEngine

from odf_common.hashing.multihash import Multihash
from odf_common.ports.store import ObjectKind


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


def test_deleting_a_dataset_deletes_its_heads() -> None:
    refs = MemoryRefStore()
    blobs = MemoryBlobStore(refs)
    blobs.put(a_dataset(), ObjectKind.BLOCK, NAME, CONTENT)
    refs.compare_and_set(a_dataset(), expected=None, new=NAME)
    blobs.delete_dataset(a_dataset())
    assert refs.head(a_dataset()) is None


def test_a_file_is_whole_for_every_caller_at_the_same_time() -> None:
    blobs, content = MemoryBlobStore(), bytes(4_000_000)
    names = [Multihash.sha3(bytes([number]) * 32) for number in range(10)]
    for name in names:
        blobs.put(a_dataset(), ObjectKind.DATA, name, content)

    def sizes(_: int) -> list[int]:
        return [blobs.local_path(a_dataset(), ObjectKind.DATA, name).stat().st_size for name in names]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(sizes, range(4))) == [[len(content)] * len(names)] * 4


class TestMemoryBus(BusContract):
    @pytest.fixture
    def bus(self) -> MemoryBus:
        return MemoryBus()


class TestMemoryTopics(TopicsContract):
    @pytest.fixture
    def topics(self) -> MemoryTopics:
        return MemoryTopics()

    @pytest.fixture
    def name(self) -> str:
        return "topic"


class TestPassingEngine(EngineContract):
    @pytest.fixture
    def engine(self) -> PassingEngine:
        return PassingEngine()
