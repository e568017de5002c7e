"""Requests in flight: a few threads, each with a fair share of Spark, and the cancellation of abandoned requests.

Each request is one Spark job group, which is cancelled when its client disconnects or its deadline passes. While a
request runs, its client gets a heartbeat every second as long as the JVM responds. So silence means a failure.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar
from uuid import uuid4

import structlog

from odf_common.ports.engine import EngineProgress, QueryOutOfMemory
from odf_engine_spark.spark.error_messages import TOO_LARGE
from odf_engine_spark.spark.heap_watch import HeapWatch, Watched
from odf_engine_spark.spark.job_group import begin, cancel, executes_call, stop_threads, tasks_of
from odf_engine_spark.spark.jvm import Java, Spark
from odf_engine_spark.spark.progress import Progress, RequestCancelled

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")
REQUEST_THREADS: Final = 4  # more requests wait
REPORT_INTERVAL_SECONDS: Final = 1.0  # between reports
CANCEL_GRACE_SECONDS: Final = 10.0  # for tasks to notice it; then again, for threads to be stopped
CANCEL_POLL_SECONDS: Final = 0.1  # between checks of that
STOP_PAUSE_SECONDS: Final = 0.5  # for a stopped thread to release what it holds, before it is stopped again


class Call(Protocol):
    """The part of gRPC's call context that is used here."""

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Register a callback for the end of the call; returns False if the call has ended already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Generic[T]):
    """The progress of a request. The last report has `done`, the future with the result or the exception."""

    now: EngineProgress
    done: Future[T] | None = None


class MemoryRetry:
    """Retries requests that run out of memory because of other requests in the same JVM. Thread-safe.

    A request that ran out of memory while others were running is retried once. Retries run one at a time, so that they
    do not fill the heap together. As first attempts still run next to a retry, a failed retry does not prove that the
    request itself needs too much memory.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._turn = threading.Lock()
        self.running = 0  # requests

    def run(self, work: Callable[[], T], progress: Progress) -> T:
        """Return the result of `work`, which is called at most twice; raises `QueryOutOfMemory`."""

        def run_once() -> T:
            try:
                return work()
            except Exception as error:
                if progress.lacks_memory:
                    raise QueryOutOfMemory(text=TOO_LARGE) from error
                raise

        with self._guard:
            self.running += 1
        try:
            return run_once()
        except QueryOutOfMemory:
            if self.running == 1 or progress.lacks_memory:  # what filled the heap would do so again
                raise
            with self._turn:
                return run_once()
        finally:
            with self._guard:
                self.running -= 1


class Requests:
    """Runs requests on a Spark session, in a limited number of threads."""

    def __init__(
        self,
        spark: Spark,
        *,
        is_well: Callable[[], bool],
        on_stuck: Callable[[], None],
        heap: HeapWatch | None = None,
        grace: float = CANCEL_GRACE_SECONDS,
    ) -> None:
        """Send reports while `is_well` returns True; `heap` ends requests that fill the heap.

        If the threads of a cancelled request still work after `grace` seconds, they are stopped. If they still work
        after another `grace` seconds, `on_stuck` is called.
        """
        self._spark = spark
        self._is_well = is_well
        self._on_stuck = on_stuck
        self._heap = heap or HeapWatch(spark)
        self._grace = grace
        self._pool = ThreadPoolExecutor(REQUEST_THREADS, thread_name_prefix="spark")
        self._guard = threading.Lock()
        self._callers: dict[str, Java] = {}
        """The JVM thread of each running request, by the name of the request."""
        # gRPC calls back on its own thread, which a hanging JVM must not block. A request is cancelled at most twice:
        # at its time limit, and when its caller goes away.
        self._endings = ThreadPoolExecutor(2 * REQUEST_THREADS, thread_name_prefix="endings")

    def reports(self, call: Call, work: Callable[[Progress], T]) -> Iterator[Report[T]]:
        """Run `work` in a thread, and yield reports: the first one immediately, the last one with the result."""
        name = f"request-{uuid4()}"  # never reused: Spark remembers cancelled names forever
        progress = Progress(stop=lambda: self._endings.submit(self._end, name))
        future = self._pool.submit(self._run, name, progress, work)

        def end() -> None:
            if not future.done() and not future.cancel():
                progress.cancel()
                progress.stop()

        if not call.add_callback(end):
            end()
        yield Report(now=progress.now)
        while not wait([future], timeout=REPORT_INTERVAL_SECONDS).done:
            if self._is_well():
                yield Report(now=progress.now)
        yield Report(now=progress.now, done=future)

    def result(self, call: Call, work: Callable[[Progress], T]) -> T:
        """Run `work` in a thread, and return its result; raises its errors."""
        for report in self.reports(call, work):
            if report.done is not None:
                return report.done.result()
        raise AssertionError("the last report has the result")

    def _run(self, name: str, progress: Progress, work: Callable[[Progress], T]) -> T:
        self._callers[name] = begin(self._spark, name)
        try:
            progress.report("begun")
            log.debug("request begins", request=name)
            with self._heap.watching(name, self._watched_request(name, progress)):
                return work(progress)
        except Exception as error:
            if progress.is_cancelled:
                raise RequestCancelled(name) from error
            raise
        finally:
            with self._guard:
                del self._callers[name]
            log.debug("request ends", request=name)

    def _watched_request(self, name: str, progress: Progress) -> Watched:
        def end() -> None:
            progress.lacks_memory = True
            self._end(name, grace=0)

        return Watched(threads=lambda: self._threads(name), end=end)

    def _end(self, name: str, grace: float | None = None) -> None:
        try:
            self._cancel(name, self._grace if grace is None else grace)
        except Exception:  # no caller waits for it
            log.exception("a request could not be cancelled", request=name)

    def _cancel(self, name: str, grace: float) -> None:
        log.info("request cancelled", request=name)
        cancel(self._spark, name)
        since = last_stop = time.monotonic()
        while (is_working := any(True for _ in self._threads(name))) or name in self._callers:
            now = time.monotonic()
            if not is_working:  # between two calls into the JVM
                since = now
            elif now - since > grace + self._grace:
                log.error("a cancelled request does not end", request=name)
                self._on_stuck()
                return
            elif now - since > grace and now - last_stop > STOP_PAUSE_SECONDS:
                with self._guard:  # a thread serves another request as soon as this one has ended
                    stop_threads(self._threads(name))  # again and again: some loops miss one
                last_stop = time.monotonic()
            time.sleep(CANCEL_POLL_SECONDS)

    def _threads(self, name: str) -> Iterator[Java]:
        """Yield the JVM threads that currently work for a request: those of its tasks, and the one that plans."""
        yield from tasks_of(self._spark, name)
        caller = self._callers.get(name)
        if caller is not None and executes_call(self._spark, caller):
            yield caller
