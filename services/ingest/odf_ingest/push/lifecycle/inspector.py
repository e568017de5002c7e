"""Inspects the names, chains and topics of datasets in batches, in the background.

Assigned datasets are inspected as soon as they change, when a retry is due, and all of them periodically in turn.
"""

import heapq
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final

import structlog

from odf_common.chain.state import ChainState
from odf_common.errors import OdfError, Unavailable
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.clock import pause_after
from odf_common.ports.store import Catalog, CatalogEntry
from odf_ingest.push.source_topics import SourceTopic, SourceTopics

log = structlog.stdlib.get_logger(__name__)

DATASETS_PER_INSPECTION: Final = 250  # datasets per inspection, whose topics are described together
GATHER_SECONDS: Final = 0.2  # after which a batch is delivered, instead of waiting for slow datasets


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """The result of inspecting a dataset: `error` if it cannot be read; `state` is None if it has no blocks."""

    dataset: DatasetId
    entry: CatalogEntry | None = None
    state: ChainState | None = None
    error: OdfError | None = None
    topics: Sequence[SourceTopic] = ()


@dataclass(eq=False, kw_only=True)
class Inspector:
    """Inspects datasets on request and calls `deliver` with the results. A dataset that fails does not block others."""

    catalog: Catalog
    current: Callable[[DatasetId], ChainState | None]
    topics: SourceTopics
    pool: Executor
    deliver: Callable[[Sequence[Inspection]], None]

    def __post_init__(self) -> None:
        self._queue: dict[DatasetId, str | None] = {}  # with its expected alias, if known
        self._busy: set[DatasetId] = set()
        self._lock = threading.Lock()

    def ask(self, datasets: Iterable[DatasetId], alias: str | None = None) -> None:
        """Inspect datasets in the background. The results are at least as new as this call."""
        with self._lock:
            for dataset in datasets:
                self._queue[dataset] = alias or self._queue.get(dataset)
        self.pool.submit(self._run)

    def _run(self) -> None:
        while some := self._next():
            try:
                self.deliver(self._inspect_all(some))
            except Exception:
                # The periodic patrol will request them again.
                log.exception("cannot inspect datasets", count=len(some))
            finally:
                with self._lock:
                    self._busy.difference_update(some)

    def _next(self) -> Mapping[DatasetId, str | None]:
        with self._lock:
            free = [dataset for dataset in self._queue if dataset not in self._busy][:DATASETS_PER_INSPECTION]
            some = {dataset: self._queue.pop(dataset) for dataset in free}
            self._busy.update(some)
            return some

    def _inspect_all(self, datasets: Mapping[DatasetId, str | None]) -> Sequence[Inspection]:
        inspections: list[Inspection] = []
        late = time.monotonic() + GATHER_SECONDS
        rest = dict(datasets)
        for dataset, alias in datasets.items():
            del rest[dataset]
            inspections.append(self._read(dataset, alias))
            if time.monotonic() > late and rest:
                self._give_back(rest)
                break
        return self._with_topics(inspections)

    def _give_back(self, rest: Mapping[DatasetId, str | None]) -> None:
        with self._lock:
            self._busy.difference_update(rest)
            self._queue = {**rest, **self._queue}
        self.pool.submit(self._run)

    def _read(self, dataset: DatasetId, alias: str | None) -> Inspection:
        try:
            entry = self.catalog.by_alias(alias) if alias else None
            if entry is None or entry.dataset_id != dataset:
                entry = self.catalog.by_id(dataset)
            state = None if entry is None else self.current(dataset)
        except OdfError as error:
            return Inspection(dataset=dataset, error=error)
        except Exception as error:
            # Any error concerns this dataset only.
            log.exception("cannot inspect a dataset", dataset_id=str(dataset))
            return Inspection(dataset=dataset, error=Unavailable(what=f"dataset {dataset}", why=repr(error)))
        return Inspection(dataset=dataset, entry=entry, state=state)

    def _with_topics(self, inspections: Sequence[Inspection]) -> Sequence[Inspection]:
        readable = {
            inspection.dataset: (inspection.entry, inspection.state)
            for inspection in inspections
            if inspection.entry is not None and inspection.state is not None
        }
        topics = dict(zip(readable, self.topics.of_many(list(readable.values())), strict=True))
        return [_with(inspection, topics.get(inspection.dataset, ())) for inspection in inspections]


def _with(inspection: Inspection, topics: Sequence[SourceTopic] | OdfError) -> Inspection:
    if isinstance(topics, OdfError):
        return Inspection(dataset=inspection.dataset, error=topics)
    return replace(inspection, topics=topics)


RESCAN_SECONDS: Final = 15.0  # between catalog scans, at least
PATROL_SECONDS: Final = 10.0  # between inspections of a few datasets, in turn
MAX_PER_PATROL: Final = 100  # datasets inspected per patrol
Entries = Mapping[DatasetId, CatalogEntry | None]


@dataclass(eq=False, kw_only=True)
class InspectionSchedule:
    """Requests inspections of the assigned datasets when they are due. Only the reader's thread may use it.

    The catalog is scanned on `pool` and compared with `snapshot`; the result is handled on the reader's thread, by
    `request`.
    """

    inspector: Inspector
    catalog: Catalog
    pool: Executor
    request: Callable[[Callable[[], None]], None]
    is_owned: Callable[[DatasetId], bool]
    snapshot: Callable[[], Entries]

    def __post_init__(self) -> None:
        self._later: list[tuple[float, str, DatasetId]] = []  # a heap by time, then id
        self._planned: dict[DatasetId, float] = {}  # the one valid heap entry of each dataset
        self._round: list[DatasetId] = []
        self._scan_due = self._patrol_due = math.inf

    def start(self) -> None:
        """Scan the catalog now, because the assignment has changed. From now on scan and inspect periodically."""
        self._scan()
        self._patrol_due = time.monotonic() + PATROL_SECONDS

    def step(self) -> None:
        """Inspect the datasets that are due."""
        now = time.monotonic()
        due = set()
        while self._later and self._later[0][0] <= now:
            due_at, _, dataset = heapq.heappop(self._later)
            if self._planned.get(dataset) == due_at:
                del self._planned[dataset]
                due.add(dataset)
        if due:
            self.inspector.ask(due)
        if now >= self._scan_due:
            self._scan()
        if now >= self._patrol_due:
            self._patrol(now)

    def later(self, dataset: DatasetId, delay: float) -> None:
        """Plan an inspection, unless an earlier one is planned. Each plans the next, so there must be only one."""
        due_at = time.monotonic() + delay
        if self._planned.get(dataset, math.inf) > due_at:
            self._planned[dataset] = due_at
            heapq.heappush(self._later, (due_at, str(dataset), dataset))

    def forget(self, dataset: DatasetId) -> None:
        """Cancel the inspections of a dataset that is no longer assigned."""
        self._planned.pop(dataset, None)

    def _scan(self) -> None:
        """Scan the catalog in the background for new, changed and deleted datasets."""
        self._scan_due = math.inf
        before = self.snapshot()

        def scan() -> None:
            begun = time.thread_time()
            try:
                entries = {entry.dataset_id: entry for entry in self.catalog.entries() if entry.push_topics}
                changed = {dataset for dataset, entry in entries.items() if before.get(dataset) != entry}
                changed |= before.keys() - entries.keys()
            except Exception as error:
                # Any error: the catalog is scanned again later.
                log.exception("cannot read the catalog", why=str(error))
                changed = set()
            pause = pause_after(time.thread_time() - begun, at_least=RESCAN_SECONDS)
            self.request(lambda: self._end_scan(changed, pause))

        self.pool.submit(scan)

    def _end_scan(self, changed: set[DatasetId], pause: float) -> None:
        self._scan_due = time.monotonic() + pause
        owned = [dataset for dataset in changed if self.is_owned(dataset)]
        if owned:
            self.inspector.ask(owned)

    def _patrol(self, now: float) -> None:
        """Inspect a few datasets in turn: a notification may have been lost, a topic replaced."""
        self._patrol_due = now + PATROL_SECONDS
        datasets = list(self.snapshot())
        if not self._round:
            self._round = datasets
        count = min(MAX_PER_PATROL, math.ceil(len(datasets) * PATROL_SECONDS / RESCAN_SECONDS))
        some, self._round = self._round[:count], self._round[count:]
        if some:
            self.inspector.ask(some)
