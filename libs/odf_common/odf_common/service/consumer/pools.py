"""Thread pools for tasks that may stall, so that one slow dataset does not block the others."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from itertools import count
from typing import Final, ParamSpec, TypeVar

import structlog

from odf_common.errors import lacks_threads
from odf_common.ports.clock import Backoff

log = structlog.stdlib.get_logger(__name__)

T = TypeVar("T")
P = ParamSpec("P")
STALLED_SECONDS: Final = 1.0  # a task that has run for that long is waiting for something
MAX_THREADS: Final = 256  # of a pool
START_TRIES: Final = 4  # to start a thread
START_BACKOFF: Final = Backoff(first=0.01, most=0.2)
IDLE_THREAD_SECONDS: Final = 10.0  # that a thread without a task stays
_Task = Callable[[], None]


class ElasticLimit:
    """Counts running tasks and limits them to `size` that are not stalled, and to `most` including stalled ones.

    Tasks that wait for something slow therefore do not block other tasks. Not thread-safe: the caller must hold a lock.
    """

    def __init__(
        self,
        size: int,
        *,
        stalled: float = STALLED_SECONDS,
        most: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Count a task as stalled once it has been running for `stalled` seconds."""
        self._size = size
        self._stalled = stalled
        self._most = most
        self._now = now
        self._numbers = count()
        self._begun: dict[int, float] = {}  # start times by number

    @property
    def running(self) -> int:
        """Return the number of running tasks, including stalled ones."""
        return len(self._begun)

    def room(self) -> int:
        """Return the number of tasks that may start now; zero or negative if none may."""
        now = self._now()
        quick = sum(1 for begun in self._begun.values() if now - begun < self._stalled)
        return min(self._size - quick, self._most - len(self._begun))

    def begin(self) -> int:
        """Count a new task as running; return its number, which `end` needs."""
        number = next(self._numbers)
        self._begun[number] = self._now()
        return number

    def end(self, number: int) -> None:
        """Stop counting the task with this number."""
        del self._begun[number]


class ElasticPool(Executor):
    """Runs up to `size` tasks in parallel, plus those that have stalled, with up to `most` threads in total.

    A task is stalled once it has been running for `stalled` seconds.
    """

    def __init__(
        self, size: int, *, name: str, stalled: float = STALLED_SECONDS, most: int = MAX_THREADS
    ) -> None:
        """Create an empty pool; threads are started when tasks need them."""
        self._limit = ElasticLimit(size, stalled=stalled, most=most)
        self._name = name
        self._stalled = stalled
        self._tasks: deque[_Task] = deque()
        self._idle = 0  # threads without a task
        self._has_watcher = False
        self._changed = threading.Condition()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Queue the function to run in a thread of the pool.

        Raises `RuntimeError` if the pool has no thread and none can be started.
        """
        future, task = _make_task(partial(fn, *args, **kwargs))
        with self._changed:
            self._tasks.append(task)
            try:
                self._grow()
            except RuntimeError as error:
                if not self.workers or not lacks_threads(error):
                    self._tasks.remove(task)
                    raise
                log.warning("cannot start another thread", pool=self._name)  # the others run the task
            self._changed.notify_all()
        return future

    @property
    def workers(self) -> int:
        """Return the number of threads, idle ones included."""
        return self._idle + self._limit.running

    def _grow(self) -> None:
        """Start as many threads for waiting tasks as the limit allows, and the watcher if tasks still wait.

        The watcher starts further threads when running tasks stall.
        """
        while self._idle < min(len(self._tasks), self._limit.room()):
            self._start(self._work)
            self._idle += 1
        if len(self._tasks) > self._idle and not self._has_watcher:
            self._start(self._watch)
            self._has_watcher = True

    def _start(self, target: Callable[[], None]) -> None:
        """Start a thread, retrying briefly while the system has no free threads; raises `RuntimeError` if it stays so.

        The new thread waits for the lock that the caller holds.
        """
        for tries in count(1):
            try:
                threading.Thread(target=target, name=self._name, daemon=True).start()
            except RuntimeError as error:
                if tries == START_TRIES or not lacks_threads(error):
                    raise
                time.sleep(START_BACKOFF.pause(tries))
            else:
                return

    def _watch(self) -> None:
        """Start further threads whenever tasks stall, until no task waits."""
        with self._changed:
            try:
                while self._tasks:
                    self._changed.wait(self._stalled / 4)
                    self._grow()
            finally:
                self._has_watcher = False

    def _work(self) -> None:
        while (job := self._next()) is not None:
            number, task = job
            task()
            with self._changed:
                self._limit.end(number)
                self._idle += 1

    def _next(self) -> tuple[int, _Task] | None:
        """Return the next task and its number; None if this thread should end, being surplus or idle for too long."""
        with self._changed:
            is_needed = self._idle <= self._limit.room() and self._changed.wait_for(
                self._has_task, IDLE_THREAD_SECONDS
            )
            self._idle -= 1
            return (self._limit.begin(), self._tasks.popleft()) if is_needed else None

    def _has_task(self) -> bool:
        return bool(self._tasks)


class SerialQueue:
    """Runs tasks one after another on a shared pool; occupies a thread of the pool only while it has tasks."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._tasks: deque[_Task] = deque()
        self._mutex = threading.Lock()
        self._is_running = False

    def submit(self, fn: Callable[[], T]) -> "Future[T]":
        """Queue the function to run after all earlier ones of this queue."""
        future, task = _make_task(fn)
        with self._mutex:
            self._tasks.append(task)
            if self._is_running:
                return future
            self._is_running = True
        try:
            self._pool.submit(self._run)
        except RuntimeError:  # no thread can be started
            with self._mutex:
                self._tasks.remove(task)
                self._is_running = False
            raise
        return future

    def _run(self) -> None:
        """Run one task, then submit the next one to the pool behind the tasks of other queues."""
        with self._mutex:
            task = self._tasks.popleft()
        task()
        with self._mutex:
            self._is_running = bool(self._tasks)
            is_done = not self._is_running
        if not is_done:
            self._pool.submit(self._run)


def _make_task(fn: Callable[[], T]) -> "tuple[Future[T], _Task]":
    """Return a future, and a task that runs the function and sets the future's result or exception."""
    future: Future[T] = Future()

    def task() -> None:
        try:
            result = fn()
        except BaseException as error:  # noqa: BLE001 - it is raised when the result is requested
            future.set_exception(error)
        else:
            future.set_result(result)

    return future, task
