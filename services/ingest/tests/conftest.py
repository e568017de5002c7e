"""A dataset in memory, and a coordinator that admits what is proposed to it."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from odf_testing.builders import a_chain, a_dataset, a_seed

from odf_common.adapters.memory import MemoryBlobStore, MemoryRefStore
from odf_common.chain.build_blocks import build_blocks
from odf_common.chain.state import ChainState
from odf_common.chain.walk import fold, iterate
from odf_common.codec.bus import Envelope, envelope
from odf_common.codec.flatbuffers import decode_event
from odf_common.codec.times import time_of
from odf_common.data.slices import read_slice
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.errors import HeadMoved, OdfError
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.engine import RawQueryRequest, RawQueryResponseSuccess
from odf_common.metadata.events import AddData, AddPushSource, KnownEvent
from odf_common.metadata.scalars import Timestamp
from odf_common.metadata.steps import MergeStrategy, MergeStrategyAppend, ReadStep, ReadStepNdJson
from odf_common.ports.bus import COORDINATOR_COMMANDS, DeadLetter
from odf_common.ports.engine import IsWanted, always
from odf_common.ports.store import ObjectKind
from odf_common.proto.odf.bus.v1 import bus_pb2 as bus
from odf_common.service.request_reply import Replies
from odf_ingest.commit.commit_queue import CommitQueues
from odf_ingest.commit.committer import BatchCommitter
from odf_ingest.commit.propose import Proposals
from odf_ingest.commit.slice_writer import Drafter
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.prepare.preprocess import Preprocessor

VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "datasets"
COLUMNS = ("id BIGINT NOT NULL", "v STRING", "event_time TIMESTAMP")


@dataclass
class Clock:
    """Stands still until told."""

    ms: int = 1_800_000_000_000

    def now(self) -> Timestamp:
        return Timestamp.from_ms(self.ms)


class NoEngine:
    """Port `Engine` of a node without preprocessing."""

    def execute_raw_query(
        self, request: RawQueryRequest, is_wanted: IsWanted = always
    ) -> RawQueryResponseSuccess:
        raise AssertionError(request)


@dataclass
class Coordinator:
    """Port `Bus` that answers proposals at once; `before` happens just before the next one is looked at."""

    blobs: MemoryBlobStore
    refs: MemoryRefStore
    states: ChainStates
    letters: list[DeadLetter] = field(default_factory=list)
    before: list[Callable[[], None]] = field(default_factory=list)
    loses_replies: int = 0
    sent: list[tuple[str, Envelope]] = field(default_factory=list)
    replies: Replies | None = None

    def send(self, topic: str, message: Envelope) -> None:
        self.sent.append((topic, message))
        if topic != COORDINATOR_COMMANDS:
            return
        for action in [self.before.pop(0)] if self.before else []:
            action()
        answer = self._answer(message)
        if self.loses_replies:
            self.loses_replies -= 1
            return
        assert self.replies is not None
        self.replies.handle(envelope(message.dataset_id, answer, cause=message))

    def send_dead_letter(self, letter: DeadLetter) -> None:
        self.letters.append(letter)

    def flush(self, timeout: float = 10.0) -> None:
        pass

    def _answer(self, message: Envelope) -> bus.Committed | bus.HeadMoved | bus.Refused:
        dataset = DatasetId.parse(message.dataset_id)
        expected = Multihash.from_bytes(message.propose.expected_head)
        events = [decode_event(raw) for raw in message.propose.events]
        try:
            state = self.commit(dataset, expected, events, time_of(message.propose.system_time))  # type: ignore[arg-type]
        except HeadMoved:
            head = self.refs.head(dataset)
            return bus.HeadMoved(head=head.raw if head else b"")
        except OdfError as error:
            return bus.Refused(code=error.code, text=str(error))
        return bus.Committed(head=state.head.raw)

    def commit(
        self, dataset: DatasetId, expected: Multihash | None, events: list[KnownEvent], system_time: Timestamp
    ) -> ChainState:
        past = None if expected is None else self.states.at(dataset, expected)
        blocks, state = build_blocks(past, events, system_time=system_time, version=3)
        for block in blocks:
            self.blobs.put(dataset, ObjectKind.BLOCK, block.hash, block.raw)
        self.refs.compare_and_set(dataset, expected=expected, new=state.head)
        return state


@dataclass
class Bench:
    """One dataset with one source, and all that ingest needs to commit to it."""

    dataset: DatasetId
    coordinator: Coordinator
    blobs: MemoryBlobStore
    refs: MemoryRefStore
    states: ChainStates
    queues: CommitQueues
    preparer: Preparer
    clock: Clock
    pool: ThreadPoolExecutor

    @property
    def state(self) -> ChainState:
        state = self.states.current(self.dataset)
        assert state is not None
        return state

    def propose(self, *events: KnownEvent) -> None:
        """Commit past ingest."""
        state = self.state
        self.coordinator.commit(
            self.dataset, state.head, list(events), Timestamp.from_ms(state.system_time.ms + 1)
        )

    def events(self) -> Sequence[object]:
        return [decoded.block.event for _, decoded, _ in iterate(self._read, self.state.head)][::-1]

    def rows(self) -> list[dict[str, object]]:
        slices = [event.new_data for event in self.events() if isinstance(event, AddData) and event.new_data]
        tables = [
            read_slice(self.blobs.local_path(self.dataset, ObjectKind.DATA, one.physical_hash))
            for one in slices
        ]
        return [row for table in tables for row in table.to_pylist()]

    def values(self, *names: str) -> list[tuple[object, ...]]:
        return [tuple(row.get(name) for name in names) for row in self.rows()]

    def _read(self, name: Multihash) -> bytes:
        return self.blobs.read(self.dataset, ObjectKind.BLOCK, name)


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[MakeBench]:
    pools = []

    def make(
        merge: MergeStrategy | None = None,
        read: ReadStep | None = None,
        *events: KnownEvent,
        is_signed: bool = False,
    ) -> Bench:
        source = AddPushSource(
            source_name="default",
            read=read or ReadStepNdJson(ddl_schema=COLUMNS),
            merge=merge or MergeStrategyAppend(),
        )
        chain = a_chain(a_seed(), *events, source)
        bench, pool = _bench(a_dataset(), is_signed=is_signed)
        pools.append(pool)
        for name, raw in chain.store.items():
            bench.blobs.put(bench.dataset, ObjectKind.BLOCK, name, raw)
        bench.refs.compare_and_set(bench.dataset, expected=None, new=chain.state.head)
        return bench

    yield make
    for pool in pools:
        pool.shutdown()


@pytest.fixture
def bench_of() -> Iterator[Callable[[str], Bench]]:
    """Return what goes on with a dataset that another implementation has written."""
    pools = []

    def make(name: str) -> Bench:
        root = VECTORS / name
        head = Multihash.parse((root / "refs" / "head").read_text().strip())
        dataset = fold(lambda block: (root / "blocks" / str(block)).read_bytes(), head).dataset_id
        bench, pool = _bench(dataset, is_signed=False)
        pools.append(pool)
        for kind, folder in ((ObjectKind.BLOCK, "blocks"), (ObjectKind.DATA, "data")):
            for file in (root / folder).iterdir():
                bench.blobs.put(dataset, kind, Multihash.parse(file.name), file.read_bytes())
        bench.refs.compare_and_set(dataset, expected=None, new=head)
        return bench

    yield make
    for pool in pools:
        pool.shutdown()


def _bench(dataset: DatasetId, *, is_signed: bool) -> tuple[Bench, ThreadPoolExecutor]:
    refs = MemoryRefStore()
    blobs = MemoryBlobStore(refs)
    states = ChainStates(blobs, refs, NoStateCache())
    coordinator = Coordinator(blobs, refs, states)
    coordinator.replies = Replies(coordinator)  # type: ignore[arg-type]
    coordinator.replies.on_owned(frozenset())
    clock = Clock()
    drafter = Drafter(blobs, clock, block_version=3, is_signed=is_signed)
    pool = ThreadPoolExecutor(4)
    queues = CommitQueues(
        blobs, states, BatchCommitter(states, drafter, Proposals(coordinator.replies)), pool
    )
    preparer = Preparer(Preprocessor(NoEngine(), blobs.scratch))  # type: ignore[arg-type]
    return Bench(dataset, coordinator, blobs, refs, states, queues, preparer, clock, pool), pool
