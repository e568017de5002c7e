"""Carries out runs: their tasks one after another, with retries, each under a lease."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import structlog
from prometheus_client import Counter

from odf_common.errors import OdfError, with_advice
from odf_common.ports.clock import Clock
from odf_common.resources.failures import FailureClass, failure_class
from odf_common.resources.registry import SOURCE, TASK
from odf_common.resources.scalar_formats import ResourceId
from odf_coordinator.resources.documents import Json, references_in, type_id
from odf_coordinator.resources.flow_checks import task_spec
from odf_coordinator.resources.flows.flow_runs import RunKey, TaskEnd, finish_task, unfinished_tasks
from odf_coordinator.resources.flows.flow_targets import MaySelect, own_only
from odf_coordinator.resources.flows.instances import RunOutcome
from odf_coordinator.resources.flows.source_counts import consumers_of
from odf_coordinator.resources.flows.task_port import Cancellation, TaskCancelled, TaskRequest, Tasks
from odf_coordinator.resources.flows.task_records import TaskRun, start_task, task_run
from odf_coordinator.resources.lookups import account_of
from odf_coordinator.resources.relations import is_user
from odf_coordinator.resources.store import FencingToken, LeaseLost, ResourceStore, Snapshot, StoredResource

log = structlog.stdlib.get_logger(__name__)

RUNS: Final = Counter("odf_flow_runs_total", "Runs of flows that have ended, by outcome.", ("outcome",))
HOLDER: Final = f"flows@{socket.gethostname()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowLimits:
    """Limits of runs."""

    threads: int = 16
    """Runs at a time."""
    retry_seconds: tuple[float, ...] = (1.0, 10.0, 60.0)
    """Pauses before a task is repeated after a transient failure."""
    lease_ms: int = 15_000
    """The time after which another coordinator repeats a task whose runner was killed."""
    busy_seconds: float = 1.0
    """Between attempts to lease a task that another runner has."""
    retained_runs: int = 20
    """Runs of an instance whose history is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedTask:
    """A task in progress."""

    task: TaskRun
    token: FencingToken
    request: TaskRequest


@dataclass(slots=True, kw_only=True)
class ActiveRun:
    """A run in progress."""

    cancellation: Cancellation
    depth: int = 0
    lease: LeasedTask | None = None


class FlowRunner:
    """Runs what was planned, each instance on a thread of its own."""

    def __init__(
        self,
        store: ResourceStore,
        clock: Clock,
        tasks: Tasks,
        *,
        may_select: MaySelect = own_only,
        limits: FlowLimits = FlowLimits(),
    ) -> None:
        """Run tasks with the resources that the owner of their flow may use."""
        self._store, self._clock, self._tasks, self._limits = store, clock, tasks, limits
        self._may_select = may_select
        self.before_end: Callable[[str], None] = lambda _: None
        """Called with the DID of a target before a task on it ends."""
        self.ended: Callable[[ResourceId], None] = lambda _: None
        """Called with the id of a flow after a run has ended."""
        self._active: dict[RunKey, ActiveRun] = {}
        self._changed = threading.Condition()
        self._is_stopping = False
        self._pool: ThreadPoolExecutor | None = None

    @property
    def limits(self) -> FlowLimits:
        """Return the limits of runs."""
        return self._limits

    def run(self, stop: threading.Event) -> None:
        """Extend leases until stopped; then interrupt the tasks, which are repeated after a restart."""
        while not stop.wait(self._limits.lease_ms / 3000):
            self.extend_leases()
        self._is_stopping = True
        with self._changed:
            active = [*self._active.values()]
        for one in active:
            one.cancellation.request()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, key: RunKey) -> None:
        """Carry out the run of an instance, unless that is in progress."""
        with self._changed:
            if key in self._active or self._is_stopping:
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._limits.threads, "flow")
            self._active[key] = ActiveRun(cancellation=Cancellation())
            self._pool.submit(self.perform, key)

    def cancel(self, key: RunKey) -> None:
        """Ask a run to end."""
        with self._changed:
            active = self._active.get(key)
        if active is not None:
            active.cancellation.request()

    def cancel_flow(self, flow: ResourceId, seconds: float) -> None:
        """Ask all runs of a flow to end, and wait for them up to a number of seconds."""
        with self._changed:
            for key, active in self._active.items():
                if key.flow == flow:
                    active.cancellation.request()
            self._changed.wait_for(lambda: all(key.flow != flow for key in self._active), seconds)

    def depth_of(self, target: ResourceId) -> int:
        """Return the depth of events that runs on a target cause; 0: none is in progress."""
        with self._changed:
            return max((one.depth for key, one in self._active.items() if key.target == target), default=0)

    def perform(self, key: RunKey, active: ActiveRun | None = None) -> None:
        """Carry out the tasks that are left of a run."""
        active = active or ActiveRun(cancellation=Cancellation())
        with self._changed:
            active = self._active.setdefault(key, active)
        try:
            while self._perform_next(key, active):
                pass
        except LeaseLost as error:
            log.warning("a task was begun by another runner", flow=key.flow, why=str(error))
        except OdfError as error:  # the run goes on at the next pass
            log.warning("a run cannot go on now", flow=key.flow, code=error.code, why=str(error))
            active.cancellation.wait(self._limits.busy_seconds)
        except Exception:
            log.exception("a run failed: a bug", flow=key.flow)
            active.cancellation.wait(self._limits.busy_seconds)
        finally:
            with self._changed:
                self._active.pop(key, None)
                self._changed.notify_all()
            self.ended(key.flow)

    def _perform_next(self, key: RunKey, active: ActiveRun) -> bool:
        """Carry out the next task; return whether others may follow."""
        leased = self._lease(key, active)
        if leased is None:
            return False
        if isinstance(leased, _Busy):
            return not active.cancellation.wait(self._limits.busy_seconds)
        active.lease = leased
        try:
            end = self._attempts(leased)
        finally:
            active.lease = None
        if self._is_stopping and end.outcome is RunOutcome.CANCELLED:
            with self._store.transaction() as transaction:
                transaction.release(leased.task.resource.id, leased.token)
            return False
        self.before_end(leased.request.did)
        with self._store.transaction() as transaction:
            outcome = finish_task(transaction, key, end, self._clock.now(), self._limits.retained_runs)
        if outcome is not None:
            count_run(outcome)
        return outcome is None

    def _lease(self, key: RunKey, active: ActiveRun) -> "LeasedTask | _Busy | None":
        """Begin the next task; None if none is left."""
        now = self._clock.now()
        with self._store.transaction() as transaction:
            instance, left = unfinished_tasks(transaction, key)
            flow, target = transaction.by_id(key.flow), transaction.by_id(key.target)
            if instance is None or instance.cause is None or instance.run is None or not left:
                return None
            first = left[0].resource
            token = transaction.lease(first.id, HOLDER, ttl_ms=self._limits.lease_ms, now_ms=now.ms)
            if token is None:
                return _Busy()
            if flow is None or flow.deleted_ms is not None or target is None:
                active.cancellation.request()
            (saved,) = transaction.save([start_task(left[0], now, token)])
            references = self._references(transaction, saved)
            source = references.get("source")
            consumers = [] if source is None else consumers_of(transaction, source["headers"]["id"])
        active.depth = instance.cause.depth + 1
        task = task_run(saved)
        request = TaskRequest(
            spec=task_spec(saved.document["spec"]),
            target={} if target is None else target.document,
            references=references,
            task=saved.id,
            flow=task.details["flow"],
            run=instance.run,
            event=instance.cause.event,
            consumers=consumers,
            cancellation=active.cancellation,
        )
        return LeasedTask(task=task, token=token, request=request)

    def _references(self, snapshot: Snapshot, task: StoredResource) -> dict[str, Json]:
        """Return the documents of what a task refers to, by field; what is gone or may not be used is left out."""
        assert TASK.spec is not None
        found = {}
        for path, (_, plain) in references_in(TASK.spec, task.document["spec"]).items():
            resource = snapshot.by_id(ResourceId(plain.get("id", "")))
            # What a source has accepted is committed before it is gone.
            is_source = resource is not None and resource.type == type_id(SOURCE.uri)
            if resource is None or (resource.deleted_ms is not None and not is_source):
                continue
            owner = account_of(task)
            if self._may_select(owner, resource) or is_user(snapshot, owner.id, resource):
                found[path.removeprefix("spec.")] = dict(resource.document)
        return found

    def _attempts(self, leased: LeasedTask) -> TaskEnd:
        """Do a task, and repeat it after transient failures."""
        cancellation, pauses = leased.request.cancellation, iter(self._limits.retry_seconds)
        attempt = 0
        while True:
            attempt += 1
            try:
                cancellation.check()
                remark = self._tasks.perform(replace(leased.request, attempt=attempt))
            except TaskCancelled as error:
                return _end(leased, RunOutcome.CANCELLED, str(error))
            except OdfError as error:
                text = with_advice(error)
                is_transient = failure_class(error) is FailureClass.TRANSIENT
            except Exception as error:
                log.exception("a task failed: a bug", task=leased.task.resource.name)
                text, is_transient = f"{type(error).__name__} in the coordinator; see its log", False
            else:
                return _end(leased, RunOutcome.SUCCEEDED, remark)
            pause = next(pauses, None) if is_transient else None
            if pause is None:
                return _end(leased, RunOutcome.FAILED, text)
            log.info("a task is repeated", task=leased.task.resource.name, after=pause, why=text)
            cancellation.wait(pause)

    def extend_leases(self) -> None:
        """Extend the leases of tasks in progress, and cancel those of flows that another coordinator deletes."""
        with self._changed:
            active = [(key, one, one.lease) for key, one in self._active.items()]
        for key, one, leased in active:
            if leased is None:
                continue
            try:
                self._extend(key, one, leased)
            except LeaseLost:
                one.cancellation.request()
            except OdfError as error:
                log.warning("a lease cannot be extended now", code=error.code, why=str(error))

    def _extend(self, key: RunKey, active: ActiveRun, leased: LeasedTask) -> None:
        now_ms, ttl_ms = self._clock.now().ms, self._limits.lease_ms
        with self._store.transaction() as transaction:
            transaction.extend(leased.task.resource.id, leased.token, ttl_ms=ttl_ms, now_ms=now_ms)
            flow = transaction.by_id(key.flow)
        if flow is None or flow.deleted_ms is not None:
            active.cancellation.request()


class _Busy:
    """Another runner has the task."""


def count_run(outcome: RunOutcome) -> None:
    """Count a run that has ended."""
    RUNS.labels(outcome.value.lower()).inc()


def _end(leased: LeasedTask, outcome: RunOutcome, message: str) -> TaskEnd:
    return TaskEnd(task=leased.task, outcome=outcome, message=message, token=leased.token)
