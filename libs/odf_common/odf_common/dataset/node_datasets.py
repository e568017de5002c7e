"""The datasets of a node: what most of its code needs to read and write them."""

from dataclasses import dataclass

from odf_common.dataset.state_cache import ChainStates
from odf_common.ports.store import BlobStore, Catalog, RefStore


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDatasets:
    """The datasets of a node: their names, their objects, their references, and the states of their chains."""

    catalog: Catalog
    blobs: BlobStore
    refs: RefStore
    states: ChainStates
