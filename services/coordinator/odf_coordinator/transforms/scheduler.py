"""Runs transforms: a commit triggers those of downstream derivatives. At most one runs per derivative at a time.

A run that waits for the engine does not block others: once it has stalled, it no longer counts towards
`SchedulerLimits.runs`, so a slow engine receives more concurrent requests, up to `runs_with_stalled`.

A derivative is owned by the instance to which its partition of the coordinator's commands is assigned. This only avoids
wasted work: if two instances transform the same derivative, one fails at the compare-and-set and plans again.
"""

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from odf_common.adapters.threads import SteadyThreadPool
from odf_common.chain.state import ChainState
from odf_common.errors import HeadMoved, InternalError, InvalidQuery, OdfError, Unavailable, name_dataset
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import DatasetId
from odf_common.ports.clock import Backoff
from odf_common.ports.engine import (
    EngineNotAvailable,
    EngineSilent,
    QueryOutOfMemory,
    ResultsChanged,
)
from odf_common.service.consumer.pools import ElasticLimit
from odf_coordinator.catalog.chain_problems import query_remedy
from odf_coordinator.catalog.datasets import Activity, DatasetHandle, Datasets, Stall, remedy_of
from odf_coordinator.errors import InputDiverged
from odf_coordinator.transforms.runner import RunningTransforms, StepInputs, Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a run: the error, if the run failed."""

    error: OdfError | None = None


class ReaderGraph:
    """The graph of datasets and their readers."""

    def __init__(self) -> None:
        self._inputs: dict[DatasetId, frozenset[DatasetId]] = {}
        self._readers: defaultdict[DatasetId, set[DatasetId]] = defaultdict(set)

    def record(self, state: ChainState) -> None:
        """Record a dataset's inputs."""
        inputs = frozenset(state.inputs)
        if self._inputs.get(state.dataset_id, frozenset()) == inputs:
            return
        self.forget(state.dataset_id)
        self._inputs[state.dataset_id] = inputs
        for input_ in inputs:
            self._readers[input_].add(state.dataset_id)

    def forget(self, dataset: DatasetId) -> None:
        """Drop a dataset's inputs."""
        for input_ in self._inputs.pop(dataset, frozenset()):
            readers = self._readers[input_]
            readers.discard(dataset)
            if not readers:
                del self._readers[input_]

    def readers_of(self, dataset: DatasetId) -> frozenset[DatasetId]:
        """Return the derivatives that read the dataset directly."""
        return frozenset(self._readers.get(dataset, ()))


@dataclass(slots=True)
class _Job:
    """The runs of a derivative. Each request gets a ticket; a result answers all tickets up to its own."""

    is_running: bool = False
    is_forced: bool = False
    """Whether a user has requested the next run, which then ignores pauses and known problems."""
    pauses: int = 0
    """Number of consecutive runs that have to be repeated."""
    requested: int = 0
    """Number of the last ticket."""
    covered: int = 0
    """Number of the last ticket that the current or last run answers."""
    answered: int = 0
    """Number of the last ticket that has a result."""
    result: Result = field(default_factory=Result)


class WorkQueue:
    """A queue of derivatives to run, in the order of requests. Each derivative has at most one run at a time."""

    def __init__(self) -> None:
        # A job that is not running is in one of the two others, or idle.
        self._jobs: dict[DatasetId, _Job] = {}
        self._ready: OrderedDict[DatasetId, None] = OrderedDict()
        self._paused_until: dict[DatasetId, float] = {}

    def __len__(self) -> int:
        """Return the number of known derivatives."""
        return len(self._jobs)

    def enqueue(self, dataset: DatasetId, *, is_forced: bool = False) -> int:
        """Enqueue a derivative and return a ticket. A forced run ignores pauses and known problems."""
        job = self._jobs.setdefault(dataset, _Job())
        job.requested += 1
        job.is_forced |= is_forced
        if not job.is_running and (is_forced or dataset not in self._paused_until):
            self._make_ready(dataset)
        return job.requested

    def pop(self, now: float) -> tuple[DatasetId, bool] | None:
        """Begin the next run that is due. Return its derivative and whether it is forced; None if no run is due."""
        for dataset in [dataset for dataset, until in self._paused_until.items() if until <= now]:
            self._make_ready(dataset)
        if not self._ready:
            return None
        dataset, _ = self._ready.popitem(last=False)
        job = self._jobs[dataset]
        # Later requests may not be seen by this run: they get another ticket, and another run.
        job.is_running, job.covered = True, job.requested
        is_forced, job.is_forced = job.is_forced, False
        return dataset, is_forced

    def finish(self, dataset: DatasetId, result: Result | None, *, again_at: float | None = None) -> None:
        """End a run with its result. With `again_at`, it is repeated at that time.

        Without a result, its tickets are answered by the repeated run.
        """
        job = self._jobs.get(dataset)
        if job is None or not job.is_running:  # the dataset was removed in the meantime
            return
        job.is_running = False
        job.pauses = 0 if again_at is None else job.pauses + 1
        if result is not None:
            job.answered, job.result = job.covered, result
        if job.is_forced or (again_at is None and job.requested > job.covered):
            self._make_ready(dataset)
        elif again_at is not None:
            self._paused_until[dataset] = again_at

    def pauses(self, dataset: DatasetId) -> int:
        """Return the number of consecutive runs that have to be repeated."""
        job = self._jobs.get(dataset)
        return 0 if job is None else job.pauses

    def result(self, dataset: DatasetId, ticket: int) -> Result | None:
        """Return the result for a ticket; None until its run has ended. A deleted dataset has an empty result."""
        job = self._jobs.get(dataset)
        if job is None:
            return Result()
        return job.result if job.answered >= ticket else None

    def waiting(self) -> int:
        """Return the number of queued and running derivatives; paused ones are not counted."""
        return len(self._ready) + sum(job.is_running for job in self._jobs.values())

    def next_due(self) -> float | None:
        """Return the time at which the next run is due; None if no run is planned."""
        return 0.0 if self._ready else min(self._paused_until.values(), default=None)

    def forget(self, dataset: DatasetId) -> None:
        """Drop a deleted dataset."""
        self._jobs.pop(dataset, None)
        self._ready.pop(dataset, None)
        self._paused_until.pop(dataset, None)

    def drop_idle(self, dataset: DatasetId) -> None:
        """Drop a deleted dataset, unless it was created again and enqueued."""
        job = self._jobs.get(dataset)
        if job and not (job.is_running or dataset in self._ready or dataset in self._paused_until):
            del self._jobs[dataset]

    def _make_ready(self, dataset: DatasetId) -> None:
        self._paused_until.pop(dataset, None)
        self._ready.setdefault(dataset)


log = structlog.stdlib.get_logger(__name__)

RETRY_ADVICE: Final = "it is retried automatically; see the coordinator's log"
MEMORY_ADVICE: Final = "it is retried, since other queries may have filled the memory; else change the query"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Limits on the number of concurrent transforms, and pauses before retries."""

    runs: int = 2
    """Maximum number of concurrent runs, without stalled ones."""
    runs_with_stalled: int = 64
    """Maximum number of concurrent runs, including stalled ones."""
    idle_seconds: float = 0.5
    stall_check_seconds: float = 0.1
    """Interval between checks whether a run has stalled."""
    unavailable_backoff: Backoff = field(default=Backoff(first=0.2, most=5.0))
    """Pauses after a run for which a dependency was unavailable."""
    failed_backoff: Backoff = field(default=Backoff(first=0.2, most=15.0))
    memory_backoff: Backoff = field(default=Backoff(first=5.0, most=600.0))
    """Pauses after a run that failed for lack of memory."""


class Scheduler:
    """Keeps derivatives up to date."""

    def __init__(
        self,
        *,
        datasets: Datasets,
        transformer: Transformer,
        is_assigned: Callable[[DatasetId], bool],
        now: Callable[[], float] = time.monotonic,
        limits: SchedulerLimits = SchedulerLimits(),
    ) -> None:
        """Run `transformer` on derivatives for which `is_assigned` returns True, and on requested ones."""
        self._limits = limits
        self._datasets = datasets
        self._transformer = transformer
        self._is_assigned = is_assigned
        self._now = now
        self._readers = ReaderGraph()
        self._queue = WorkQueue()
        self._stalls = datasets.stalls
        self._slots = ElasticLimit(limits.runs, most=limits.runs_with_stalled, now=now)
        self._changed = threading.Condition(threading.RLock())
        # The thread that runs a derivative, and the head that its runs committed last, until another commit.
        self._threads: dict[DatasetId, int] = {}
        self._own_heads: dict[DatasetId, Multihash] = {}

    def on_committed(self, state: ChainState) -> None:
        """Enqueue derivatives that may be stale after this commit."""
        with self._changed:
            dataset = state.dataset_id
            self._readers.record(state)
            # A run continues after its own commits. Another client's may come after its last plan, before its end.
            if self._threads.get(dataset) == threading.get_ident():
                self._own_heads[dataset] = state.head
            elif self._own_heads.get(dataset) != state.head:
                self._own_heads.pop(dataset, None)
                if state.transform is not None:
                    self._enqueue(dataset)
            self._enqueue_readers(dataset)

    def on_announced(self, dataset: DatasetId) -> None:
        """Enqueue derivatives that may be stale after another instance's commit."""
        try:
            handle = self._datasets.by_id(dataset)
        except OdfError as error:
            # Its derivatives will report the problem when they run.
            log.warning("cannot read a changed dataset", dataset_id=str(dataset), why=str(error))
            with self._changed:
                self._enqueue_readers(dataset)
            return
        if handle is not None:
            self.on_committed(handle.state)

    def on_removed(self, dataset: DatasetId) -> None:
        """Drop all state of a deleted dataset."""
        with self._changed:
            self._stalls.clear(dataset)
            self._readers.forget(dataset)
            self._queue.forget(dataset)
            self._own_heads.pop(dataset, None)
            self._changed.notify_all()

    def request(self, dataset: DatasetId) -> int:
        """Request a run of a derivative now, whichever instance owns it, despite a known problem; return a ticket."""
        with self._changed:
            ticket = self._queue.enqueue(dataset, is_forced=True)
            self._changed.notify_all()
            return ticket

    def wait(self, dataset: DatasetId, ticket: int, timeout: float) -> Result | None:
        """Return the result of a ticket's run; None if it has not finished within `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue.result(dataset, ticket) is not None, timeout)
            return self._queue.result(dataset, ticket)

    def stall_of(self, dataset: DatasetId) -> Stall | None:
        """Return the stall of a derivative, including unreachable dependencies and a silent engine."""
        return self._stalls.get(dataset, Activity.TRANSFORM, Activity.DEPENDENCY) or self._silence(dataset)

    def waiting(self) -> int:
        """Return the number of queued and running derivatives."""
        with self._changed:
            return self._queue.waiting()

    def missing_dependency(self, dataset: DatasetId) -> str:
        """Return the unavailable dependency of a transform, or an empty string."""
        stall = self._stalls.get(dataset, Activity.DEPENDENCY)
        return "" if stall is None else stall.reason

    @property
    def running(self) -> RunningTransforms:
        """Return the running transforms."""
        return self._transformer.running

    def run(self, stop: threading.Event) -> None:
        """Run transforms until `stop` is set. Running transforms are completed."""
        # Threads for stalled runs too: of those that make progress, `_begin` lets only `limits.runs` run.
        with SteadyThreadPool(self._limits.runs_with_stalled, "transform") as pool:
            while not stop.is_set():
                run = self._begin()
                if run is None:
                    self._wait()
                else:
                    pool.submit(self._run, *run)

    def work(self) -> bool:
        """Run the next transform that is due; return whether there was one."""
        run = self._begin()
        if run is None:
            return False
        self._run(*run)
        return True

    def _begin(self) -> tuple[int, DatasetId, bool] | None:
        """Begin the next run that is due, if the limits allow it.

        Return its number, its derivative, and whether it is forced; None otherwise.
        """
        with self._changed:
            due = self._queue.pop(self._now()) if self._slots.room() > 0 else None
            return None if due is None else (self._slots.begin(), *due)

    def _silence(self, dataset: DatasetId) -> Stall | None:
        since = self.running.silent_since(dataset)
        error = EngineSilent()
        return None if since is None else Stall(reason=str(error), remedy=error.advice(), since=since)

    def _enqueue(self, dataset: DatasetId) -> None:
        if self._is_assigned(dataset):
            self._queue.enqueue(dataset)
            self._changed.notify_all()

    def _enqueue_readers(self, dataset: DatasetId) -> None:
        for reader in self._readers.readers_of(dataset):
            self._enqueue(reader)

    def _wait(self) -> None:
        """Wait until a run may be due."""
        with self._changed:
            due = self._queue.next_due()
            if due is not None and self._slots.room() <= 0:
                due = max(due, self._now() + self._limits.stall_check_seconds)
            idle = self._limits.idle_seconds
            wait = idle if due is None else min(due - self._now(), idle)
            if wait > 0:
                self._changed.wait(wait)

    def _run(self, number: int, dataset: DatasetId, is_forced: bool) -> None:  # noqa: FBT001 - a queued run
        """Run the transform that `_begin` returned, and record the result."""
        self._threads[dataset] = threading.get_ident()
        try:
            self._transform(dataset, is_forced=is_forced)
        except (HeadMoved, Unavailable) as error:
            self._postpone(dataset, error)
        except OdfError as error:
            self._fail(dataset, error)
        except Exception as error:
            # A bug triggered by one derivative's data or query must not end the process for all others.
            log.exception("transform failed: a bug", dataset_id=str(dataset))
            self._fail(dataset, TransformCrashed(why=f"{type(error).__name__}: {error}"))
        else:
            with self._changed:
                self._stalls.clear(dataset, Activity.TRANSFORM, Activity.DEPENDENCY)
                self._queue.finish(dataset, Result())
        finally:
            self._threads.pop(dataset, None)
        with self._changed:
            self._slots.end(number)
            self._changed.notify_all()
        with suppress(OdfError):  # then it stays in the queue for a later run
            if self._datasets.catalog.by_id(dataset) is None:
                with self._changed:
                    self._queue.drop_idle(dataset)

    def _transform(self, dataset: DatasetId, *, is_forced: bool) -> None:
        """Transform all new data, step by step."""
        while (handle := self._datasets.by_id(dataset)) is not None and handle.is_derivative:
            plan = self._plan(handle, is_forced=is_forced)
            if plan is None:
                return
            self._perform(handle, plan, is_forced=is_forced)
            if plan.is_whole:
                return

    def _plan(self, handle: DatasetHandle, *, is_forced: bool) -> StepInputs | None:
        """Return the next step. If a derivative is known to have diverged, inputs are compared again only if forced."""
        if not is_forced:
            self._require_change(handle, handle.state.head)
        try:
            return self._transformer.plan(handle)
        except InputDiverged as error:
            self._record_refusal(handle, error, handle.state.head)
            raise

    def _perform(self, handle: DatasetHandle, plan: StepInputs, *, is_forced: bool) -> None:
        """Run one step."""
        cause = self._transformer.cause(handle, plan)
        if not is_forced:
            self._require_change(handle, cause)
        logger = log.bind(**handle.log_facts)
        logger.debug("transform step begins", head=str(handle.state.head))
        try:
            self._transformer.perform(handle, plan)
        except QueryOutOfMemory:  # whether it has memory depends on what else runs
            raise
        except (InvalidQuery, ResultsChanged) as error:
            self._record_refusal(handle, error, cause)
            raise
        finally:
            logger.debug("transform step ends")

    def _require_change(self, handle: DatasetHandle, cause: object) -> None:
        """Raise `_StillBroken` if the transform has failed and the cause has not changed."""
        stall = self._stalls.get(handle.id, Activity.TRANSFORM)
        if stall is not None and stall.cause == cause:
            raise _StillBroken(text=stall.reason, remedy=stall.remedy)

    def _postpone(self, dataset: DatasetId, error: HeadMoved | Unavailable) -> None:
        with self._changed:
            # After `HeadMoved` at once: the next plan begins at the block that was committed first.
            pause = 0.0
            if isinstance(error, Unavailable):
                pause = self._limits.unavailable_backoff.pause(self._queue.pauses(dataset) + 1)
                remedy = remedy_of(error, RETRY_ADVICE)
                if self._stalls.record(dataset, Activity.DEPENDENCY, str(error), remedy=remedy):
                    log.warning("transform postponed", dataset_id=str(dataset), why=str(error))
            # Silence may last: the callers of this run learn of it now.
            result = Result(error=error) if isinstance(error, EngineSilent) else None
            self._queue.finish(dataset, result, again_at=self._now() + pause)

    def _fail(self, dataset: DatasetId, error: OdfError) -> None:
        """Record a failure. Errors of the user are retried after a change, others with a backoff."""
        with self._changed:
            self._stalls.clear(dataset, Activity.DEPENDENCY)  # the engine has answered
            again_at = None
            lacks_memory = isinstance(error, QueryOutOfMemory)
            if lacks_memory or not isinstance(error, InvalidQuery | InputDiverged | ResultsChanged):
                backoff = self._limits.memory_backoff if lacks_memory else self._limits.failed_backoff
                again_at = self._now() + backoff.pause(self._queue.pauses(dataset) + 1)
                remedy, text = MEMORY_ADVICE if lacks_memory else remedy_of(error, RETRY_ADVICE), str(error)
                if isinstance(error, EngineNotAvailable):
                    with suppress(OdfError):  # the names cannot be read now
                        if handle := self._datasets.by_id(dataset):
                            remedy = query_remedy(self._datasets, handle, error)
                            text = name_dataset(text, handle.alias)
                if self._stalls.record(dataset, Activity.TRANSFORM, text, remedy=remedy):
                    log.error("transform failed", dataset_id=str(dataset), why=str(error))
            self._queue.finish(dataset, Result(error=error), again_at=again_at)

    def _record_refusal(self, handle: DatasetHandle, error: OdfError, cause: object) -> None:
        # The chain may have moved since the run began.
        remedy = query_remedy(self._datasets, self._datasets.by_id(handle.id) or handle, error)
        text = name_dataset(str(error), handle.alias)
        if self._stalls.record(handle.id, Activity.TRANSFORM, text, remedy=remedy, cause=cause):
            log.warning("transform refused", **handle.log_facts, why=str(error))


class TransformCrashed(InternalError):
    """The transform failed because of a bug in the node."""

    MESSAGE = "a bug in the node: {why}"
    ADVICE = "it is retried automatically; please report it with the traceback from the coordinator's log"

    why: str


class _StillBroken(InvalidQuery):
    """The query failed before, with the same schemas."""

    ADVICE = "{remedy}"

    remedy: str
