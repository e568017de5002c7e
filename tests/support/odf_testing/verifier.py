"""Datasets in memory and the verifier's results, for tests."""

from pathlib import Path
from typing import Final, cast

from odf_common.dataset.node_datasets import StoredDataset
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD
from odf_common.ports.engine import Engine
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_testing.builders import AChain
from odf_testing.memory_store import in_memory
from odf_testing.passing_engine import PassingEngine
from odf_verifier.targets import Target
from odf_verifier.verification import Verdict, VerificationOptions, Verifier

NOWHERE: Final = Path("/dev/null")  # not writable


class Story:
    """A node's datasets; only slices and checkpoints that a test stores exist."""

    def __init__(self, home: Path = NOWHERE, engine: Engine | None = None) -> None:
        """Start with no dataset."""
        self.home = home
        self.datasets = in_memory()
        self.catalog, self.blobs, self.refs = self.datasets.catalog, self.datasets.blobs, self.datasets.refs
        self.engine = engine or cast("Engine", PassingEngine())
        self.verifier = Verifier(self.datasets, self.engine, home)

    def put(
        self, chain: AChain, *, name: str | None = None, to: Multihash | None = None, ref: str = HEAD
    ) -> None:
        """Store a chain's blocks, and move its reference to the last, or `to`; `name` adds it to the catalog."""
        dataset = chain.state.dataset_id
        for block, raw in chain.store.items():
            self.blobs.put(dataset, ObjectKind.BLOCK, block, raw)
        expected = self.refs.head(dataset, ref)
        self.refs.compare_and_set(dataset, expected=expected, new=to or chain.state.head, ref=ref)
        if name is not None:
            self.catalog.add(CatalogEntry(alias=name, dataset_id=dataset))

    def verify(self, chain: AChain, options: VerificationOptions, *, is_local: bool = True) -> Verdict:
        """Return the verdict on a chain named `hourly`."""
        dataset = chain.state.dataset_id
        target = Target(
            name="hourly",
            dataset=dataset,
            reader=StoredDataset(dataset, self.blobs, self.refs),
            is_local=is_local,
        )
        *_, verdict = self.verifier.verify(target, options)
        assert isinstance(verdict, Verdict)
        return verdict
