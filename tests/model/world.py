"""A node in one thread at a time: two coordinators and an ingest over one home and one Kafka, and what they should hold."""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from odf_common.adapters.local.blobs import LocalBlobStore
from odf_common.adapters.local.catalog import LocalCatalog
from odf_common.adapters.local.refs import LocalRefStore
from odf_common.chain.chain import fold, iterate
from odf_common.codec.bus import Envelope
from odf_common.data.slices import read_slice
from odf_common.errors import Unavailable
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.metadata.events import AddData
from odf_common.metadata.scalars import Timestamp
from odf_common.ports.bus import COORDINATOR_COMMANDS, DeadLetter
from odf_common.ports.store import CatalogEntry, ObjectKind
from odf_common.runtime.replies import Replies
from odf_common.runtime.states import ChainStates, NoStateCache
from odf_common.testing.actors import Actor, ActorKiller, VirtualTime, current_actor
from odf_common.testing.killer import Killed
from odf_common.testing.push_topics import PushConsumer, PushLog, PushLogs
from odf_coordinator.handlers import Commands
from odf_coordinator.testing import Coordinator, TickingClock
from odf_ingest.batch import FileBatch
from odf_ingest.commit import BatchCommitter
from odf_ingest.handlers import Notices
from odf_ingest.prepare import Preparer
from odf_ingest.preprocess import Preprocessor
from odf_ingest.propose import Proposals
from odf_ingest.push.file import FileCommit
from odf_ingest.push.lanes import Lanes
from odf_ingest.push.owned import OwnedSources
from odf_ingest.push.reader import PushReader
from odf_ingest.push.rejects import Rejecting
from odf_ingest.push.source import Limits
from odf_ingest.push.work import Work
from odf_ingest.slices import Drafter

TURN_SECONDS: Final = 0.25
RESCAN_SECONDS: Final = 20.0
PATIENCE: Final = 5  # proposals without an answer before a stalled ingest is killed


class Stalled(Killed):
    """The process waits for what another one holds: it is killed where it stands."""


class Inline(Executor):
    """Does at once what it is given."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as any executor
            future.set_exception(error)
        return future


class Turns:
    """A stop signal whose looker is stopped until its next turn comes."""

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
    """Looks at the chain at once where no answer came."""

    def propose(self, draft: Any, wait: float = 0.0) -> Any:
        return super().propose(draft, 0.0)


class Ingest:
    """One process of the ingest service; its reader is an actor."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.silence = 0
        refs, blobs = LocalRefStore(world.home), LocalBlobStore(world.home)
        states = ChainStates(blobs, refs, NoStateCache())
        self.replies = Replies(self)  # type: ignore[arg-type]
        self.replies.on_owned(frozenset())
        drafter = Drafter(blobs, world.clock, block_version=3, is_signed=False)
        committer = BatchCommitter(states, drafter, Impatient(self.replies))
        self.lanes = Lanes(blobs, states, committer, Inline())
        self.scratch = blobs.scratch  # each process has one of its own
        self.preparer = Preparer(Preprocessor(None, blobs.scratch))  # type: ignore[arg-type]
        reader = PushReader(PushConsumer(world.kafka, world.time.sleep), 1000)
        owned = OwnedSources(
            reading=reader,
            lanes=self.lanes,
            catalog=LocalCatalog(world.home),
            topics=world.kafka,
            limits=Limits(size=1000, delay=0.0),
            partition_of=lambda _: 0,
            pool=Inline(),
        )
        work = Work(
            lanes=self.lanes,
            preparer=self.preparer,
            topics=world.kafka,
            bus=self,  # type: ignore[arg-type]
            rejecting=Rejecting(self, blobs),  # type: ignore[arg-type]
            readers=Inline(),
            failed=reader.failed,
        )
        reader.bind(owned, work)
        self.notices = Notices(reader, owned, self.lanes)
        self.notices.on_owned(frozenset({0}))
        self.reading = Actor(lambda: reader.run(Turns(world.time.sleep)))  # type: ignore[arg-type]
        self.reading.go()

    def send(self, topic: str, message: Envelope) -> None:
        """Have a free coordinator answer a proposal, unless it dies or waits for another process."""
        if topic != COORDINATOR_COMMANDS:
            return
        self.silence += 1
        try:
            for outgoing in self.world.handled(message):
                self.silence = 0
                self.replies.handle(outgoing.envelope)
        except Unavailable:
            pass  # the coordinator tries again; nobody here waits for that
        if self.silence > PATIENCE:
            actor = current_actor()
            assert actor is not None
            actor.is_dead = True
            raise Stalled

    def send_dead_letter(self, letter: DeadLetter) -> None:
        raise AssertionError(letter)

    def flush(self, timeout: float = 10.0) -> None:
        """All is sent already."""


@dataclass
class Held:
    """What a dataset should hold."""

    source: str
    topic: str
    published: list[int] = field(default_factory=list)
    files: dict[str, list[int]] = field(default_factory=dict)
    sure: set[str] = field(default_factory=set)  # keys of files that were answered
    heads: dict[Multihash, frozenset[str]] = field(
        default_factory=dict
    )  # files in the chain as of each head seen
    is_replaced: bool = False


class World:
    """Everything that outlives a process, and the processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="odf-model-"))
        self.time = VirtualTime(monkeypatch)
        self.killer = ActorKiller(monkeypatch)
        self.kafka = PushLogs(self.killer.step)
        self.clock = TickingClock()
        self.blobs = LocalBlobStore(self.home)
        self.refs = LocalRefStore(self.home)
        self.coordinators = [self.coordinator(), self.coordinator()]
        self.busy: list[Coordinator] = []
        self.ingest = Ingest(self)
        self.zombies: list[Ingest] = []
        self._rows: dict[Multihash, tuple[int, ...]] = {}

    def close(self) -> None:
        for ingest in (self.ingest, *self.zombies):
            if not ingest.reading.is_over:
                ingest.reading.kill()
        shutil.rmtree(self.home, ignore_errors=True)

    def coordinator(self) -> Coordinator:
        """Start a coordinator."""
        return Coordinator(home=self.home, topics=self.kafka, is_durable=True)  # type: ignore[arg-type]

    def free(self) -> Coordinator:
        """Return a coordinator that is not stopped in the midst of something."""
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

    def push(self, ingest: Ingest, dataset: DatasetId, source: str, key: str, ids: Sequence[int]) -> None:
        """Have ingest commit a file, as `odf ingest` does."""
        file = ingest.scratch() / "batch"
        file.write_bytes(b"\n".join(map(message_of, ids)))
        batch = FileBatch(file=file, event_time=Timestamp.from_ms(0), key=key)
        ingest.lanes.commit(dataset, FileCommit(source, batch, ingest.preparer))

    def entries(self) -> dict[DatasetId, CatalogEntry]:
        """Return what has a name, each once."""
        entries = list(LocalCatalog(self.home).entries())
        counts = Counter(entry.dataset_id for entry in entries)
        assert not [one for one, count in counts.items() if count > 1], "a dataset has two names"
        topics = Counter(topic for entry in entries for topic in entry.push_topics.values())
        assert not [one for one, count in topics.items() if count > 1], "two sources have one topic"
        return {entry.dataset_id: entry for entry in entries}

    def rows(self, dataset: DatasetId) -> tuple[int, ...]:
        """Return the ids of a dataset's records by offset, once its chain is verified and its offsets are dense."""
        head = self.refs.head(dataset)
        assert head is not None, "a name leads to no chain"
        if head not in self._rows:
            read = partial(self.blobs.read, dataset, ObjectKind.BLOCK)
            fold(read, head)
            events = [decoded.block.event for _, decoded, _ in iterate(read, head)][::-1]
            slices = [event.new_data for event in events if isinstance(event, AddData) and event.new_data]
            tables = [
                read_slice(self.blobs.local_path(dataset, ObjectKind.DATA, one.physical_hash))
                for one in slices
            ]
            offsets = [offset for table in tables for offset in table["offset"].to_pylist()]
            assert offsets == list(range(len(offsets))), "offsets are not dense"
            self._rows[head] = tuple(one for table in tables for one in table["id"].to_pylist())
        return self._rows[head]

    def leftovers(self, entries: Iterable[CatalogEntry]) -> list[str]:
        """Return what no name vouches for."""
        entries = tuple(entries)
        folders = {entry.dataset_id.folder for entry in entries}
        topics = {topic for entry in entries for topic in entry.push_topics.values()}
        found = [f"datasets/{one.name}" for one in self.home.glob("datasets/*") if one.name not in folders]
        found += [f"keys/{one.name}" for one in self.home.glob("keys/fed*") if one.name not in folders]
        found += [f"claims/{one.name}" for one in self.home.glob("claims/*")]
        return found + [f"topic {name}" for name in self.kafka.logs.keys() - topics]

    def replace_topic(self, name: str) -> None:
        """Have someone delete a topic and make it again."""
        self.kafka.logs[name] = PushLog(f"{self.kafka.logs[name].topic_id}, replaced")


def manifest_of(name: str, source: str) -> str:
    return f"""
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: {source}
      read: {{kind: NdJson, ddlSchema: [event_time TIMESTAMP, id BIGINT]}}
      merge: {{kind: Append}}
"""


def message_of(number: int) -> bytes:
    return b'{"id":%d,"event_time":"2020-01-01T00:00:00Z"}' % number
