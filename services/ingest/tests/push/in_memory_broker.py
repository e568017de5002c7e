"""Push topics in memory, and a reader of them that runs in a separate thread."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from odf_testing.memory_store import MemoryCatalog

from odf_common.adapters.kafka.quiet_partitions import Partition
from odf_common.adapters.kafka.records import Chunk, PollResult
from odf_common.codec.envelopes import envelope
from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable
from odf_common.metadata.events import MergeStrategyLedger
from odf_common.ports.bus import NOTIFICATIONS, TopicInfo
from odf_common.ports.store import CatalogEntry
from odf_common.proto.odf.bus.v1.bus_pb2 import IngestProgress
from odf_common.service.run import resume_after_faults
from odf_ingest.commit.rejects import RejectPolicy
from odf_ingest.control.drain import Drains
from odf_ingest.push.batches.batch_worker import BatchWorker
from odf_ingest.push.batches.source import MAX_BATCH_BYTES, BatchLimits
from odf_ingest.push.lifecycle import inspector
from odf_ingest.push.lifecycle.assigned_sources import AssignedSources
from odf_ingest.push.reader import PushReader
from odf_ingest.push.source_topics import SourceTopics
from odf_ingest.registry import Registries

TOPIC = "odf.push.a.default"
LEDGER = MergeStrategyLedger(primary_key=("id",))


def zeros(count: int) -> Callable[[], list[int]]:
    return lambda: [0] * count


@dataclass
class Broker:
    """Topics in memory: ports `Records` and `Topics`."""

    logs: dict[Partition, list[bytes | None]] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    low: dict[Partition, int] = field(default_factory=dict)
    at: dict[Partition, int] = field(default_factory=dict)
    resting: set[Partition] = field(default_factory=set)
    faults: dict[Partition, str] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    mute: set[Partition] = field(default_factory=set)  # they send nothing
    kept: dict[str, int | None] = field(default_factory=dict)  # retention in ms, where it was set
    renewed: int = 0
    waits: list[float] = field(default_factory=list)  # the timeout of each poll, in seconds

    def make(self, topic: str, partitions: int = 1) -> None:
        self.ids[topic] = f"{topic} {time.monotonic_ns()}"
        for number in range(partitions):
            self.logs[topic, number] = []

    def drop(self, topic: str) -> None:
        del self.ids[topic]

    prefix = ""

    def list_names(self) -> list[str]:
        return list(self.ids)

    def create_push_topic(self, name: str) -> None:
        self.make(name)

    def add_partitions(self, name: str, total: int) -> None:
        there = self.partitions(name)
        if total < there:
            raise InvalidInput(where="partitions", text=f"topic {name} has {there}")
        self.logs |= {(name, number): [] for number in range(there, total)}

    def set_retention(self, name: str, ms: int | None) -> None:
        self.kept[name] = ms

    def topic_id(self, name: str) -> str:
        if name not in self.ids:
            raise NotFound(what=f"topic {name}")
        return self.ids[name]

    def partitions(self, name: str) -> int:
        return sum(1 for topic, _ in self.logs if topic == name)

    def watermarks(self, name: str, partition: int) -> tuple[int, int]:
        return self.low.get((name, partition), 0), len(self.logs[name, partition])

    def describe(self, names: Iterable[str]) -> Mapping[str, TopicInfo | OdfError]:
        return {name: self.described(name) for name in names}

    def described(self, name: str) -> TopicInfo | OdfError:
        if name in self.denied:
            return Unavailable(what=f"topic {name}", why="Topic authorization failed")
        if name not in self.ids:
            return NotFound(what=f"topic {name}")
        numbers = range(self.partitions(name))
        return TopicInfo(
            topic_id=self.ids[name],
            low={number: self.low.get((name, number), 0) for number in numbers},
            high={number: len(self.logs[name, number]) for number in numbers},
        )

    def assign(self, positions: Mapping[Partition, int]) -> None:
        self.at |= positions

    def unassign(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self.at.pop(partition, None)
            self.resting.discard(partition)

    def pause(self, partitions: Iterable[Partition]) -> None:
        self.resting |= set(partitions)

    def resume(self, partitions: Iterable[Partition]) -> None:
        self.resting -= set(partitions)

    def take(self, count: int, timeout: float) -> PollResult:
        self.waits.append(timeout)
        chunks = []
        for place, start in list(self.at.items()):
            values = self.logs[place][start : start + count]
            if values and place not in self.resting | self.mute:
                stop = start + len(values)
                self.at[place] = stop
                chunks.append(
                    Chunk(
                        partition=place,
                        values=values,
                        offsets=range(start, stop),
                        timestamps=zeros(len(values)),
                    )
                )
        faults, self.faults = self.faults, {}
        if not chunks:
            time.sleep(min(timeout, 0.002))
        ends = {
            place: at
            for place, at in self.at.items()
            if at >= len(self.logs[place]) and place not in self.mute
        }
        return PollResult(chunks=tuple(chunks), ends=ends, faults=faults)

    def high(self, partition: Partition) -> int:
        return len(self.logs[partition])

    def renew(self) -> None:
        self.renewed += 1
        self.mute = set()

    def close(self) -> None:
        pass


@dataclass
class Running:
    """A running reader of one dataset."""

    bench: Any
    broker: Broker
    reader: PushReader
    owned: AssignedSources
    drains: Drains
    catalog: MemoryCatalog

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.005)

    def drain(self) -> None:
        for _ in self.drains.wait(self.entry):
            pass

    def ingest(self, messages: Sequence[bytes | None]) -> None:
        """Publish messages, and return once they are committed."""
        self.broker.logs[TOPIC, 0] += messages
        self.drain()

    @property
    def entry(self) -> CatalogEntry:
        entry = self.catalog.by_alias("a")
        assert entry is not None
        return entry

    def ask(self, action: Callable[[], None]) -> None:
        done = threading.Event()

        def both() -> None:
            action()
            done.set()

        self.reader.request(both)
        assert done.wait(10)

    @property
    def ids(self) -> list[object]:
        return [row["id"] for row in self.bench.rows()]


@contextmanager
def running(
    bench: Any, broker: Broker, size: int = 1000, most: int = MAX_BATCH_BYTES, **topics: str
) -> Iterator[Running]:
    catalog = MemoryCatalog()
    entry = CatalogEntry(alias="a", dataset_id=bench.dataset, push_topics={"default": TOPIC, **topics})
    catalog.add(entry)
    reader = PushReader(broker, size)
    owned = AssignedSources(
        reading=reader,
        queues=bench.queues,
        catalog=catalog,
        topics=SourceTopics(broker, bench.blobs),  # type: ignore[arg-type]
        limits=BatchLimits(size=size, delay=0.01, most=most),
        partition_of=lambda _: 3,
        pool=bench.pool,
        report_waiting=lambda key, count: bench.coordinator.send(
            NOTIFICATIONS, envelope(key[0], IngestProgress(source_name=key[1], lag=count))
        ),
    )
    work = BatchWorker(
        queues=bench.queues,
        preparer=bench.preparer,
        topics=broker,  # type: ignore[arg-type]
        bus=bench.coordinator,
        rejecting=RejectPolicy(bench.coordinator, bench.blobs),
        registries=Registries(),
        readers=bench.pool,
        failed=reader.on_failure,
    )
    reader.bind(owned, work)
    stop = threading.Event()
    thread = threading.Thread(target=resume_after_faults, args=(reader.run, "reader", stop), daemon=True)
    thread.start()
    made = Running(
        bench,
        broker,
        reader,
        owned,
        Drains(SourceTopics(broker, bench.blobs), bench.queues, owned, reader),  # type: ignore[arg-type]
        catalog,
    )
    try:
        with patch.object(inspector, "PATROL_SECONDS", 0.05):
            made.ask(lambda: owned.own(frozenset({3})))
            yield made
    finally:
        stop.set()
        thread.join()


def message(number: int) -> bytes:
    return b'{"id":%d,"v":"a","event_time":"2020-01-01T00:00:00Z"}' % number
