"""The contents of a push: a dataset of this node, its new blocks, and the objects that they declare."""

from contextlib import suppress
from dataclasses import dataclass

from odf_common.adapters.networks import Networks
from odf_common.chain.state import ChainState
from odf_common.chain.walk import ReadBlock
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.dataset.object_markers import dropped_blocks
from odf_common.errors import NotFound
from odf_common.hashing.multihash import Multihash
from odf_common.metadata.events import DatasetKind
from odf_common.ports.store import CatalogEntry, block_reader
from odf_sync.repositories import HttpDataset, Target
from odf_sync.smart.connection import NodeSession
from odf_sync.smart.messages import DatasetVisibility, ObjectFile
from odf_sync.smart.ranges import Range, objects_of
from odf_sync.transfer.remote_blocks import BlockSpool


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """A dataset to push, and its destination."""

    dataset: str
    target: str = ""
    """URL of the remote dataset, its name in a named repository, or that repository's name alone.

    Empty: its first push alias, which is where it was pushed last.
    """
    is_forced: bool = False
    """Replace a chain that has diverged."""
    visibility: DatasetVisibility = DatasetVisibility.PRIVATE
    """Of a dataset that is created."""
    is_chosen: bool = False
    """Whether the user chose the visibility, or the local dataset has it; a single-tenant node overrides a default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSource:
    """A dataset of this node, and where it is pushed."""

    datasets: NodeDatasets
    session: NodeSession
    """Of a push to a node: of its first request, and of its exchanges."""
    networks: Networks
    entry: CatalogEntry
    state: ChainState
    target: str
    """As the user named it."""
    there: HttpDataset | Target
    token: str | None

    @property
    def alias(self) -> str:
        """Return the dataset's name."""
        return self.entry.alias

    @property
    def head(self) -> Multihash:
        """Return the block at which the pushed chain ends."""
        return self.state.head

    def objects(self, blocks: Range) -> tuple[ObjectFile, ...]:
        """Return the objects that the blocks of a range declare, each once, newest first."""
        read = block_reader(self.datasets.blobs, self.state.dataset_id)
        files = [file for _, decoded, _ in blocks.links(read) for file in objects_of(decoded.block.event)]
        return tuple(dict.fromkeys(reversed(files)))

    def dropped_objects(self, blocks: Range) -> frozenset[ObjectFile]:
        """Return the objects that this node does not have since they were dropped, or were copied without."""
        dataset, blobs = self.state.dataset_id, self.datasets.blobs
        dropped = dropped_blocks(blobs, dataset) if self.state.kind is DatasetKind.Derivative else None
        if dropped is None:
            return frozenset()
        return frozenset(
            file
            for name, decoded, _ in blocks.links(block_reader(blobs, dataset))
            for file in objects_of(decoded.block.event)
            if not blobs.has(dataset, file.object_type.kind, file.physical_hash) and dropped.contains(name)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PushSummary:
    """The result of pushing a range."""

    blocks: int
    records: int
    dropped_objects: int = 0
    """Of a derivative: dropped here, and so not sent."""


def head_of(there: HttpDataset | Target) -> Multihash | None:
    """Return the head there; None if there is no dataset."""
    with suppress(NotFound):
        return there.head()
    return None


def block_reader_of(there: HttpDataset, after: Multihash | None = None) -> ReadBlock:
    """Return a function that reads the blocks of a node, many at a time."""
    return BlockSpool(there, after=after).read
