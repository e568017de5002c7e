"""Ingestion is killed at its writes, and continued by a new process: nothing is lost, doubled or damaged.

A write is a change of the file system, a dead letter, or a proposal; before the n-th is after the one before it. The
killed process may be ingest or the coordinator that commits for it. The usual run kills before every third write, most
of which are followed by a flush; `make soak` kills before every one.
"""

import io
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odf_testing.builders import a_chain, a_dataset, a_push_source, a_seed
from odf_testing.clocks import ManualClock
from odf_testing.ingest_batches import a_kafka_batch, a_message_batch
from odf_testing.killer import Inline, Killed, Killer, first_write
from odf_testing.letters import StoredLetters

from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.adapters.networks import Networks
from odf_common.chain.state import ChainState
from odf_common.chain.walk import fold, iterate
from odf_common.data.slices import read_slice
from odf_common.dataset.open_rejects import rows_part, source_progress
from odf_common.dataset.state_cache import ChainStates, NoStateCache
from odf_common.hashing.logical import logical_hash
from odf_common.hashing.multihash import physical_hash
from odf_common.metadata.events import (
    AddData,
    KnownEvent,
    MergeStrategyAppend,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
    ReadStepNdJson,
    ReadStepParquet,
    SetPollingSource,
)
from odf_common.metadata.fetching import FetchStepFilesGlob
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.bus import DeadLetter
from odf_common.ports.store import CatalogEntry, ObjectKind, block_reader
from odf_common.proto.odf.node.v1 import push_pb2 as pb
from odf_common.service.request_reply import Replies
from odf_ingest.accepted_pushes import AcceptedPushes, Parts, Receipt, Receipts, State, id_of
from odf_ingest.api.arrow_streams import ArrowStreams
from odf_ingest.api.lookup import PushTargets
from odf_ingest.commit.committer import BatchCommitter, CommitQueues, Pools, Proposals
from odf_ingest.commit.file_commit import FileCommit, digest_of
from odf_ingest.commit.rejects import RejectPolicy
from odf_ingest.commit.slice_writer import Drafter
from odf_ingest.control.rejected_messages import RejectedMessages
from odf_ingest.poll.fetch import Limits
from odf_ingest.poll.poller import Poller
from odf_ingest.prepare.batch import FileBatch
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.prepare.preprocess import Preprocessor
from odf_ingest.source_settings import BadRecords, SourceSettings, save_settings

from .conftest import COLUMNS, Coordinator, NoEngine

STEP: Final = ReadStepNdJson(ddl_schema=COLUMNS)
KEY: Final = ("id",)
LEDGER: Final = MergeStrategyLedger(primary_key=KEY)
DATASET: Final = a_dataset()
DRAWN: Final = re.compile(r"(?<=pending-|scratch/).*")  # names of temporary files
Row = tuple[int, int, str]  # operation, id, v
Act = Callable[["Process"], None]


class CountedCoordinator(Coordinator):
    """A coordinator to which each proposal and each dead letter is a write of ingest."""

    def __init__(self, blobs: Any, refs: Any, killer: Killer) -> None:
        super().__init__(blobs, refs)
        self.send = killer.counted(super().send)  # type: ignore[method-assign]
        self.send_dead_letter = killer.counted(super().send_dead_letter)  # type: ignore[method-assign]


class Process:
    """The components of ingest over a home, as after a start."""

    def __init__(self, home: Path, killer: Killer) -> None:
        self.home = home
        self.refs, self.blobs = LocalRefStore(home), LocalBlobStore(home)
        states = ChainStates(self.blobs, self.refs, NoStateCache())
        self.bus = CountedCoordinator(self.blobs, self.refs, killer)
        self.bus.replies = Replies(self.bus)  # type: ignore[arg-type]
        self.bus.replies.on_assigned(frozenset())
        drafter = Drafter(self.blobs, ManualClock(), block_version=3, is_signed=False)
        committer = BatchCommitter(states, drafter, Proposals(self.bus.replies))
        self.queues = CommitQueues(self.blobs, states, committer, Pools.with_one_pool(Inline()))
        self.preparer = Preparer(Preprocessor(NoEngine(), self.blobs.scratch))  # type: ignore[arg-type]
        self.rejecting = RejectPolicy(self.bus, self.blobs)  # type: ignore[arg-type]

    @property
    def state(self) -> ChainState:
        return self.queues.state(DATASET)

    def staged(self, name: str, *rows: str) -> Path:
        """Return a file as the client has it."""
        file = self.home.parent / f"{self.home.name}-{name}"
        file.write_text("\n".join((*rows, "")))
        return file

    def file(self, key: str, *rows: str) -> None:
        batch = FileBatch(file=self.staged(key, *rows), event_time=Timestamp.from_ms(0), key=key)
        FileCommit("default", batch, self.preparer, self.rejecting).commit(self.queues, DATASET)

    def messages(self, start: int, *values: str | bytes) -> None:
        """Commit messages like a reader that starts at its position in the chain."""
        raw = [one if isinstance(one, bytes) else one.encode() for one in values]
        work = a_kafka_batch(self, a_message_batch({0: raw}, {0: start}, sent_ms=0))
        self.queues.commit(DATASET, work)

    def accepted(self, key: str, *rows: str) -> None:
        """Accept a push over HTTP, and settle it."""
        file = self.staged(key, *rows)
        receipt = Receipt(
            id=id_of(DATASET, "default", key),
            source="default",
            key=key,
            is_key_generated=False,
            input_format="",
            event_time="2020-06-01T00:00:00Z",
            digest=digest_of(file),
            size=file.stat().st_size,
            accepted_at=1,
        )
        receipts = Receipts(self.home)
        receipts.accept(DATASET, receipt, file)
        parts = Parts(
            receipts=receipts,
            queues=self.queues,
            preparer=self.preparer,
            rejecting=self.rejecting,
            pool=Inline(),
        )
        AcceptedPushes(parts).wake(DATASET)
        settled = receipts.find(DATASET, receipt.id)
        assert settled is not None
        assert settled.state is State.COMMITTED
        assert receipts.pending(DATASET) == []

    def stream(self, *batches: Sequence[int]) -> None:
        """Push Arrow batches; those that were acknowledged before are not sent again."""
        entry = CatalogEntry(alias="a", dataset_id=DATASET)
        streams = ArrowStreams(
            targets=cast("PushTargets", SimpleNamespace(find=lambda _: entry)),
            queues=self.queues,
            preparer=self.preparer,
            rejecting=self.rejecting,
            clock=ManualClock(),
            scratch=self.blobs.scratch,
        )
        header = pb.StreamPart(header=pb.StreamHeader(ref="a", stream_id="s"))
        parts = [
            pb.StreamPart(batch=pb.StreamBatch(sequence=number, arrow=arrow(ids)))
            for number, ids in enumerate(batches)
        ]
        last = list(streams.serve(iter((header, *parts)), lambda: True))[-1]
        assert last.next == len(batches)

    def poll(self) -> None:
        poller = Poller(
            queues=self.queues,
            preparer=self.preparer,
            rejecting=self.rejecting,
            blobs=self.blobs,
            clock=ManualClock(),
            environ={},
            limits=Limits(networks=Networks.parse(())),
        )
        poller.poll(DATASET, lambda _: None, lambda: True)

    def rows(self) -> list[Row]:
        """Return all rows in order, once the chain, the hashes and the offsets are verified."""
        read = block_reader(self.blobs, DATASET)
        head = self.refs.head(DATASET)
        assert head is not None
        fold(read, head)
        events = [decoded.block.event for _, decoded, _ in iterate(read, head)][::-1]
        tables = []
        for slice_ in (one.new_data for one in events if isinstance(one, AddData) and one.new_data):
            path = self.blobs.local_path(DATASET, ObjectKind.DATA, slice_.physical_hash)
            with path.open("rb") as file:
                assert physical_hash(file) == slice_.physical_hash
            tables.append(read_slice(path))
            assert logical_hash(tables[-1]) == slice_.logical_hash
        plain = [row for table in tables for row in table.to_pylist()]
        assert [row["offset"] for row in plain] == list(range(len(plain)))
        return [(row["op"], row["id"], row["v"]) for row in plain]


@dataclass
class World:
    """A home, and the state that each kill leaves."""

    killer: Killer
    folder: Path
    stride: int
    tries: int = 0

    def begun(self, *events: KnownEvent, before: Act) -> Path:
        """Return a home with a dataset."""
        home = self.folder / "home"
        chain = a_chain(a_seed(), *events)
        process = Process(home, self.killer)
        for name, raw in chain.store.items():
            process.blobs.put(DATASET, ObjectKind.BLOCK, name, raw)
        process.refs.compare_and_set(DATASET, expected=None, new=chain.state.head)
        before(process)
        return home

    def require_whole(self, *events: KnownEvent, before: Act, act: Act, after: Act) -> list[Row]:
        """Return the rows that `act` and `after` leave, the same wherever `act` is killed and repeated.

        It is killed before each `stride`-th write. What it left earlier is not continued again.
        """
        home = self.begun(*events, before=before)
        expected: list[Row] | None = None
        is_done, kills, left = False, 0, set[str]()
        while not is_done:
            copy = self.folder / f"killed-at-{self.tries}"
            shutil.copytree(home, copy)
            is_done = self._is_survived(copy, act)
            killed_at, self.tries, kills = self.tries, self.tries + self.stride, kills + (not is_done)
            if (state := digest_of_folder(copy)) in left:
                shutil.rmtree(copy)
                continue
            left.add(state)
            at_kill = Process(copy, self.killer).rows()
            act(Process(copy, self.killer))
            after(Process(copy, self.killer))
            whole = Process(copy, self.killer).rows()
            assert whole[: len(at_kill)] == at_kill
            if expected is None:
                expected = whole
            assert whole == expected, f"killed before write {killed_at}"
            shutil.rmtree(copy)
        assert kills
        assert expected is not None
        return expected

    def _is_survived(self, home: Path, act: Act) -> bool:
        try:
            with self.killer.after(self.tries):
                act(Process(home, self.killer))
        except Killed:
            return False
        return True


def digest_of_folder(folder: Path) -> str:
    """Return a digest of the names and contents of all that is in a folder."""
    digest = sha256()
    for path in sorted(folder.rglob("*")):
        name = DRAWN.sub("", str(path.relative_to(folder)))
        digest.update(f"{name}\n{path.is_dir()}\n".encode())
        digest.update(sha256(path.read_bytes()).digest() if path.is_file() else b"")
    return digest.hexdigest()


@pytest.fixture(params=[3, pytest.param(1, marks=pytest.mark.soak)], ids=lambda stride: f"stride {stride}")
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    first = first_write(request.param, request.function.__name__)
    return World(Killer(monkeypatch), tmp_path, request.param, first)


def arrow(ids: Sequence[int]) -> bytes:
    times = pa.nulls(len(ids), pa.int64()).fill_null(0).cast(pa.timestamp("ms", "UTC"))
    table = pa.table({"id": pa.array(ids, pa.int64()), "v": [f"{id_}" for id_ in ids], "event_time": times})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def row(id_: int, v: str = "a") -> str:
    return f'{{"id":{id_},"v":"{v}","event_time":"2020-01-01T00:00:00Z"}}'


def a_source(**changes: Any) -> KnownEvent:
    return replace(a_push_source("default"), **{"read": STEP} | changes)


FIRST: Final = (row(1), row(2), row(3))
SECOND: Final = (row(2, "b"), row(3), row(4))
THIRD: Final = (row(4, "c"), row(5))
AFTER: Final = {
    MergeStrategyAppend(): [(0, id_) for id_ in (1, 2, 3, 2, 3, 4, 4, 5)],
    LEDGER: [(0, id_) for id_ in (1, 2, 3, 4, 5)],
    MergeStrategyUpsertStream(primary_key=KEY): [
        *[(0, 1), (0, 2), (0, 3)],
        *[(2, 2), (3, 2), (0, 4)],
        *[(2, 4), (3, 4), (0, 5)],
    ],
    MergeStrategySnapshot(primary_key=KEY): [
        *[(0, 1), (0, 2), (0, 3)],
        *[(1, 1), (2, 2), (3, 2), (0, 4)],
        *[(1, 2), (1, 3), (2, 4), (3, 4), (0, 5)],
    ],
}


@pytest.mark.parametrize("merge", AFTER, ids=lambda merge: type(merge).__name__)
def test_a_pushed_file(world: World, merge: Any) -> None:
    rows = world.require_whole(
        a_source(merge=merge),
        before=lambda process: process.file("1", *FIRST),
        act=lambda process: process.file("2", *SECOND),
        after=lambda process: process.file("3", *THIRD),
    )
    assert [(op, id_) for op, id_, _ in rows] == AFTER[merge]
    assert world.tries > 15


def test_a_pushed_file_whose_index_is_built_again(world: World) -> None:
    def lose_index(process: Process) -> None:
        process.file("0", *FIRST)
        process.file("1", *FIRST, row(1, "b"))
        shutil.rmtree(process.blobs.index_folder(DATASET))

    rows = world.require_whole(
        a_source(merge=MergeStrategyUpsertStream(primary_key=KEY)),
        before=lose_index,
        act=lambda process: process.file("2", *SECOND),
        after=lambda process: process.file("3", row(1), row(2, "b"), row(3), row(4)),
    )
    assert [(op, id_) for op, id_, _ in rows[3:]] == [(2, 1), (3, 1), (2, 2), (3, 2), (0, 4), (2, 1), (3, 1)]


def test_messages_of_a_topic_with_a_bad_one(world: World) -> None:
    rows = world.require_whole(
        a_source(merge=LEDGER),
        before=lambda process: process.messages(0, *FIRST),
        act=lambda process: process.messages(3, *SECOND, "junk"),
        after=lambda process: process.messages(7, *THIRD),
    )
    assert [(op, id_) for op, id_, _ in rows] == AFTER[LEDGER]


def test_a_message_that_is_a_table_with_bad_rows(world: World) -> None:
    def table(start: int, *ids: int | None) -> Act:
        at = pa.array([0] * len(ids), pa.timestamp("ms", "UTC"))
        columns = pa.table({"id": ids, "v": ["a"] * len(ids), "event_time": at})
        sink = pa.BufferOutputStream()
        pq.write_table(columns, sink)
        return lambda process: process.messages(start, bytes(sink.getvalue()))

    def last(process: Process) -> None:
        table(2, 5)(process)
        progress = source_progress(process.state.source_states["default"])
        assert (progress.rejected, progress.ends[rows_part("default")]) == (3, 3)
        assert {one.offset for one in process.bus.letters} <= {1, 2}

    rows = world.require_whole(
        a_source(read=ReadStepParquet(ddl_schema=COLUMNS), merge=MergeStrategyAppend()),
        before=table(0, 1, None),
        act=table(1, None, 2, 3, None),
        after=last,
    )
    assert [id_ for _, id_, _ in rows] == [1, 2, 3, 5]


def test_a_push_over_http(world: World) -> None:
    rows = world.require_whole(
        a_source(merge=LEDGER),
        before=lambda process: process.accepted("1", *FIRST),
        act=lambda process: process.accepted("2", *SECOND),
        after=lambda process: process.accepted("3", *THIRD),
    )
    assert [(op, id_) for op, id_, _ in rows] == AFTER[LEDGER]


def test_a_stream_of_arrow_batches(world: World) -> None:
    rows = world.require_whole(
        a_source(merge=LEDGER),
        before=lambda process: process.stream([1, 2, 3]),
        act=lambda process: process.stream([1, 2, 3], [2, 3, 4], [4, 5]),
        after=lambda process: process.stream([1, 2, 3], [2, 3, 4], [4, 5], [6, 1]),
    )
    assert [(op, id_) for op, id_, _ in rows] == [*AFTER[LEDGER], (0, 6)]


@pytest.mark.parametrize("bad", [(), ("no JSON",)], ids=["", "bad rows"])
def test_a_poll_of_files(world: World, bad: tuple[str, ...]) -> None:
    folder = world.folder / "polled"
    folder.mkdir()

    def poll(name: str, *rows: str) -> Act:
        def act(process: Process) -> None:
            choice = BadRecords.DEAD_LETTER if bad else BadRecords.AUTO
            save_settings(process.blobs, DATASET, "default", SourceSettings(bad_records=choice))
            (folder / name).write_text("\n".join((*rows, "")))
            process.poll()

        return act

    def last(process: Process) -> None:
        poll("3.json", *THIRD)(process)
        assert source_progress(process.state.source_states["default"]).rejected == len(bad)
        assert {(one.offset, one.value) for one in process.bus.letters} <= {(0, b"no JSON")}

    rows = world.require_whole(
        SetPollingSource(fetch=FetchStepFilesGlob(path=f"{folder}/*.json"), read=STEP, merge=LEDGER),
        before=poll("1.json", *FIRST),
        act=poll("2.json", *bad, *SECOND),
        after=last,
    )
    assert [(op, id_) for op, id_, _ in rows] == AFTER[LEDGER]


def test_pushes_with_bad_rows(world: World) -> None:
    def last(process: Process) -> None:
        process.accepted("3", *THIRD)
        assert source_progress(process.state.source_states["default"]).rejected == 2
        assert {(one.offset, one.value) for one in process.bus.letters} <= {(0, b"no JSON"), (1, b"none")}

    rows = world.require_whole(
        a_source(merge=LEDGER),
        before=lambda process: process.accepted("1", *FIRST, "no JSON"),
        act=lambda process: process.accepted("2", "none", *SECOND),
        after=last,
    )
    assert [(op, id_) for op, id_, _ in rows] == AFTER[LEDGER]


def test_a_retry_of_rejected_rows(world: World) -> None:
    folder = world.folder / "polled"
    folder.mkdir()
    polled = SetPollingSource(
        fetch=FetchStepFilesGlob(path=f"{folder}/*.json"), read=STEP, merge=MergeStrategyAppend()
    )

    def before(process: Process) -> None:
        save_settings(process.blobs, DATASET, "default", SourceSettings(bad_records=BadRecords.DEAD_LETTER))
        (folder / "1.json").write_text("\n".join((*FIRST, "no JSON", "")))
        process.poll()

    def retry(process: Process) -> None:
        # The content of an in-memory bus is lost with its process: the dead letter says what the file has.
        letter = DeadLetter(
            topic="",
            partition=0,
            offset=0,
            reason="",
            key=str(DATASET).encode(),
            value=SECOND[0].encode(),
            facts={"source": "default", "event-time": "0"},
        )
        made = RejectedMessages(
            queues=process.queues,
            blobs=process.blobs,
            letters=StoredLetters([letter]),
            preparer=process.preparer,
            bus=process.bus,  # type: ignore[arg-type]
        )
        made.retry(DATASET, [])
        assert made.count(DATASET) == 0

    rows = world.require_whole(polled, before=before, act=retry, after=retry)
    assert len(rows) == len(FIRST) + 1
