"""A node in one thread at a time: two coordinators and an ingest over one home and one Kafka, and their expected content."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from odf_testing.actors import Actor, ActorKiller, VirtualTime, current_actor
from odf_testing.clocks import TickingClock
from odf_testing.coordinator import Coordinator
from odf_testing.killer import Inline, Killed
from odf_testing.push_topics import PushConsumer, PushLog, PushLogs
from odf_testing.redis import MemoryLocks, MemoryStateCache
from odf_testing.schedule import NoSchedule
from tests.model.expected import Block, File, Letter, Position
from tests.model.records import Row, rows_of

from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.stores import LocalBlobStore, LocalRefStore
from odf_common.chain.walk import fold, iterate
from odf_common.codec.envelopes import Envelope
from odf_common.data.slices import read_slice
from odf_common.dataset.state_cache import ChainStates
from odf_common.errors import Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddData, DataSlice
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.bus import COORDINATOR_COMMANDS, DeadLetter
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_common.service.request_reply import Replies
from odf_coordinator.api.bus_handlers import Commands
from odf_ingest.api.bus_handlers import Notices
from odf_ingest.commit.committer import BatchCommitter, CommitQueues, Pools, Proposals
from odf_ingest.commit.file_commit import FileCommit
from odf_ingest.commit.rejects import RejectPolicy
from odf_ingest.commit.slice_writer import Drafter
from odf_ingest.control import source_control as control
from odf_ingest.control.source_control import SourceControl
from odf_ingest.merge import strategies
from odf_ingest.prepare.batch import FileBatch
from odf_ingest.prepare.preparer import Preparer
from odf_ingest.prepare.preprocess import Preprocessor
from odf_ingest.push.batches.batch_worker import BatchWorker
from odf_ingest.push.batches.source import BatchLimits
from odf_ingest.push.lifecycle.assigned_sources import AssignedSources
from odf_ingest.push.reader import PushReader
from odf_ingest.push.source_topics import Key, SourceTopics
from odf_ingest.registry import Registries
from odf_ingest.source_settings import BadRecords, load_settings

TURN_SECONDS: Final = 0.25
RESCAN_SECONDS: Final = 20.0
TURNS_OF_A_COMMAND: Final = 12
PATIENCE: Final = 5  # proposals without an answer before a stalled ingest is killed


class Stalled(Killed):
    """The process waits for a resource that another one holds: it is killed there."""


class Turns:
    """A stop signal that suspends the actor that checks it until its next turn."""

    def __init__(self, waited: Callable[[float], None]) -> None:
        self._waited = waited

    def is_set(self) -> bool:
        actor = current_actor()
        assert actor is not None
        actor.pause()
        return False

    def wait(self, timeout: float) -> bool:
        self._waited(timeout)
        return self.is_set()


class Impatient(Proposals):
    """Checks the chain at once if there was no reply."""

    def propose(self, draft: Any, wait: float = 0.0) -> Any:
        return super().propose(draft, 0.0)


class Ingest:
    """One process of the ingest service; its reader is an actor."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.silence = 0
        refs, blobs = LocalRefStore(world.home), LocalBlobStore(world.home)
        states = ChainStates(blobs, refs, world.cache)
        self.replies = Replies(self)  # type: ignore[arg-type]
        self.replies.on_assigned(frozenset())
        drafter = Drafter(blobs, world.clock, block_version=3, is_signed=False)
        committer = BatchCommitter(states, drafter, Impatient(self.replies))
        self.queues = CommitQueues(blobs, states, committer, Pools.with_one_pool(Inline()))
        self.scratch = blobs.scratch  # each process has one of its own
        self.preparer = Preparer(Preprocessor(None, blobs.scratch))  # type: ignore[arg-type]
        reader = PushReader(PushConsumer(world.kafka, world.time.sleep), 1000)
        owned = AssignedSources(
            reading=reader,
            queues=self.queues,
            catalog=LocalCatalog(world.home),
            topics=SourceTopics(world.kafka, blobs),
            limits=BatchLimits(size=1000, delay=0.0),
            partition_of=lambda _: 0,
            pool=Inline(),
        )
        self.owned = owned
        self.control = SourceControl(
            queues=self.queues,
            topics=SourceTopics(world.kafka, blobs),
            owned=owned,
            blobs=blobs,
            request=self.request,
            schedule=NoSchedule(),  # type: ignore[arg-type]
        )
        self.rejecting = RejectPolicy(self, blobs)  # type: ignore[arg-type]
        work = BatchWorker(
            queues=self.queues,
            preparer=self.preparer,
            topics=world.kafka,
            bus=self,  # type: ignore[arg-type]
            rejecting=self.rejecting,
            registries=Registries(),
            readers=Inline(),
            failed=reader.on_failure,
        )
        reader.bind(owned, work)
        self.reader = reader
        self.notices = Notices(reader, owned, self.queues)
        self.notices.on_assigned(frozenset({0}))
        self.reading = Actor(lambda: reader.run(Turns(world.time.sleep)))  # type: ignore[arg-type]
        self.reading.go()

    def request(self, action: Callable[[], None]) -> None:
        """Run a function in the reader, and continue until all consequences have settled."""
        self.reader.request(action)
        for _ in range(TURNS_OF_A_COMMAND):
            if not self.reading.is_over:
                self.reading.go()

    def send(self, topic: str, message: Envelope) -> None:
        """Have a free coordinator handle a proposal, unless it dies or waits for another process."""
        if topic != COORDINATOR_COMMANDS:
            return
        self.silence += 1
        try:
            for outgoing in self.world.handled(message):
                self.silence = 0
                self.replies.handle(outgoing.envelope)
        except Unavailable:
            pass  # the coordinator retries; no caller here waits for that
        if self.silence > PATIENCE:
            actor = current_actor()
            assert actor is not None
            actor.is_dead = True
            raise Stalled

    def send_dead_letter(self, letter: DeadLetter) -> None:
        """Keep the message's place."""
        self.world.killer.step()
        self.world.letters.add((letter.facts["topic-id"], letter.offset))

    def flush(self, timeout: float = 10.0) -> None:
        """Everything has already been sent."""


class World:
    """Everything that outlives a process, and the processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="odf-model-"))
        self.time = VirtualTime(monkeypatch)
        self.killer = ActorKiller(monkeypatch)
        monkeypatch.setattr(
            control, "ACTION_TIMEOUT_SECONDS", 0.0
        )  # requests to the reader are executed at once, or never
        monkeypatch.setattr(control, "SEARCH_TIMEOUT_SECONDS", 0.0)
        # States of one to three rows lose most of their rows all the time.
        monkeypatch.setattr(strategies, "_check_share", lambda *_: None)
        self.kafka = Topics(self.killer.step)
        self.letters: set[Letter] = set()
        self.locks = MemoryLocks(lambda: self.time.now, self.killer.step)
        self.cache = MemoryStateCache()
        self.clock = TickingClock()
        self.blobs = LocalBlobStore(self.home)
        self.refs = LocalRefStore(self.home)
        self.coordinators = [self.coordinator(), self.coordinator()]
        self.busy: list[Coordinator] = []
        self.ingest = Ingest(self)
        self.zombies: list[Ingest] = []
        self._verified: set[Multihash] = set()
        self._rows: dict[Multihash, tuple[Row, ...]] = {}  # of slices

    def close(self) -> None:
        for ingest in (self.ingest, *self.zombies):
            if not ingest.reading.is_over:
                ingest.reading.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def coordinator(self) -> Coordinator:
        """Start a coordinator."""
        return Coordinator(
            home=self.home,
            topics=self.kafka,  # type: ignore[arg-type]
            is_durable=True,
            locks=self.locks,
            cache=self.cache,
        )

    def free(self) -> Coordinator:
        """Return a coordinator that is not stopped during an operation."""
        return next(one for one in self.coordinators if one not in self.busy)

    def replaced(self, dead: Coordinator) -> None:
        """Start another coordinator in place of one that died."""
        self.coordinators[self.coordinators.index(dead)] = self.coordinator()

    def handled(self, message: Envelope) -> Iterable[Any]:
        """Return a coordinator's answers to a command; none if it is killed at that."""
        one = self.free()
        self.busy.append(one)
        try:
            return tuple(Commands(committer=one.committer, importer=one.importer).handle(message))
        except Killed:
            actor = current_actor()
            assert actor is not None
            if actor.is_dead and not actor.is_ending:
                actor.is_dead = False  # it was the coordinator's
                self.replaced(one)
                return ()
            raise
        finally:
            self.busy.remove(one)

    def restart_ingest(self) -> None:
        """Kill the ingest, and start another."""
        if not self.ingest.reading.is_over:
            self.ingest.reading.kill()
        self.ingest = Ingest(self)

    def tell_ingest(self) -> None:
        """Bring notifications of datasets that were removed."""
        for one in self.coordinators:
            for _, message in one.bus.sent:
                self.ingest.notices.on_notification(message)
            one.bus.sent.clear()

    def push(self, ingest: Ingest, dataset: DatasetId, key: str, pushed: File) -> None:
        """Have ingest commit a file, as `odf ingest` does."""
        file = ingest.scratch() / "batch"
        file.write_bytes(pushed.value)
        batch = FileBatch(file=file, event_time=Timestamp.from_ms(0), key=key)
        ingest.queues.commit(dataset, FileCommit(pushed.source, batch, ingest.preparer, ingest.rejecting))

    def entries(self) -> dict[DatasetId, CatalogEntry]:
        """Return the datasets with a name, each once."""
        entries = list(LocalCatalog(self.home).entries())
        counts = Counter(entry.dataset_id for entry in entries)
        assert not [one for one, count in counts.items() if count > 1], "a dataset has two names"
        topics = Counter(topic for entry in entries for topic in entry.push_topics.values())
        assert not [one for one, count in topics.items() if count > 1], "two sources have one topic"
        return {entry.dataset_id: entry for entry in entries}

    def chain(self, dataset: DatasetId) -> Iterator[Block]:
        """Yield a dataset's blocks, newest first, once the chain is verified and its offsets are dense."""
        head = self.head(dataset)
        read = partial(self.blobs.read, dataset, ObjectKind.BLOCK)
        if head not in self._verified:
            fold(read, head)
            self._verified.add(head)
        for name, decoded, _ in iterate(read, head):
            event = decoded.block.event
            data = event.new_data if isinstance(event, AddData) else None
            if data is None:
                yield Block(name, event)
            else:
                yield Block(name, event, self._rows_of(dataset, data), data.offset_interval.start)

    def head(self, dataset: DatasetId) -> Multihash:
        """Return the head of a dataset that has a name."""
        head = self.refs.head(dataset)
        assert head is not None, "a name leads to no chain"
        return head

    def sources(self, dataset: DatasetId) -> frozenset[str]:
        """Return the push sources that a dataset has."""
        return frozenset(
            fold(partial(self.blobs.read, dataset, ObjectKind.BLOCK), self.head(dataset)).push_sources
        )

    def _rows_of(self, dataset: DatasetId, data: DataSlice) -> tuple[Row, ...]:
        name = data.physical_hash
        if name not in self._rows:
            table = read_slice(self.blobs.local_path(dataset, ObjectKind.DATA, name))
            interval = data.offset_interval
            wanted = list(range(interval.start, interval.end + 1))
            assert table["offset"].to_pylist() == wanted, "offsets are not dense"
            none = [None] * len(table)
            ids = table["id"].to_pylist() if "id" in table.column_names else none
            self._rows[name] = tuple(zip(table["op"].to_pylist(), ids, table["v"].to_pylist(), strict=True))
        return self._rows[name]

    def leftovers(self, entries: Iterable[CatalogEntry]) -> list[str]:
        """Return orphans: everything that no name refers to."""
        entries = tuple(entries)
        folders = {entry.dataset_id.folder for entry in entries}
        topics = {topic for entry in entries for topic in entry.push_topics.values()}
        found = [f"datasets/{one.name}" for one in self.home.glob("datasets/*") if one.name not in folders]
        found += [f"keys/{one.name}" for one in self.home.glob("keys/fed*") if one.name not in folders]
        found += [f"claims/{one.name}" for one in self.home.glob("claims/*")]
        return found + [f"topic {name}" for name in self.kafka.logs.keys() - topics]

    def require_read(self, dataset: DatasetId, source: str, topic: str, position: Position) -> str:
        """Raise unless a source has been read to its topic's end, or is stalled for a reason that is reported.

        Returns the command that makes it continue, empty where none is needed.
        """
        log, remedy = self.kafka.logs.get(topic), ""
        if log is None or position.topic_id not in {None, log.topic_id}:
            remedy = "resume"
        elif position.next < len(log.values):
            settings = load_settings(self.blobs, dataset, source)
            is_bad = rows_of(log.values[position.next]) is None
            assert is_bad, "messages are not read"
            assert settings.bad_records is BadRecords.STOP, "a message is not rejected"
            remedy = "skip"
        stuck = self.ingest.owned.stuck()
        assert (Key(dataset, source) in stuck) == bool(remedy), f"{source} is said to be stuck: {stuck}"
        return remedy


class Topics(PushLogs):
    """Topics that others may delete and recreate; all messages ever in one are known by its id."""

    def __init__(self, written: Callable[[], None]) -> None:
        super().__init__(written)
        self.ever: dict[str, PushLog] = {}

    def values(self, topic_id: str) -> list[bytes]:
        """Return the messages published to a topic, even if it was deleted."""
        return self.ever[topic_id].values

    def create_push_topic(self, name: str, partitions: int = 1) -> None:
        super().create_push_topic(name, partitions)
        self.ever[self.logs[name].topic_id] = self.logs[name]

    def replace(self, name: str, *, is_lost: bool) -> None:
        """Have another process delete a topic, and recreate it unless it `is_lost`."""
        log = PushLog(f"{self.logs.pop(name).topic_id}, replaced")
        self.ever[log.topic_id] = log
        if not is_lost:
            self.logs[name] = log
