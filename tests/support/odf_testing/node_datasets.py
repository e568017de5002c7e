"""A node's datasets, for tests: in memory, or in the files of a home."""

from pathlib import Path

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.ports.store import BlobStore, Catalog, CatalogEntry, ObjectKind, RefStore
from odf_testing.builders import AChain
from odf_testing.memory_store import MemoryBlobStore, MemoryCatalog, MemoryRefStore


def in_memory() -> NodeDatasets:
    """Return no datasets, in memory."""
    refs = MemoryRefStore()
    return node_datasets(MemoryCatalog(), MemoryBlobStore(refs), refs)


def in_files(home: Path) -> NodeDatasets:
    """Return the datasets in a home."""
    return node_datasets(LocalCatalog(home), LocalBlobStore(home), LocalRefStore(home))


def node_datasets(catalog: Catalog, blobs: BlobStore, refs: RefStore) -> NodeDatasets:
    """Return the datasets in these stores; no state is cached."""
    states = ChainStates(blobs, refs, NoStateCache())
    return NodeDatasets(catalog=catalog, blobs=blobs, refs=refs, states=states)


def hold(datasets: NodeDatasets, name: str, chain: AChain) -> None:
    """Have a chain under a name, or its new blocks."""
    dataset = chain.state.dataset_id
    for block in chain.blocks:
        datasets.blobs.put(dataset, ObjectKind.BLOCK, block.hash, block.raw)
    datasets.refs.compare_and_set(dataset, expected=datasets.refs.head(dataset), new=chain.state.head)
    if datasets.catalog.by_alias(name) is None:
        datasets.catalog.add(CatalogEntry(alias=name, dataset_id=dataset))
