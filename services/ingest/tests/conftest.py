"""A dataset in memory, and a coordinator that accepts proposals to it."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any, cast

import pytest
from odf_testing.builders import a_chain, a_dataset, a_seed
from odf_testing.clocks import ManualClock
from odf_testing.letters import StoredLetters
from odf_testing.memory_store import MemoryBlobStore, MemoryRefStore

from odf_common.chain.state import ChainState
from odf_common.chain.walk import fold, iterate
from odf_common.codec.envelopes import Envelope
from odf_common.data.slices import read_slice
from odf_common.dataset.open_rejects import open_rejects, rejecting_sources
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.errors import Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.engine_messages import RawQueryRequest, RawQueryResponseSuccess
from odf_common.metadata.events import (
    AddData,
    AddPushSource,
    KnownEvent,
    MergeStrategy,
    MergeStrategyAppend,
    ReadStep,
    ReadStepNdJson,
    SetPollingSource,
)
from odf_common.metadata.fetching import FetchStep
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.bus import COORDINATOR_COMMANDS, DeadLetter, StoredLetter
from odf_common.ports.engine import IsWanted, always
from odf_common.ports.store import ObjectKind
from odf_common.service.environment import FreeLocks
from odf_common.service.request_reply import Replies
from odf_coordinator.api.bus_handlers import Commands
from odf_coordinator.commit.committer import Committer, require_committed
from odf_coordinator.operations.references import Importer
from odf_ingest.commit.committer import BatchCommitter, CommitQueues, Pools, Proposals
from odf_ingest.commit.rejects import RejectPolicy
from odf_ingest.commit.slice_writer import Drafter
from odf_ingest.control.rejected_messages import RejectedMessages
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.prepare.preprocess import Preprocessor
from odf_ingest.source_settings import SourceSettings, save_settings

VECTORS = Path(__file__).parents[3] / "tests" / "vectors" / "datasets"
COLUMNS = ("id BIGINT NOT NULL", "v STRING", "event_time TIMESTAMP")


class NoEngine:
    """Port `Engine` of a node without preprocessing."""

    def execute_raw_query(
        self, request: RawQueryRequest, is_wanted: IsWanted = always
    ) -> RawQueryResponseSuccess:
        raise AssertionError(request)


class Coordinator:
    """Port `Bus` with a real coordinator; `before` is called just before it handles the next proposal. `letters` are
    the flushed ones: a proposal while others are unflushed is a bug of ours.
    """

    def __init__(self, blobs: MemoryBlobStore, refs: MemoryRefStore) -> None:
        committer = Committer(
            blobs=blobs,
            refs=refs,
            states=ChainStates(blobs, refs, NoStateCache()),
            locks=FreeLocks(),
            require_owned=lambda _: None,
            clock=ManualClock(),
        )
        self._committer = committer
        self._commands = Commands(committer=committer, importer=cast("Importer", None))
        self.letters: list[DeadLetter] = []
        self._queued: defaultdict[int, list[DeadLetter]] = defaultdict(list)  # by thread
        self.lost_flushes = 0
        self.before: list[Callable[[], None]] = []
        self.loses_replies = 0
        self.loses_proposals = 0
        self.sent: list[tuple[str, Envelope]] = []
        self.replies: Replies | None = None

    def send(self, topic: str, message: Envelope) -> None:
        self.sent.append((topic, message))
        if topic != COORDINATOR_COMMANDS:
            return
        if self.loses_proposals:
            self.loses_proposals -= 1
            return
        assert not self._queued[get_ident()], "a dead letter may be lost though its position is committed"
        for action in [self.before.pop(0)] if self.before else []:
            action()
        (answer,) = self._commands.handle(message)
        if self.loses_replies:
            self.loses_replies -= 1
            return
        assert self.replies is not None
        self.replies.handle(answer.envelope)

    def send_dead_letter(self, letter: DeadLetter) -> None:
        self._queued[get_ident()].append(letter)

    def flush(self, timeout: float = 10.0) -> None:
        queued = self._queued.pop(get_ident(), [])
        if self.lost_flushes:
            self.lost_flushes -= 1
            raise Unavailable(what="Kafka")
        self.letters += queued

    def commit(
        self, dataset: DatasetId, expected: Multihash | None, events: list[KnownEvent], system_time: Timestamp
    ) -> ChainState:
        outcome = self._committer.commit(
            dataset, expected_head=expected, events=events, system_time=system_time
        )
        return require_committed(dataset, outcome).state


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
    clock: ManualClock
    pool: ThreadPoolExecutor

    @property
    def rejecting(self) -> RejectPolicy:
        return RejectPolicy(cast("Any", self.coordinator), self.blobs)

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

    @property
    def reasons(self) -> list[tuple[int, str]]:
        """Return the offsets of dead letters, and why they are dead."""
        return [(letter.offset, letter.reason) for letter in self.coordinator.letters]

    def set(self, **settings: Any) -> None:
        """Choose settings of the source; the others are the defaults."""
        save_settings(self.blobs, self.dataset, "default", SourceSettings(**settings))

    def record_slice_reads(self) -> list[Multihash]:
        """Return the list of slices that are read for merging from now on."""
        history, read = self.queues.queue(self.dataset).history, list[Multihash]()
        path = history._slice_path

        def recorded(name: Multihash) -> Path:
            read.append(name)
            return path(name)

        history._slice_path = recorded
        return read

    def rejected_messages(self, letters: StoredLetters) -> RejectedMessages:
        """Return the object that lists and retries rejected messages and rows."""
        return RejectedMessages(
            queues=self.queues,
            blobs=self.blobs,
            letters=letters,
            preparer=self.preparer,
            bus=cast("Any", self.coordinator),
        )

    def open_letters(self, rejected: RejectedMessages) -> Sequence[StoredLetter]:
        """Return the open ones, whose number equals the count."""
        found = list(rejected.open(self.dataset))
        assert open_rejects(self.blobs, self.state, rejecting_sources(self.state)).count == len(found)
        return found

    def _read(self, name: Multihash) -> bytes:
        return self.blobs.read(self.dataset, ObjectKind.BLOCK, name)


MakeBench = Callable[..., Bench]


@pytest.fixture
def benches() -> Iterator[Callable[..., Bench]]:
    """Return a factory of benches, with a chain in memory if events are given."""
    pools = []

    def make(dataset: DatasetId | None = None, *events: KnownEvent, is_signed: bool = False) -> Bench:
        bench, pool = _bench(dataset or a_dataset(), is_signed=is_signed)
        pools.append(pool)
        if events:
            chain = a_chain(a_seed(), *events)
            for name, raw in chain.store.items():
                bench.blobs.put(bench.dataset, ObjectKind.BLOCK, name, raw)
            bench.refs.compare_and_set(bench.dataset, expected=None, new=chain.state.head)
        return bench

    yield make
    for pool in pools:
        pool.shutdown()


@pytest.fixture
def make_bench(benches: Callable[..., Bench]) -> MakeBench:
    """Return a factory of datasets with the push source `default`."""

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
        return benches(None, *events, source, is_signed=is_signed)

    return make


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    """A dataset with the push source `default`, which appends."""
    return make_bench()


@pytest.fixture
def make_polled(benches: Callable[..., Bench]) -> MakeBench:
    """Return a factory of datasets with a polling source."""

    def make(fetch: FetchStep, merge: MergeStrategy | None = None, **more: Any) -> Bench:
        usual = {"read": ReadStepNdJson(ddl_schema=COLUMNS[:2]), "merge": merge or MergeStrategyAppend()}
        return benches(None, SetPollingSource(fetch=fetch, **{**usual, **more}))

    return make


@pytest.fixture
def bench_of(benches: Callable[..., Bench]) -> Callable[[str], Bench]:
    """Return a bench that continues a dataset that another implementation has written."""

    def make(name: str) -> Bench:
        root = VECTORS / name
        head = Multihash.parse((root / "refs" / "head").read_text().strip())
        dataset = fold(lambda block: (root / "blocks" / str(block)).read_bytes(), head).dataset_id
        bench = benches(dataset)
        for kind, folder in ((ObjectKind.BLOCK, "blocks"), (ObjectKind.DATA, "data")):
            for file in (root / folder).iterdir():
                bench.blobs.put(dataset, kind, Multihash.parse(file.name), file.read_bytes())
        bench.refs.compare_and_set(dataset, expected=None, new=head)
        return bench

    return make


def _bench(dataset: DatasetId, *, is_signed: bool) -> tuple[Bench, ThreadPoolExecutor]:
    refs = MemoryRefStore()
    blobs = MemoryBlobStore(refs)
    states = ChainStates(blobs, refs, NoStateCache())
    coordinator = Coordinator(blobs, refs)
    coordinator.replies = Replies(coordinator)  # type: ignore[arg-type]
    coordinator.replies.on_assigned(frozenset())
    clock = ManualClock()
    drafter = Drafter(blobs, clock, block_version=3, is_signed=is_signed)
    pool = ThreadPoolExecutor(4)
    queues = CommitQueues(
        blobs,
        states,
        BatchCommitter(states, drafter, Proposals(coordinator.replies)),
        Pools.with_one_pool(pool),
    )
    preparer = Preparer(Preprocessor(NoEngine(), blobs.scratch))  # type: ignore[arg-type]
    return Bench(dataset, coordinator, blobs, refs, states, queues, preparer, clock, pool), pool
