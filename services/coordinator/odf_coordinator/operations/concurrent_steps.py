"""Works on many datasets concurrently, each after its inputs, and yields the steps of all in order of arrival."""

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from queue import SimpleQueue
from threading import Event
from typing import Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")
Steps = Callable[[T], Generator[S, None, None]]


def concurrent_steps(
    before: Mapping[T, Collection[T]], steps: Steps[T, S], limit: Callable[[T], int]
) -> Generator[S, None, None]:
    """Yield what `steps` yields for each key, in a thread that starts when all keys in its collection have ended.

    At most `limit(key)` of the keys with that limit run at a time. Keys in a cycle, and those that depend on one, start
    last, in the order of the mapping. Raises what `steps` raises. When the iterator is closed, each running generator
    is closed after its next step, without waiting for it.
    """
    sorter = TopologicalSorter(before)
    with suppress(CycleError):  # the sorter still yields all keys that no cycle blocks
        sorter.prepare()
    waiting = dict.fromkeys(before)
    with closing(_Running(steps, limit)) as running:
        while True:
            # Nothing runs and nothing is ready: the rest are in a cycle, or depend on one.
            ready = sorter.get_ready() or (() if running.count else tuple(waiting))
            for key in ready:
                del waiting[key]
            running.start(ready)
            if not running.count:
                return
            item = running.next()
            if not isinstance(item, _Completion):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                with suppress(ValueError):  # a key in a cycle
                    sorter.done(item.key)


@dataclass(frozen=True, slots=True)
class _Completion(Generic[T]):
    key: T
    error: BaseException | None = None


class _Running(Generic[T, S]):
    """The generators that run, in a pool of threads for each limit."""

    def __init__(self, steps: Steps[T, S], limit: Callable[[T], int]) -> None:
        self._steps = steps
        self._limit = limit
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._queue: SimpleQueue[S | _Completion[T]] = SimpleQueue()
        self._is_left = Event()
        self.count = 0
        """Generators that were started, and whose end `next` has not returned."""

    def start(self, keys: Iterable[T]) -> None:
        for key in keys:
            limit = self._limit(key)
            if limit not in self._pools:
                self._pools[limit] = ThreadPoolExecutor(limit, thread_name_prefix="steps")
            self._pools[limit].submit(self._run, key)
            self.count += 1

    def next(self) -> S | _Completion[T]:
        """Wait for the next step of any of them, or its end."""
        outcome = self._queue.get()
        self.count -= isinstance(outcome, _Completion)
        return outcome

    def close(self) -> None:
        self._is_left.set()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, key: T) -> None:
        try:
            with closing(self._steps(key)) as steps:
                for step in steps:
                    if self._is_left.is_set():
                        return
                    self._queue.put(step)
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            self._queue.put(_Completion(key, error))
        else:
            self._queue.put(_Completion(key))
