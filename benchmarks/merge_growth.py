"""How the cost of merging grows with the size of a dataset: `python benchmarks/merge_growth.py`.

Prints, for each keyed strategy, the processor time that a batch takes to merge after a few and after many batches,
and that of the first batch after a restart, when the slices have to be read. Only the ratios are meaningful.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from odf_testing.builders import a_seed
from odf_testing.memory_store import MemoryBlobStore

from odf_common.chain.build_blocks import build_blocks
from odf_common.chain.state import ChainState
from odf_common.data.columns import TIMESTAMP
from odf_common.metadata.events import (
    AddPushSource,
    MergeStrategy,
    MergeStrategyLedger,
    MergeStrategyUpsertStream,
    ReadStepNdJson,
)
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.store import BlobStore, ObjectKind
from odf_ingest.commit.position import SourcePosition
from odf_ingest.commit.slice_writer import Drafter
from odf_ingest.history.dataset_history import DatasetHistory
from odf_ingest.prepare.preparer import PreparedRecords
from odf_ingest.source_settings import SourceSettings

ROWS = 1_000  # records per batch
UPDATED = 100  # of which have an existing key
KEY = ("id",)


class Clock:
    """Port `Clock` that never advances: system times increase nevertheless."""

    def now(self) -> Timestamp:
        """Return the same timestamp always."""
        return Timestamp.from_ms(1_800_000_000_000)


@dataclass
class Dataset:
    """A dataset, and the processor time that merging each batch took, in seconds; `whole`: up to its commit."""

    source: AddPushSource
    state: ChainState
    blobs: BlobStore
    drafter: Drafter
    history: DatasetHistory
    seconds: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)

    def restart(self) -> None:
        """Drop the state in memory; the stored index is kept."""
        self.history = _history(self.blobs, self.state)

    def catch_up(self) -> None:
        """Update the index, as is done before a batch takes its place in the queue."""
        self.history.catch_up(self.source.merge, lambda: self.state)

    def prepared(self, records: pa.Table) -> PreparedRecords:
        """Return records as they are merged."""
        return PreparedRecords(
            source=self.source,
            records=records,
            default_event_time=Timestamp.from_ms(0),
            greatest={},
            is_state=True,
        )

    def commit(self, records: pa.Table) -> None:
        """Append a batch."""
        begun = time.process_time()
        self.catch_up()
        merged = self.drafter.merge_records(
            self.state, self.prepared(records), self.history.at(self.state), SourceSettings()
        )
        self.seconds.append(time.process_time() - begun)
        draft = self.drafter.draft(
            self.state, merged, source="default", position=SourcePosition(), watermark=None
        )
        blocks, self.state = build_blocks(self.state, draft.events, system_time=draft.system_time, version=3)
        for block in blocks:
            self.blobs.put(self.state.dataset_id, ObjectKind.BLOCK, block.hash, block.raw)
        if draft.slice is not None:
            self.history.cache_slice(*draft.slice)
            # Create its file now: the store in memory would create it on reading.
            self.blobs.local_path(self.state.dataset_id, ObjectKind.DATA, draft.slice[0])
        self.whole.append(time.process_time() - begun)


def _history(blobs: BlobStore, state: ChainState) -> DatasetHistory:
    dataset = state.dataset_id
    return DatasetHistory(
        lambda name: blobs.read(dataset, ObjectKind.BLOCK, name),
        lambda name: blobs.local_path(dataset, ObjectKind.DATA, name),
        blobs.index_folder(dataset),
    )


def a_dataset(strategy: MergeStrategy, blobs: BlobStore | None = None) -> Dataset:
    """Return a dataset with one source and no records."""
    blobs = blobs or MemoryBlobStore()
    source = AddPushSource(source_name="default", read=ReadStepNdJson(), merge=strategy)
    blocks, state = build_blocks(None, (a_seed(), source), system_time=Timestamp.from_ms(0), version=3)
    for block in blocks:
        blobs.put(state.dataset_id, ObjectKind.BLOCK, block.hash, block.raw)
    drafter = Drafter(blobs, Clock(), block_version=3, is_signed=False)
    return Dataset(source, state, blobs, drafter, _history(blobs, state))


def a_batch(number: int, random: np.random.Generator) -> pa.Table:
    """Return records of new keys, and of some existing ones if there are any."""
    first = number * (ROWS - UPDATED)
    new = np.arange(first, first + ROWS - UPDATED)
    old = random.choice(max(first, 1), UPDATED) if first else np.arange(-UPDATED, 0)
    keys = np.concatenate((new, old))
    values = random.integers(0, 1_000_000, len(keys))
    return pa.table(
        {
            "id": keys,
            "name": [f"name of {key}" for key in keys],
            "value": values,
            "event_time": pa.array(np.full(len(keys), number), pa.int64()).cast(TIMESTAMP),
        }
    )


def milliseconds(seconds: Sequence[float]) -> float:
    """Return the mean, in which occasional merges of runs count as often as they happen."""
    return statistics.fmean(seconds) * 1000


def measure(strategy: MergeStrategy, batches: int, restarts: Sequence[int]) -> None:
    """Print the cost of a strategy."""
    random = np.random.default_rng(7)
    dataset = a_dataset(strategy)
    first: dict[int, float] = {}
    print(type(strategy).__name__.removeprefix("MergeStrategy"))
    for number in range(batches):
        if number in restarts:
            dataset.restart()
        dataset.commit(a_batch(number, random))
        if number in restarts:
            first[number] = dataset.seconds.pop()
    early, late = milliseconds(dataset.seconds[10:42]), milliseconds(dataset.seconds[-64:])
    print(f"  a batch of {ROWS:,}: {early:.1f} ms at the 10th, {late:.1f} ms at the {batches}th")
    for slices, seconds in first.items():
        print(
            f"  first batch after a restart at {slices} slices: {seconds:.2f} s, {seconds / slices * 1000:.2f} ms each"
        )


def main() -> None:
    """Measure both strategies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=800)
    parser.add_argument("--restarts", type=int, nargs="*", default=[50, 400])
    args = parser.parse_args()
    for strategy in (MergeStrategyUpsertStream(primary_key=KEY), MergeStrategyLedger(primary_key=KEY)):
        measure(strategy, args.batches, args.restarts)


if __name__ == "__main__":
    main()
