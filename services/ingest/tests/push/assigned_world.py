"""The assigned sources of one instance that reads nothing, without threads, with the test's clock."""

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from odf_testing.memory_store import MemoryCatalog

from odf_common.errors import InvalidInput, OdfError, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.store import CatalogEntry
from odf_ingest.push.batches.source import BatchLimits, PushSource
from odf_ingest.push.lifecycle.assigned_sources import AssignedSources
from odf_ingest.push.lifecycle.source_record import SourceRecord
from odf_ingest.push.source_topics import Key, SourceTopics, as_of

from .in_memory_broker import TOPIC, Broker

OTHER = "odf.push.a.other"
UNREADABLE = Unavailable(what=f"topic {TOPIC}", why="not authorized")


class Reading:
    """Port `SourceReader`: what is being read; requests are executed at once."""

    def __init__(self) -> None:
        self.sources: dict[Key, PushSource] = {}
        self.is_away = False
        self.renewed = 0

    def open(self, sources: Sequence[PushSource]) -> None:
        if self.is_away:
            raise Unavailable(what="Kafka", why="down")
        assert not any(source.key in self.sources for source in sources), "it is being read already"
        self.sources |= {source.key: source for source in sources}

    def close(self, source: PushSource) -> None:
        if self.sources.get(source.key) is source:
            del self.sources[source.key]

    def renew(self) -> None:
        self.renewed += 1
        if self.is_away:
            raise Unavailable(what="Kafka", why="down")

    def request(self, action: Callable[[], None]) -> None:
        action()


class Catalog(MemoryCatalog):
    """Records which datasets are looked up; fails with `fault`."""

    def __init__(self) -> None:
        super().__init__()
        self.looked_up: list[DatasetId] = []
        self.fault: OdfError | None = None

    def by_id(self, dataset: DatasetId) -> CatalogEntry | None:
        self.looked_up.append(dataset)
        if self.fault is not None:
            raise self.fault
        return super().by_id(dataset)


class World:
    """The assigned sources of one instance, which has the dataset of `bench`."""

    def __init__(self, bench: Any) -> None:
        self.bench, self.dataset = bench, bench.dataset
        self.now = time.monotonic()
        self.reading, self.catalog, self.broker = Reading(), Catalog(), Broker()
        self.waiting: list[tuple[Key, int]] = []
        self.held: list[Callable[[], None]] | None = None
        self.broker.make(TOPIC)
        self.broker.make(OTHER)
        self.owned = AssignedSources(
            reading=self.reading,
            queues=bench.queues,
            catalog=self.catalog,
            topics=SourceTopics(self.broker, bench.blobs),  # type: ignore[arg-type]
            limits=BatchLimits(size=1000, delay=1.0),
            partition_of=lambda dataset: 3 if dataset == self.dataset else 4,
            pool=SimpleNamespace(submit=self.submit),  # type: ignore[arg-type]
            report_waiting=lambda key, count: self.waiting.append((key, count)),
        )
        self.key = Key(self.dataset, "default")

    def enter(self, alias: str = "a", **topics: str) -> None:
        """Name the dataset and the topics of its sources, or change them."""
        entry = CatalogEntry(alias=alias, dataset_id=self.dataset, push_topics=topics or {"default": TOPIC})
        for before in list(self.catalog.entries()):
            self.catalog.remove(before.alias)
        self.catalog.add(entry)

    def submit(self, task: Callable[[], None]) -> None:
        """Run a task at once, or keep it in `held`."""
        task() if self.held is None else self.held.append(task)

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return 0.0

    def own(self) -> PushSource:
        """Assign the dataset, and return its source."""
        self.owned.own(frozenset({3}))
        return self.source

    def look(self) -> None:
        """Handle the notification of a change."""
        self.owned.inspect(self.dataset)

    def pass_time(self, seconds: float) -> None:
        """Inspect the datasets due after that time."""
        self.now += seconds
        self.owned.run_due_inspections()

    def stop(self) -> None:
        """Stop the source because of a change in the chain."""
        self.owned.stop(self.source, InvalidInput(text="beyond help"), as_of(self.bench.state, self.key))

    @property
    def source(self) -> PushSource:
        return self.reading.sources[self.key]

    @property
    def record(self) -> SourceRecord:
        found = self.owned.record(self.key)
        assert found is not None
        return found
