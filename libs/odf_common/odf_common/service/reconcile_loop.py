"""Controllers of resources: which work is due, and attempts on several threads, one at a time for each resource."""

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

import structlog
from prometheus_client import Counter, Gauge, Histogram

from odf_common.errors import OdfError
from odf_common.resources.failures import FailureClass, failure_class, failure_code

log = structlog.stdlib.get_logger(__name__)

LEASE_MS: Final = 60_000
SWEEP_SECONDS: Final = 300.0
RECONNECT_SECONDS: Final = 1.0
RECONNECT_MS: Final = 1000
LEASE_POLL_MS: Final = 5000  # between attempts at a resource that another controller holds
THREADS: Final = 4
MAX_BATCH: Final = 100  # resources of one transaction
AHEAD_SECONDS: Final = 5.0  # far less than a lease
PACE_ATTEMPTS: Final = 10  # in the average
REGISTERED: Final = "*"
"""In place of a `$schema`: all types that have no controller of their own."""
Json = dict[str, Any]
SUCCEEDED: Final = "succeeded"
ATTEMPTS: Final = Counter(
    "odf_resource_attempts_total",
    "Attempts of controllers at resources, by outcome: succeeded, or the class of the failure.",
    ("type", "outcome"),
)
ATTEMPT_SECONDS: Final = Histogram(
    "odf_resource_attempt_seconds",
    "Time of an attempt, from its lease until its outcome is stored.",
    ("type",),
    buckets=(0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
DUE: Final = Gauge(
    "odf_resources_due", "Resources that wait for an attempt, or for the time of their next one."
)


class Controller(Protocol):
    """Makes the resources of one type what they declare."""

    def reconcile(self, resource: Json) -> Mapping[str, Json | None]:
        """Carry out a resource, and return conditions by their URI; None removes one. It may run again at any time.

        Raises errors of the classes in `resources.failures`.
        """

    def finalize(self, resource: Json) -> None:
        """Remove what a deleted resource has outside of the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A resource that is leased for an attempt."""

    resource: Json
    token: int
    is_deleting: bool

    @property
    def id(self) -> str:
        """The id of the resource."""
        return str(self.resource["headers"]["id"])

    @property
    def type(self) -> str:
        """The name of its type."""
        return str(self.resource["$schema"]).rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leased:
    """The answer to a request for leases; resources in neither list are gone."""

    works: Sequence[Work]
    held: Sequence[str] = ()
    """The ids of those that another controller has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of an attempt."""

    token: int
    generation: int
    failure: str = ""
    message: str = ""
    failure_class: FailureClass = FailureClass.PERMANENT
    conditions: Mapping[str, Json | None] = field(default_factory=dict)
    is_cleanup: bool = False
    """Whether the attempt has cleaned up after a resource whose deletion was requested."""


class Store(Protocol):
    """The store of resources, as controllers use it."""

    def due_ids(self, types: Sequence[str], is_wanted: Callable[[], bool]) -> Iterator[str]:
        """Return the ids of resources that have to be reconciled: first those that are not settled, then others.

        Ends soon after `is_wanted` is False; raises `Unavailable` when the store cannot be watched any more.
        """

    def begin(self, ids: Sequence[str], *, lease_ms: int) -> Leased:
        """Lease resources, in one transaction."""

    def end(self, reports: Mapping[str, Report]) -> Mapping[str, int]:
        """Write the outcomes by id, in one transaction; return after how many ms to try again, of those that are."""


class ReconcileLoop:
    """Runs the controllers of a service: leases and outcomes in bulk, the attempts between them one by one.

    A transaction costs far more than an attempt at most types, so many share one: as many resources are leased as can
    be reconciled in `AHEAD_SECONDS` at the present pace, and outcomes are collected while others are written.
    """

    def __init__(self, store: Store, controllers: Mapping[str, Controller]) -> None:
        """Run controllers by the `$schema` of their types."""
        self._store, self._controllers = store, controllers
        self._due: list[tuple[float, str]] = []
        self._queued: dict[str, float] = {}
        self._running: set[str] = set()
        self._again: set[str] = set()
        self._changed = threading.Condition()
        self._leased = 0  # resources whose attempt has not ended
        self._pace = 1.0  # seconds of an attempt, as a moving average
        self._ended: list[tuple[Work, Report | None, float]] = []
        self._is_over = False

    def run(self, stop: threading.Event) -> None:
        """Reconcile until stopped."""
        threading.Thread(target=self._watch, args=(stop,), daemon=True, name="watch resources").start()
        reporter = threading.Thread(target=self._write_outcomes, name="report attempts")
        reporter.start()
        try:
            with ThreadPoolExecutor(THREADS, "reconcile") as pool:
                for ids in self._due_ids(stop):
                    for work in self._begin(ids):
                        pool.submit(self._attempt, work, time.monotonic())
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
            reporter.join()

    def request(self, id: str, *, after_ms: int = 0) -> None:
        """Request an attempt; while one runs, another one afterwards."""
        with self._changed:
            if id in self._running:
                self._again.add(id)
                return
            due = time.monotonic() + after_ms / 1000
            if self._queued.get(id, due + 1) <= due:
                return
            self._queued[id] = due
            heapq.heappush(self._due, (due, id))
            DUE.set(len(self._queued))
            self._changed.notify_all()

    def _watch(self, stop: threading.Event) -> None:
        types = tuple(self._controllers)
        while not stop.is_set():
            try:
                self._request_all(self._store.due_ids(types, partial(_is_wanted, stop, time.monotonic())))
            except OdfError as error:
                log.warning("resources cannot be watched now", code=error.code, why=str(error))
                stop.wait(RECONNECT_SECONDS)

    def _request_all(self, ids: Iterable[str]) -> None:
        for resource in ids:
            self.request(resource)

    def _due_ids(self, stop: threading.Event) -> Iterator[list[str]]:
        """Yield the ids of resources to lease next, when half of the former ones are done."""
        while not stop.is_set():
            with self._changed:
                most = min(MAX_BATCH, max(2 * THREADS, int(THREADS * AHEAD_SECONDS / self._pace)))
                if self._leased > most // 2:
                    self._changed.wait(1.0)
                    continue
                due = self._pop_due(most - self._leased)
                if not due:
                    pause = self._due[0][0] - time.monotonic() if self._due else 1.0
                    self._changed.wait(min(max(pause, 0), 1.0))
                    continue
                self._running.update(due)
            yield due

    def _pop_due(self, most: int) -> list[str]:
        now, due = time.monotonic(), list[str]()
        while len(due) < most and self._due and self._due[0][0] <= now:
            at, resource = heapq.heappop(self._due)
            if self._queued.get(resource) == at:  # else it was requested earlier
                del self._queued[resource]
                due.append(resource)
        DUE.set(len(self._queued))
        return due

    def _begin(self, ids: Sequence[str]) -> Sequence[Work]:
        try:
            leased = self._store.begin(ids, lease_ms=LEASE_MS)
        except OdfError as error:
            log.warning("attempts cannot begin now", code=error.code, why=str(error))
            self._release(dict.fromkeys(ids, RECONNECT_MS))
            return ()
        begun = {work.id for work in leased.works}
        pauses: dict[str, int | None] = {one: None for one in ids if one not in begun}
        self._release(pauses | dict.fromkeys(leased.held, LEASE_POLL_MS))
        with self._changed:
            self._leased += len(begun)
        return leased.works

    def _attempt(self, work: Work, begun: float) -> None:
        start = time.monotonic()
        is_expired = start > begun + LEASE_MS / 1000  # another controller may have it by now
        report = None if is_expired else self._report(work)
        with self._changed:
            self._pace += (time.monotonic() - start - self._pace) / PACE_ATTEMPTS
            self._leased -= 1
            self._ended.append((work, report, begun))
            self._changed.notify_all()

    def _write_outcomes(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._is_over)
                ended, self._ended = self._ended[:MAX_BATCH], self._ended[MAX_BATCH:]
            if not ended:
                return
            self._end(ended)

    def _end(self, ended: Sequence[tuple[Work, Report | None, float]]) -> None:
        """Write outcomes; an attempt whose lease expired before it began is made again."""
        reports = {work.id: report for work, report, _ in ended if report is not None}
        pauses: dict[str, int | None] = {work.id: None if work.id in reports else 0 for work, _, _ in ended}
        try:
            pauses |= self._store.end(reports)
        except OdfError as error:
            log.warning("outcomes cannot be written now", code=error.code, why=str(error))
            pauses = dict.fromkeys(pauses, RECONNECT_MS)
        else:
            for work, report, begun in ended:
                if report is not None:
                    ATTEMPT_SECONDS.labels(work.type).observe(time.monotonic() - begun)
                    outcome = report.failure_class.value if report.failure else SUCCEEDED
                    ATTEMPTS.labels(work.type, outcome).inc()
        self._release(pauses)

    def _release(self, pauses: Mapping[str, int | None]) -> None:
        """Let other attempts at resources begin: after a pause in ms, or if None when something changes."""
        with self._changed:
            again = self._again & pauses.keys()
            self._again -= again
            self._running -= pauses.keys()
        for resource, pause in pauses.items():
            if resource in again:
                self.request(resource)
            elif pause is not None:
                self.request(resource, after_ms=pause)

    def _report(self, work: Work) -> Report:
        resource = work.resource
        report = Report(
            token=work.token, generation=resource["headers"]["generation"], is_cleanup=work.is_deleting
        )
        schema = resource["$schema"]
        controller = self._controllers[schema if schema in self._controllers else REGISTERED]
        try:
            if work.is_deleting:
                controller.finalize(resource)
                return report
            return replace(report, conditions=controller.reconcile(resource))
        except OdfError as error:
            return _failure(report, error, str(error))
        except Exception as error:  # the resource shows that there is a bug, and others go on
            log.exception("a controller failed", resource=resource["headers"]["id"])
            return _failure(report, error, "the controller has a bug, which is in the log")


def _failure(report: Report, error: Exception, message: str) -> Report:
    return replace(report, failure=failure_code(error), message=message, failure_class=failure_class(error))


def _is_wanted(stop: threading.Event, swept: float) -> bool:
    return not stop.is_set() and time.monotonic() < swept + SWEEP_SECONDS
