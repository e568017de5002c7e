"""Threads for work that may stall: what one dataset waits for takes no thread from the others."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Final, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
STALLED: Final = 1.0  # seconds after which a task counts as one that waits
MOST: Final = 256  # threads of a pool
IDLE: Final = 10.0  # seconds that a thread without a task stays
_Task = Callable[[], None]


class ElasticPool(Executor):
    """Runs `size` tasks at a time, not counting those that have run for `stalled` seconds, up to `most` in all."""

    def __init__(self, size: int, *, name: str, stalled: float = STALLED, most: int = MOST) -> None:
        """Start threads when they are needed."""
        self._size = size
        self._name = name
        self._stalled = stalled
        self._most = most
        self._tasks: deque[_Task] = deque()
        self._begun: dict[int, float | None] = {}  # by worker; None while it has no task
        self._numbers = 0
        self._has_watcher = False
        self._changed = threading.Condition()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Run the function in one of the threads."""
        future, task = _promised(partial(fn, *args, **kwargs))
        with self._changed:
            self._tasks.append(task)
            self._grow()
            self._changed.notify_all()
        return future

    @property
    def workers(self) -> int:
        """Return how many threads there are."""
        return len(self._begun)

    def _grow(self) -> None:
        """Start threads for tasks that wait, as many as may run; the watcher sees to those that stall later."""
        idle = sum(1 for begun in self._begun.values() if begun is None)
        while idle < len(self._tasks) and len(self._begun) < self._allowed():
            self._numbers += 1
            self._begun[self._numbers] = None
            self._start(self._work, self._numbers)
            idle += 1
        if len(self._tasks) > idle and not self._has_watcher:
            self._has_watcher = True
            self._start(self._watch)

    def _allowed(self) -> int:
        now = time.monotonic()
        stalled = sum(
            1 for begun in self._begun.values() if begun is not None and now - begun > self._stalled
        )
        return min(self._size + stalled, self._most)

    def _start(self, target: Callable[..., None], *args: int) -> None:
        threading.Thread(target=target, args=args, name=self._name, daemon=True).start()

    def _watch(self) -> None:
        """Start a thread for each that stalls, until no task waits."""
        with self._changed:
            while self._tasks:
                self._changed.wait(self._stalled / 4)
                self._grow()
            self._has_watcher = False

    def _work(self, number: int) -> None:
        while (task := self._next(number)) is not None:
            task()

    def _next(self, number: int) -> _Task | None:
        """Return the next task, None when this thread is not needed any more."""
        with self._changed:
            self._begun[number] = None
            if len(self._begun) > self._allowed() or not self._changed.wait_for(self._has_task, IDLE):
                del self._begun[number]
                return None
            self._begun[number] = time.monotonic()
            return self._tasks.popleft()

    def _has_task(self) -> bool:
        return bool(self._tasks)


class SerialQueue:
    """Runs tasks one after another on a pool, and takes no thread of it while there is none."""

    def __init__(self, pool: Executor) -> None:
        """Run tasks on `pool`."""
        self._pool = pool
        self._tasks: deque[_Task] = deque()
        self._mutex = threading.Lock()
        self._is_running = False

    def submit(self, fn: Callable[[], T]) -> "Future[T]":
        """Run the function when those before it are done."""
        future, task = _promised(fn)
        with self._mutex:
            self._tasks.append(task)
            if self._is_running:
                return future
            self._is_running = True
        self._pool.submit(self._run)
        return future

    def _run(self) -> None:
        """Run one task, then make room for other queues of the pool."""
        with self._mutex:
            task = self._tasks.popleft()
        task()
        with self._mutex:
            self._is_running = bool(self._tasks)
            is_done = not self._is_running
        if not is_done:
            self._pool.submit(self._run)


def _promised(fn: Callable[[], T]) -> "tuple[Future[T], _Task]":
    """Return a task that runs the function, and the future that has its outcome."""
    future: Future[T] = Future()

    def task() -> None:
        try:
            result = fn()
        except BaseException as error:  # noqa: BLE001 - it is raised to whoever asks for the result
            future.set_exception(error)
        else:
            future.set_result(result)

    return future, task
