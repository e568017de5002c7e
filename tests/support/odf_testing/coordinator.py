"""A coordinator in memory, for tests: real chains and rules, an engine that passes records through.

Chains are stored as a pull does, and imported.
"""

import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.chain.build_blocks import add_data_event, build_blocks
from odf_common.chain.state import ChainState
from odf_common.codec.envelopes import Envelope
from odf_common.data.columns import with_system_columns
from odf_common.data.schema_evolution import check_evolution, schema_of_event, schema_to_event
from odf_common.data.slices import slice_schema, write_slice
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.dataset.state_cache import ChainStates, NoStateCache, StateCache
from odf_common.errors import OdfError, Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import HEAD, DatasetId
from odf_common.metadata.events import DataSlice, KnownEvent, OffsetInterval
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.clock import Clock
from odf_common.ports.store import BlobStore, Catalog, Locks, ObjectKind, RefStore
from odf_common.service.environment import Environment, FreeLocks
from odf_common.service.settings import Settings
from odf_coordinator.api.bus_handlers import Notifications
from odf_coordinator.catalog.datasets import DatasetHandle, KeyStore
from odf_coordinator.commit.committer import Committer, Outcome, Refusal, require_committed
from odf_coordinator.definitions.create import AddResult
from odf_coordinator.definitions.drafts import Manifest
from odf_coordinator.service import assemble, build_committer
from odf_testing.bus import MemoryBus, MemoryTopics
from odf_testing.clocks import TickingClock
from odf_testing.memory_store import MemoryBlobStore, MemoryCatalog, MemoryRefStore
from odf_testing.passing_engine import PassingEngine

__all__ = ["Coordinator", "FakeBus", "FakeTopics", "NoIngest", "PassingEngine"]


DATA = pa.schema([("event_time", pa.timestamp("ms", "UTC")), ("city", pa.string())])


class FakeTopics(MemoryTopics):
    """Names of topics."""

    def __init__(self) -> None:
        super().__init__()
        self.is_lost = False

    def create_push_topic(self, name: str, partitions: int = 1) -> None:
        if self.is_lost:
            raise Unavailable(what="Kafka")
        super().create_push_topic(name, partitions)

    def delete_topic(self, name: str) -> None:
        if self.is_lost:
            raise Unavailable(what="Kafka")
        super().delete_topic(name)


class FakeBus(MemoryBus):
    """Stores what was sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[str, Envelope]] = []

    def send(self, topic: str, envelope: Envelope) -> None:
        self.sent.append((topic, envelope))


class NoIngest:
    """No messages wait."""

    def __init__(self) -> None:
        self.drained: list[DatasetId] = []
        self.polled: list[DatasetId] = []
        self.poll_error: OdfError | None = None

    def drain(self, dataset: DatasetId) -> Iterator[int]:
        self.drained.append(dataset)
        yield 0

    def poll(
        self, dataset: DatasetId, source: bytes = b"", consumers: Sequence[str] = ()
    ) -> Generator[str, None, None]:
        del source, consumers
        self.polled.append(dataset)
        yield "fetching"
        if self.poll_error is not None:
            raise self.poll_error


@dataclass
class Coordinator:
    """All parts of a coordinator, and helpers of tests."""

    home: Path
    engine: PassingEngine = field(default_factory=PassingEngine)
    topics: FakeTopics = field(default_factory=FakeTopics)
    bus: FakeBus = field(default_factory=FakeBus)
    ingest: NoIngest = field(default_factory=NoIngest)
    now: float = 0.0
    is_durable: bool = False  # over the files in `home`, as another process would find them
    stores: tuple[BlobStore, RefStore] | None = None  # other ones, with the names in `home`
    locks: Locks = field(default_factory=FreeLocks)
    cache: StateCache = field(default_factory=NoStateCache)
    clock: Clock = field(default_factory=TickingClock)

    def __post_init__(self) -> None:
        self._open_stores()
        self.states = ChainStates(self.blobs, self.refs, self.cache)
        self.env = Environment(
            settings=Settings(home=self.home),
            catalog=self.catalog,
            blobs=self.blobs,
            refs=self.refs,
            states=self.states,
            clock=self.clock,
            bus=self.bus,
            topics=self.topics,
            locks=self.locks,
            engine=self.engine,
            claim=lambda: None,
            close=lambda: None,
        )
        is_assigned = KeyStore(self.home / "keys").has
        parts = assemble(self.env, self.ingest, is_assigned=is_assigned, clock=lambda: self.now)
        self.parts, self.datasets, self.scheduler = parts, parts.datasets, parts.scheduler
        self.collector, self.claims, self.creator = parts.collector, parts.collector.claims, parts.creator
        self.keys, self.publisher, self.committer = (
            self.claims.keys,
            self.claims.publisher,
            self.creator.committer,
        )
        self.importer, self.editor, self.names = parts.importer, parts.editor, parts.names
        self.puller = parts.puller
        self.references, self.record_reader, self.upgrader = (
            parts.references,
            parts.record_reader,
            parts.upgrader,
        )
        self.dropper, self.first_schemas = parts.dropper, parts.first_schemas
        self.notifications = Notifications(
            scheduler=self.scheduler, datasets=self.datasets, slices=self.record_reader.slices
        )

    @property
    def node_datasets(self) -> NodeDatasets:
        """Return the datasets as seen by the other services of the node."""
        return NodeDatasets(catalog=self.catalog, blobs=self.blobs, refs=self.refs, states=self.states)

    def _open_stores(self) -> None:
        self.refs: RefStore
        self.blobs: BlobStore
        self.catalog: Catalog
        if self.stores is not None:
            (self.blobs, self.refs), self.catalog = self.stores, LocalCatalog(self.home)
        elif self.is_durable:
            self.refs, self.blobs = LocalRefStore(self.home), LocalBlobStore(self.home)
            self.catalog = LocalCatalog(self.home)
        else:
            heads = MemoryRefStore()
            self.refs, self.blobs, self.catalog = heads, MemoryBlobStore(heads), MemoryCatalog()

    def new_committer(
        self, *, refs: RefStore | None = None, locks: Locks | None = None, lock_ttl_ms: int = 10_000
    ) -> Committer:
        """Return one more committer over the same stores, like that of another instance."""
        env = replace(
            self.env,
            refs=refs or self.refs,
            locks=locks or self.locks,
            settings=replace(self.env.settings, lock_ttl_ms=lock_ttl_ms),
        )
        return build_committer(env, self.keys, self.datasets.stalls)

    def add(self, *texts: str, replace: bool = False) -> tuple[AddResult, ...]:
        manifests = [Manifest(name=f"m{n}.yaml", text=text.encode()) for n, text in enumerate(texts)]
        return self.creator.add(manifests, is_replacing=replace)

    def find(self, ref: str) -> DatasetHandle:
        return self.datasets.find(ref)

    def ingest_events(
        self, known: DatasetHandle, cities: Iterable[str], minute: int
    ) -> tuple[KnownEvent, ...]:
        """Return the events of one slice, whose object is stored."""
        moments = [minute * 60_000] * len(list(cities := list(cities)))
        return self.slice_events(
            known, pa.table({"event_time": moments, "city": cities}, schema=DATA), minute
        )

    def slice_events(
        self, known: DatasetHandle, records: pa.Table, minute: int, system_time: Timestamp | None = None
    ) -> tuple[KnownEvent, ...]:
        """Return the events of one slice of any columns, with that of its schema where it is another one."""
        state = known.state
        table = with_system_columns(
            records,
            ops=None,
            first_offset=state.next_offset,
            system_time=system_time or self.clock.now(),
            vocab=state.vocabulary,
            signed=False,
        )
        file = self.blobs.scratch() / "slice"
        written = write_slice(table, file)
        schema = slice_schema(file)
        self.blobs.put_file(known.id, ObjectKind.DATA, written.physical_hash, file)
        interval = OffsetInterval(start=state.next_offset, end=state.next_offset + len(table) - 1)
        data = DataSlice(
            logical_hash=written.logical_hash,
            physical_hash=written.physical_hash,
            offset_interval=interval,
            size=written.size,
        )
        event = add_data_event(
            state, new_data=data, watermark=Timestamp.from_ms(minute * 60_000), source_state=None
        )
        is_known = state.schema is not None and not check_evolution(schema_of_event(state.schema), schema)
        return (event,) if is_known else (schema_to_event(schema), event)

    def push(self, ref: str, *cities: str, minute: int = 0) -> DatasetHandle:
        """Commit one slice to a root."""
        known = self.find(ref)
        require_committed(known.id, self.propose(known, self.ingest_events(known, cities, minute)))
        return self.find(ref)

    def push_table(self, ref: str, records: pa.Table, minute: int = 0) -> DatasetHandle:
        """Commit one slice of any columns to a root."""
        known = self.find(ref)
        require_committed(known.id, self.propose(known, self.slice_events(known, records, minute)))
        return self.find(ref)

    def propose(
        self, known: DatasetHandle, events: Iterable[KnownEvent], *, system_time: Timestamp | None = None
    ) -> Outcome:
        """Propose on the head of `known`."""
        return self.committer.commit(
            known.id,
            expected_head=known.state.head,
            events=tuple(events),
            system_time=system_time or self.clock.now(),
        )

    @contextmanager
    def scheduler_running(self) -> Iterator[None]:
        """Run the scheduler within the block."""
        stop = threading.Event()
        thread = threading.Thread(target=self.scheduler.run, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def stall_text(self, dataset: DatasetId) -> str:
        """Return why a derivative makes no progress, or an empty string."""
        stall = self.scheduler.stall_of(dataset)
        return "" if stall is None else stall.reason

    def work(self) -> int:
        """Do all transforms that are due; returns the number of runs."""
        looks = 0
        while self.scheduler.work():
            looks += 1
        return looks


def stored(node: Coordinator, past: ChainState, *events: KnownEvent) -> ChainState:
    """Store blocks on top of a state, as a pull does before it asks for an import."""
    time = type(past.system_time)(past.system_time.ns + 1_000_000_000)
    blocks, state = build_blocks(past, events, system_time=time, version=3)
    for block in blocks:
        node.blobs.put(past.dataset_id, ObjectKind.BLOCK, block.hash, block.raw)
    return state


def forget(node: Coordinator, known: DatasetHandle) -> None:
    """Leave only the blocks and objects of a dataset, as a pull of another node's dataset stores them."""
    node.keys.remove(known.id)
    node.catalog.remove(known.alias)
    node.refs.remove(known.id, HEAD, expected=None)


def imported(
    node: Coordinator, dataset: DatasetId, expected: Multihash | None, head: Multihash, alias: str = ""
) -> Outcome:
    return node.importer.import_chain(dataset, expected_head=expected, new_head=head, alias=alias)


def refused(node: Coordinator, known: DatasetHandle, outcome: Outcome) -> str:
    """Return why nothing was imported."""
    assert isinstance(outcome, Refusal), outcome
    assert node.refs.head(known.id) == known.state.head
    assert node.find("cities").state == known.state
    return outcome.text


def forced(node: Coordinator, known: DatasetHandle, head: Multihash) -> Outcome:
    expected = node.refs.head(known.id)
    return node.importer.import_chain(
        known.id, expected_head=expected, new_head=head, alias="", is_forced=True
    )
