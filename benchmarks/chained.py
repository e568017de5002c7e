"""A root of departures and a derivative of it, in a folder: the coordinator's own parts, without Kafka and Redis.

Each block of the root has `RECORDS` departures of one hour, from half past to half past, and a watermark at the full
hour between: so each closes the window that began in the previous block, and leaves half its records for the next one.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from odf_testing.coordinator import FakeBus, FakeTopics

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.adapters.reserve import Reserve
from odf_common.adapters.system_clock import SystemClock
from odf_common.chain.build_blocks import add_data_event
from odf_common.data.columns import with_system_columns
from odf_common.data.ddl import ddl_to_schema
from odf_common.data.schema_evolution import schema_to_event
from odf_common.data.slices import slice_schema, write_slice
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import DataSlice, KnownEvent, OffsetInterval
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.engine import Engine
from odf_common.ports.store import ObjectKind
from odf_common.service.environment import FreeLocks
from odf_coordinator.catalog.datasets import DatasetHandle, Datasets, KeyStore, OwnershipCheck
from odf_coordinator.commit.committer import Committer, require_committed
from odf_coordinator.commit.head_publisher import Publisher
from odf_coordinator.definitions.create import DatasetCreator
from odf_coordinator.definitions.drafts import Manifest
from odf_coordinator.lifecycle import Claims
from odf_coordinator.transforms.runner import Transformer

RECORDS: Final = 1_000  # per transaction
HOUR: Final = 3_600_000  # ms
CARRIERS: Final = 16
COLUMNS: Final = (
    "time_hour TIMESTAMP(3)",
    "carrier STRING",
    "flight INT",
    "origin STRING",
    "dest STRING",
    "dep_delay DOUBLE",
)
_ROOT: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {{kind: NdJson, schema: [{columns}]}}
      merge: {{kind: Append}}
    - kind: SetVocab
      eventTimeColumn: time_hour
"""
_DERIVATIVE: Final = """\
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{{datasetRef: {root}, alias: flights}}]
      transform:
        kind: Sql
        engine: spark
        query: "{query}"
"""


def departures(block: int) -> pa.Table:
    """Return the records of the root's block of this number, without system columns."""
    start = block * HOUR + HOUR // 2
    numbers = range(RECORDS)
    return pa.table(
        {
            "time_hour": [start + n * HOUR // RECORDS for n in numbers],
            "carrier": [f"C{n % CARRIERS}" for n in numbers],
            "flight": list(numbers),
            "origin": [("JFK", "LGA", "EWR")[n % 3] for n in numbers],
            "dest": ["LAX"] * RECORDS,
            "dep_delay": [float(n % 120) for n in numbers],
        },
        schema=ddl_to_schema(COLUMNS),
    )


def watermark(block: int) -> int:
    """Return the root's watermark after a block, in ms."""
    return (block + 1) * HOUR


class Coordinator:
    """The parts of a coordinator that add datasets, commit and transform."""

    def __init__(self, home: Path, engine: Engine) -> None:
        """Store everything in a folder."""
        self.blobs, refs, catalog = LocalBlobStore(home), LocalRefStore(home), LocalCatalog(home)
        states = ChainStates(self.blobs, refs, NoStateCache())
        keys = KeyStore(home / "keys")
        self.clock = SystemClock()
        self.datasets = Datasets(catalog=catalog, states=states, blobs=self.blobs, refs=refs)
        self.committer = Committer(
            blobs=self.blobs,
            refs=refs,
            states=states,
            locks=FreeLocks(),
            require_owned=OwnershipCheck(keys=keys, catalog=catalog).require,
            clock=self.clock,
        )
        claims = Claims(
            datasets=self.datasets,
            refs=refs,
            committer=self.committer,
            topics=FakeTopics(),
            publisher=Publisher(bus=FakeBus(), catalog=catalog),
            keys=keys,
            reserve=Reserve(home),
        )
        self.creator = DatasetCreator(
            datasets=self.datasets,
            committer=self.committer,
            claims=claims,
            engine=engine,
            clock=self.clock,
            keys=keys,
        )
        self.transformer = Transformer(
            datasets=self.datasets,
            committer=self.committer,
            engine=engine,
            blobs=self.blobs,
            commit_first_schemas=lambda _: None,  # each of its roots has records
        )

    def append(self, dataset: DatasetId, records: pa.Table, watermark: Timestamp) -> Path:
        """Commit records without system columns to a root; return the file of the slice."""
        known = self._known(dataset)
        events, file = self._appending(known, records, watermark)
        outcome = self.committer.commit(
            known.id, expected_head=known.state.head, events=events, system_time=self.clock.now()
        )
        require_committed(known.id, outcome)
        return file

    def transform(self, dataset: DatasetId) -> tuple[float, int]:
        """Update a derivative; return the seconds from the request until its block is committed, and its records."""
        begun = time.perf_counter()
        known = self._known(dataset)
        plan = self.transformer.plan(known)
        assert plan is not None, "something was pushed"
        self.transformer.perform(known, plan)
        seconds = time.perf_counter() - begun
        return seconds, self._known(dataset).state.next_offset - known.state.next_offset

    def _known(self, dataset: DatasetId) -> DatasetHandle:
        known = self.datasets.by_id(dataset)
        assert known is not None, "datasets are added and stay"
        return known

    def _appending(
        self, known: DatasetHandle, records: pa.Table, watermark: Timestamp
    ) -> tuple[list[KnownEvent], Path]:
        state = known.state
        table = with_system_columns(
            records,
            ops=None,
            first_offset=state.next_offset,
            system_time=self.clock.now(),
            vocab=state.vocabulary,
            signed=False,
        )
        scratch = self.blobs.scratch()
        file = scratch / "slice"
        written = write_slice(table, file)
        schema = slice_schema(file)
        self.blobs.put_file(known.id, ObjectKind.DATA, written.physical_hash, file)
        scratch.rmdir()
        data = DataSlice(
            logical_hash=written.logical_hash,
            physical_hash=written.physical_hash,
            offset_interval=OffsetInterval(start=state.next_offset, end=state.next_offset + len(records) - 1),
            size=written.size,
        )
        event = add_data_event(state, new_data=data, watermark=watermark, source_state=None)
        stored = self.blobs.local_path(known.id, ObjectKind.DATA, written.physical_hash)
        return ([event] if state.schema is not None else [schema_to_event(schema), event]), stored


@dataclass(slots=True, kw_only=True)
class Pair:
    """A root and its derivative; `blocks` is the number pushed so far."""

    coordinator: Coordinator
    root: DatasetId
    derived: DatasetId
    blocks: int = 0

    def push(self) -> None:
        """Commit the root's next block."""
        reached = Timestamp.from_ms(watermark(self.blocks))
        self.coordinator.append(self.root, departures(self.blocks), reached)
        self.blocks += 1

    def transform(self) -> tuple[float, int]:
        """Update the derivative; return the seconds from the request until its block is committed, and its records."""
        seconds, records = self.coordinator.transform(self.derived)
        assert records > 0, "each push gives records"
        return seconds, records


def add(coordinator: Coordinator, name: str, query: str) -> Pair:
    """Create a root and a derivative of it; `query` reads `flights`."""
    root = _ROOT.format(name=f"{name}.root", columns=", ".join(COLUMNS))
    derived = _DERIVATIVE.format(name=name, root=f"{name}.root", query=query)
    coordinator.creator.add(
        [
            Manifest(name="root.yaml", text=root.encode()),
            Manifest(name="derived.yaml", text=derived.encode()),
        ],
        is_replacing=False,
    )
    return found(coordinator, name)


def found(coordinator: Coordinator, name: str) -> Pair:
    """Return an existing root and its derivative, with their states folded."""
    find = coordinator.datasets.find
    return Pair(coordinator=coordinator, root=find(f"{name}.root").id, derived=find(name).id)
