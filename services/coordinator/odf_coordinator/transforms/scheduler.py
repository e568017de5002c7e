"""Runs transforms: a commit triggers those of downstream derivatives; at most one runs per derivative at a time.

A run that waits for the engine does not block others: once it has stalled it no longer counts among the
`MAX_RUNS` concurrent runs, so a slow engine gets more and more concurrent requests, up to `MAX_RUNS_WITH_STALLED`.

A derivative is owned by the instance with its partition of the coordinator's commands. That only avoids wasted work:
if two instances transform the same derivative, one fails at the compare-and-set and plans again.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Final

import structlog

from odf_common.chain.state import ChainState
from odf_common.errors import HeadMoved, InternalError, InvalidQuery, OdfError, Unavailable, name_dataset
from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.clock import Backoff
from odf_common.ports.engine import (
    EngineNotAvailable,
    EngineSilent,
    QueryOutOfMemory,
    ResultsChanged,
)
from odf_common.service.consumer.pools import ElasticLimit
from odf_coordinator.catalog.chain_problems import query_remedy
from odf_coordinator.catalog.problems import Problem, Problems, remedy_of
from odf_coordinator.catalog.registry import DatasetHandle, Datasets
from odf_coordinator.errors import InputDiverged
from odf_coordinator.transforms.progress import RunningTransforms
from odf_coordinator.transforms.runner import Plan, Step, Transformer
from odf_coordinator.transforms.work_queue import ReaderGraph, Result, WorkQueue

log = structlog.stdlib.get_logger(__name__)

IDLE_SECONDS: Final = 0.5
MAX_RUNS: Final = 2  # concurrent runs, not counting stalled ones
MAX_RUNS_WITH_STALLED: Final = 64  # concurrent runs in total
ROOM_SECONDS: Final = 0.1  # between checks whether a run has stalled
UNAVAILABLE_BACKOFF: Final = Backoff(first=0.2, most=5.0)  # after a run that a dependency has prevented
FAILED_BACKOFF: Final = Backoff(first=0.2, most=15.0)  # after a run that has failed
MEMORY_BACKOFF: Final = Backoff(first=5.0, most=600.0)  # after a run that lacked memory
RETRY_ADVICE: Final = "it is retried automatically; see the coordinator's log"
MEMORY_ADVICE: Final = "it is retried, since other queries may have filled the memory; else change the query"


class Scheduler:
    """Keeps derivatives up to date."""

    def __init__(
        self,
        *,
        datasets: Datasets,
        transformer: Transformer,
        is_assigned: Callable[[DatasetId], bool],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Run `transformer` on derivatives for which `is_assigned` is True, and on requested ones."""
        self._datasets = datasets
        self._transformer = transformer
        self._is_assigned = is_assigned
        self._now = now
        self._readers = ReaderGraph()
        self._queue = WorkQueue()
        self._problems = Problems()
        self._lost = Problems()
        self._limit = ElasticLimit(MAX_RUNS, most=MAX_RUNS_WITH_STALLED, now=now)
        self._changed = threading.Condition(threading.RLock())
        self._own = _OwnCommits()

    def on_committed(self, state: ChainState) -> None:
        """Enqueue derivatives that may be stale after this commit."""
        with self._changed:
            self._readers.note(state)
            # A run reads on after its own commits. One by another may come after its last look, and before its end.
            if state.transform is not None and not self._own.note(state):
                self._enqueue(state.dataset_id)
            for dependant in self._readers.of(state.dataset_id):
                self._enqueue(dependant)

    def on_announced(self, dataset: DatasetId) -> None:
        """Enqueue derivatives that may be stale after another instance's commit."""
        try:
            handle = self._datasets.by_id(dataset)
        except OdfError as error:
            # Its derivatives will report the problem when they run.
            log.warning("cannot read a changed dataset", dataset_id=str(dataset), why=str(error))
            with self._changed:
                for dependant in self._readers.of(dataset):
                    self._enqueue(dependant)
            return
        if handle is not None:
            self.on_committed(handle.state)

    def on_removed(self, dataset: DatasetId) -> None:
        """Forget a dataset."""
        with self._changed:
            self._lost.clear(dataset)
            self._problems.clear(dataset)
            self._readers.forget(dataset)
            self._queue.forget((dataset,))
            self._own.forget(dataset)
            self._changed.notify_all()

    def request(self, dataset: DatasetId) -> int:
        """Run a derivative now, regardless of its owner and known problem; return a ticket."""
        with self._changed:
            ticket = self._queue.enqueue(dataset, is_forced=True)
            self._changed.notify_all()
            return ticket

    def wait(self, dataset: DatasetId, ticket: int, timeout: float) -> Result | None:
        """Return the result of a ticket's run; None if it has not finished within `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue.result(dataset, ticket) is not None, timeout)
            return self._queue.result(dataset, ticket)

    def problem_of(self, dataset: DatasetId) -> str:
        """Return why a derivative failed, or an empty string."""
        problem = self._problems.get(dataset)
        return "" if problem is None else problem.text

    def current_problem(self, dataset: DatasetId) -> Problem | None:
        """Return why a derivative makes no progress, including unreachable dependencies and a silent engine."""
        return self._problems.get(dataset) or self._lost.get(dataset) or self._silence(dataset)

    def waiting(self) -> int:
        """Return the number of queued and running derivatives."""
        with self._changed:
            return self._queue.waiting()

    def missing_dependency(self, dataset: DatasetId) -> str:
        """Return which dependency of a transform is unavailable, or an empty string."""
        problem = self._lost.get(dataset)
        return "" if problem is None else problem.text

    @property
    def running(self) -> RunningTransforms:
        """Return the running transforms."""
        return self._transformer.running

    def run(self, stop: threading.Event) -> None:
        """Run transforms until stopped; running ones are finished."""
        # Threads for stalled runs too: of those that make progress, `_take` lets `MAX_RUNS` run.
        with ThreadPoolExecutor(MAX_RUNS_WITH_STALLED, thread_name_prefix="transform") as pool:
            while not stop.is_set():
                run = self._take()
                if run is None:
                    self._wait()
                else:
                    pool.submit(self._look, run)

    def work(self) -> bool:
        """Run the next transform that is due; return whether there was one."""
        run = self._take()
        if run is None:
            return False
        self._look(run)
        return True

    def _take(self) -> tuple[int, DatasetId, bool] | None:
        """Take the next due derivative if there is room: its run number, id, and whether it is forced."""
        with self._changed:
            due = self._queue.pop(self._now()) if self._limit.room() > 0 else None
            return None if due is None else (self._limit.begin(), *due)

    def _silence(self, dataset: DatasetId) -> Problem | None:
        since = self.running.silent_since(dataset)
        error = EngineSilent()
        return None if since is None else Problem(text=str(error), remedy=error.advice(), since=since)

    def _enqueue(self, dataset: DatasetId) -> None:
        if self._is_assigned(dataset):
            self._queue.enqueue(dataset)
            self._changed.notify_all()

    def _wait(self) -> None:
        """Wait until a run may be due."""
        with self._changed:
            due = self._queue.next_due()
            if due is not None and self._limit.room() <= 0:
                due = max(due, self._now() + ROOM_SECONDS)
            wait = IDLE_SECONDS if due is None else min(due - self._now(), IDLE_SECONDS)
            if wait > 0:
                self._changed.wait(wait)

    def _look(self, run: tuple[int, DatasetId, bool]) -> None:
        """Run what `_take` returned."""
        number, dataset, is_forced = run
        self._try(dataset, is_forced=is_forced)
        with self._changed:
            self._limit.end(number)
            self._changed.notify_all()
        with suppress(OdfError):  # then it stays in the queue for a later run
            if self._datasets.catalog.by_id(dataset) is None:
                with self._changed:
                    self._queue.drop_idle(dataset)

    def _try(self, dataset: DatasetId, *, is_forced: bool) -> None:
        try:
            with self._own.running(dataset):
                step = self._steps(dataset, is_forced=is_forced)
        except (HeadMoved, Unavailable) as error:
            self._postpone(dataset, error)
        except OdfError as error:
            self._failed(dataset, error)
        except Exception as error:
            # A bug triggered by one derivative's data or query must not end the process for all others.
            log.exception("transform failed: a bug", dataset_id=str(dataset))
            self._failed(dataset, TransformCrashed(why=f"{type(error).__name__}: {error}"))
        else:
            self._done(dataset, step)

    def _steps(self, dataset: DatasetId, *, is_forced: bool) -> Step | None:
        """Transform all new data; return None if there is nothing to do."""
        done: Step | None = None
        while True:
            handle = self._datasets.by_id(dataset)
            if handle is None or not handle.is_derivative:
                return done
            plan = self._plan(handle, is_forced=is_forced)
            if plan is None:
                return done
            step = self._step(handle, plan, is_forced=is_forced)
            if step is not None:
                done = step if done is None else done.followed_by(step)
            if plan.is_whole:
                return done

    def _plan(self, handle: DatasetHandle, *, is_forced: bool) -> Plan | None:
        """Return the next step; a chain known to have diverged from an input is not compared again unless forced."""
        problem = self._problems.get(handle.id)
        if problem is not None and problem.cause == handle.state.head and not is_forced:
            raise _StillBroken(text=problem.text, remedy=problem.remedy)
        try:
            return self._transformer.plan(handle)
        except InputDiverged as error:
            self._note_problem(handle, error, handle.state.head)
            raise

    def _step(self, handle: DatasetHandle, plan: Plan, *, is_forced: bool) -> Step | None:
        """Run one step; return None if it changes nothing."""
        dataset = handle.id
        problem = self._problems.get(dataset)
        if problem is not None and problem.cause == self._transformer.cause(handle, plan) and not is_forced:
            raise _StillBroken(text=problem.text, remedy=problem.remedy)
        log.debug(
            "transform step begins",
            dataset=handle.alias,
            dataset_id=str(handle.id),
            head=str(handle.state.head),
        )
        try:
            return self._transformer.perform(handle, plan)
        except QueryOutOfMemory:  # whether it has memory depends on what else runs
            raise
        except (InvalidQuery, ResultsChanged) as error:
            self._note_problem(handle, error, self._transformer.cause(handle, plan))
            raise
        finally:
            log.debug("transform step ends", dataset=handle.alias, dataset_id=str(handle.id))

    def _done(self, dataset: DatasetId, step: Step | None) -> None:
        with self._changed:
            self._problems.clear(dataset)
            self._lost.clear(dataset)
            result = (
                Result()
                if step is None
                else Result(state=step.state, blocks=step.blocks, records=step.records)
            )
            self._queue.finish(dataset, result)
            self._changed.notify_all()

    def _postpone(self, dataset: DatasetId, error: HeadMoved | Unavailable) -> None:
        with self._changed:
            # After `HeadMoved` at once: the next plan begins at the block that was committed first.
            pause = 0.0
            if isinstance(error, Unavailable):
                pause = UNAVAILABLE_BACKOFF.pause(self._queue.pauses(dataset) + 1)
                if self._lost.note(dataset, str(error), remedy=remedy_of(error, RETRY_ADVICE)):
                    log.warning("transform postponed", dataset_id=str(dataset), why=str(error))
            if isinstance(error, EngineSilent):  # it may last: who asked for this run learns of it now
                self._queue.finish(dataset, Result(error=error), again_at=self._now() + pause)
            else:
                self._queue.reschedule(dataset, self._now() + pause)
            self._changed.notify_all()

    def _failed(self, dataset: DatasetId, error: OdfError) -> None:
        """Record the failure; user errors wait for a change, others are retried with backoff."""
        with self._changed:
            self._lost.clear(dataset)  # the engine has answered
            again_at = None
            lacks_memory = isinstance(error, QueryOutOfMemory)
            if lacks_memory or not isinstance(error, InvalidQuery | InputDiverged | ResultsChanged):
                backoff = MEMORY_BACKOFF if lacks_memory else FAILED_BACKOFF
                again_at = self._now() + backoff.pause(self._queue.pauses(dataset) + 1)
                remedy, text = MEMORY_ADVICE if lacks_memory else remedy_of(error, RETRY_ADVICE), str(error)
                if isinstance(error, EngineNotAvailable) and (handle := self._datasets.by_id(dataset)):
                    remedy = query_remedy(self._datasets, handle, error)
                    text = name_dataset(text, handle.alias)
                if self._problems.note(dataset, text, remedy=remedy):
                    log.error("transform failed", dataset_id=str(dataset), why=str(error))
            self._queue.finish(dataset, Result(error=error), again_at=again_at)
            self._changed.notify_all()

    def _note_problem(self, handle: DatasetHandle, error: OdfError, cause: object) -> None:
        # The chain may have moved since the run began.
        remedy = query_remedy(self._datasets, self._datasets.by_id(handle.id) or handle, error)
        text = name_dataset(str(error), handle.alias)
        if self._problems.note(handle.id, text, remedy=remedy, cause=cause):
            log.warning("transform refused", dataset=handle.alias, dataset_id=str(handle.id), why=str(error))


class _OwnCommits:
    """The last head that a run committed, of each derivative; a commit is reported in the thread that makes it."""

    def __init__(self) -> None:
        self._thread = threading.local()
        self._heads: dict[DatasetId, Multihash] = {}

    @contextmanager
    def running(self, dataset: DatasetId) -> Iterator[None]:
        """Take commits to a dataset that this thread makes for those of its run."""
        self._thread.running = dataset
        try:
            yield
        finally:
            self._thread.running = None

    def note(self, state: ChainState) -> bool:
        """Note where a head is; return whether a run has moved it there, and nothing has since."""
        dataset, head = state.dataset_id, state.head
        if getattr(self._thread, "running", None) == dataset:
            self._heads[dataset] = head
        elif self._heads.get(dataset) != head:
            self.forget(dataset)
        return self._heads.get(dataset) == head

    def forget(self, dataset: DatasetId) -> None:
        """Forget a dataset: a later one of the same id is another."""
        self._heads.pop(dataset, None)


class TransformCrashed(InternalError):
    """The transform failed because of a bug in the node."""

    MESSAGE = "a bug in the node: {why}"
    ADVICE = "it is retried automatically; please report it with the traceback from the coordinator's log"

    why: str


class _StillBroken(InvalidQuery):
    """The query failed before, with the same schemas."""

    ADVICE = "{remedy}"

    remedy: str
