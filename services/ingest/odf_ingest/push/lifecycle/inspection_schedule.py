"""When assigned datasets are inspected: as soon as they change, when a retry is due, and all of them in turn."""

import heapq
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Final

import structlog

from odf_common.identity.did import DatasetId
from odf_common.ports.clock import pause_after
from odf_common.ports.store import Catalog, CatalogEntry
from odf_ingest.push.lifecycle.inspector import Inspector

log = structlog.stdlib.get_logger(__name__)

RESCAN_SECONDS: Final = 15.0  # between catalog scans, at least
PATROL_SECONDS: Final = 10.0  # between inspections of a few datasets, in turn
MAX_PER_PATROL: Final = 100  # datasets inspected per patrol
Entries = Mapping[DatasetId, CatalogEntry | None]


class InspectionSchedule:
    """Asks the inspector; used by the reader's thread."""

    def __init__(
        self,
        *,
        inspector: Inspector,
        catalog: Catalog,
        pool: Executor,
        request: Callable[[Callable[[], None]], None],
        is_owned: Callable[[DatasetId], bool],
        snapshot: Callable[[], Entries],
    ) -> None:
        """Scan the catalog on `pool` and compare it with `snapshot`; `request` calls back on the reader's thread."""
        self._inspector = inspector
        self._catalog = catalog
        self._pool = pool
        self._request = request
        self._is_owned = is_owned
        self._snapshot = snapshot
        self._later: list[tuple[float, str, DatasetId]] = []  # a heap by time, then id
        self._planned: dict[DatasetId, float] = {}  # the one valid heap entry of each dataset
        self._round: list[DatasetId] = []
        self._scan_due = self._patrol_due = math.inf

    def start(self) -> None:
        """Scan the catalog now, since other datasets are assigned, and both from time to time."""
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
            self._inspector.ask(due)
        if now >= self._scan_due:
            self._scan()
        if now >= self._patrol_due:
            self._patrol(now)

    def later(self, dataset: DatasetId, delay: float) -> None:
        """Plan an inspection unless an earlier one is: each plans the next, so two would never merge."""
        due_at = time.monotonic() + delay
        if self._planned.get(dataset, math.inf) > due_at:
            self._planned[dataset] = due_at
            heapq.heappush(self._later, (due_at, str(dataset), dataset))

    def forget(self, dataset: DatasetId) -> None:
        """Cancel the inspections of a dataset that is no longer assigned."""
        self._planned.pop(dataset, None)

    def _scan(self) -> None:
        """Scan the catalog, in the background, for new, changed and removed datasets."""
        self._scan_due = math.inf
        before = self._snapshot()

        def scan() -> None:
            begun = time.thread_time()
            try:
                entries = {entry.dataset_id: entry for entry in self._catalog.entries() if entry.push_topics}
                changed = {dataset for dataset, entry in entries.items() if before.get(dataset) != entry}
                changed |= before.keys() - entries.keys()
            except Exception as error:
                # Any error: the catalog is scanned again later.
                log.exception("cannot read the catalog", why=str(error))
                changed = set()
            pause = pause_after(time.thread_time() - begun, at_least=RESCAN_SECONDS)
            self._request(lambda: self._end_scan(changed, pause))

        self._pool.submit(scan)

    def _end_scan(self, changed: set[DatasetId], pause: float) -> None:
        self._scan_due = time.monotonic() + pause
        owned = [dataset for dataset in changed if self._is_owned(dataset)]
        if owned:
            self._inspector.ask(owned)

    def _patrol(self, now: float) -> None:
        """Inspect a few datasets in turn: a notification may have been lost, a topic replaced."""
        self._patrol_due = now + PATROL_SECONDS
        datasets = list(self._snapshot())
        if not self._round:
            self._round = datasets
        count = min(MAX_PER_PATROL, math.ceil(len(datasets) * PATROL_SECONDS / RESCAN_SECONDS))
        some, self._round = self._round[:count], self._round[count:]
        if some:
            self._inspector.ask(some)
