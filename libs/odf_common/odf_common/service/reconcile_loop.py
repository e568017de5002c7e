"""Controllers of resources: which work is due, and attempts on several threads, one at a time for each resource."""

import heapq
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import structlog
from prometheus_client import Counter, Gauge, Histogram

from odf_common.errors import Conflict, OdfError
from odf_common.resources.failures import FailureClass, failure_class, failure_code

log = structlog.stdlib.get_logger(__name__)

LEASE_MS: Final = 60_000
SWEEP_SECONDS: Final = 300.0
RECONNECT_SECONDS: Final = 1.0
LEASE_POLL_SECONDS: Final = 5.0  # between attempts at a resource that another controller holds
THREADS: Final = 4
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


class LeaseHeld(Conflict):
    """Another controller has leased the resource; its end, or the end of its lease, lets others in."""

    MESSAGE = "resource {resource} is leased by another controller"

    resource: str


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
    def type(self) -> str:
        """The name of its type."""
        return str(self.resource["$schema"]).rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of an attempt."""

    generation: int
    failure: str = ""
    message: str = ""
    failure_class: FailureClass = FailureClass.PERMANENT
    conditions: Mapping[str, Json | None] = field(default_factory=dict)


class Store(Protocol):
    """The store of resources, as controllers use it."""

    def due_ids(self, types: Sequence[str], is_wanted: Callable[[], bool]) -> Iterator[str]:
        """Return the ids of resources that have to be reconciled: first those that are not settled, then others.

        Ends soon after `is_wanted` is False; raises `Unavailable` when the store cannot be watched any more.
        """

    def begin(self, id: str, *, lease_ms: int) -> Work | None:
        """Lease a resource; None if it is gone. Raises `LeaseHeld`."""

    def end(self, id: str, token: int, report: Report) -> int | None:
        """Write an outcome; return after how many ms to try again, None: not."""


class ReconcileLoop:
    """Runs the controllers of a service."""

    def __init__(self, store: Store, controllers: Mapping[str, Controller]) -> None:
        """Run controllers by the `$schema` of their types."""
        self._store, self._controllers = store, controllers
        self._due: list[tuple[float, str]] = []
        self._queued: dict[str, float] = {}
        self._running: set[str] = set()
        self._again: set[str] = set()
        self._changed = threading.Condition()

    def run(self, stop: threading.Event) -> None:
        """Reconcile until stopped."""
        threading.Thread(target=self._watch, args=(stop,), daemon=True, name="watch resources").start()
        with ThreadPoolExecutor(THREADS, "reconcile") as pool:
            for resource in self._due_ids(stop):
                pool.submit(self._attempt, resource)

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

    def _due_ids(self, stop: threading.Event) -> Iterator[str]:
        while not stop.is_set():
            with self._changed:
                now = time.monotonic()
                if not self._due or self._due[0][0] > now:
                    self._changed.wait(min(self._due[0][0] - now, 1.0) if self._due else 1.0)
                    continue
                due, resource = heapq.heappop(self._due)
                if self._queued.get(resource) != due:
                    continue  # it was requested earlier
                del self._queued[resource]
                DUE.set(len(self._queued))
                self._running.add(resource)
            yield resource

    def _attempt(self, id: str) -> None:
        pause: int | None = None
        try:
            work = self._store.begin(id, lease_ms=LEASE_MS)
            if work is not None:
                with ATTEMPT_SECONDS.labels(work.type).time():
                    report = self._report(work)
                    pause = self._store.end(id, work.token, report)
                outcome = report.failure_class.value if report.failure else SUCCEEDED
                ATTEMPTS.labels(work.type, outcome).inc()
        except OdfError as error:
            is_held = error.code == LeaseHeld.__name__
            if not is_held:
                log.warning("an attempt could not be noted", resource=id, code=error.code, why=str(error))
            pause = int((LEASE_POLL_SECONDS if is_held else RECONNECT_SECONDS) * 1000)
        finally:
            with self._changed:
                self._running.discard(id)
                is_again = id in self._again
                self._again.discard(id)
            if is_again:
                pause = 0
            if pause is not None:
                self.request(id, after_ms=pause)

    def _report(self, work: Work) -> Report:
        resource = work.resource
        generation = resource["headers"]["generation"]
        schema = resource["$schema"]
        controller = self._controllers[schema if schema in self._controllers else REGISTERED]
        try:
            if work.is_deleting:
                controller.finalize(resource)
                return Report(generation=generation)
            return Report(generation=generation, conditions=controller.reconcile(resource))
        except OdfError as error:
            return _failure(generation, error, str(error))
        except Exception as error:  # the resource shows that there is a bug, and others go on
            log.exception("a controller failed", resource=resource["headers"]["id"])
            return _failure(generation, error, "the controller has a bug, which is in the log")


def _failure(generation: int, error: Exception, message: str) -> Report:
    return Report(
        generation=generation,
        failure=failure_code(error),
        message=message,
        failure_class=failure_class(error),
    )


def _is_wanted(stop: threading.Event, swept: float) -> bool:
    return not stop.is_set() and time.monotonic() < swept + SWEEP_SECONDS
