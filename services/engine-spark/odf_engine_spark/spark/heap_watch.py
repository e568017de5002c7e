"""Ends the request that fills the heap, before the JVM spends most of its time in garbage collections.

A single value that grows slowly, such as a long list, may not cause an `OutOfMemoryError` for minutes: each collection
frees a little memory, and the JVM does not respond during a collection.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import structlog
from py4j.protocol import Py4JError

from odf_engine_spark.spark.jvm import Java, Spark

log = structlog.stdlib.get_logger(__name__)

LOOK_SECONDS: Final = 1.0  # between looks at the heap
MEASURE_SECONDS: Final = 0.5  # in which the requests' allocations are compared
_HEAP: Final = ("Eden Space", "Survivor Space", "Tenured Gen")  # the pools of the serial collector
_BEANS: Final = "java.lang.management.ManagementFactory"


@dataclass(frozen=True, slots=True)
class Watched:
    """A running request: its JVM threads, and a function that ends it."""

    threads: Callable[[], Iterator[Java]]
    """Yields the JVM threads that currently work for the request."""
    end: Callable[[], None]
    """Ends the request; returns once no thread works for it any more, or the engine is about to be restarted."""


class HeapWatch:
    """Watches the heap while requests are running. Thread-safe."""

    def __init__(self, spark: Spark) -> None:
        """Watch the heap of a session's JVM."""
        self._spark = spark
        self._guard = threading.Lock()
        self._requests: dict[str, Watched] = {}
        self._is_watching = False

    @contextmanager
    def watching(self, name: str, request: Watched) -> Iterator[None]:
        """Watch a request during the `with` block: it is ended if it fills the heap."""
        with self._guard:
            self._requests[name] = request
            if not self._is_watching:
                self._is_watching = True
                threading.Thread(target=self._watch, name="heap", daemon=True).start()
        try:
            yield
        finally:
            with self._guard:
                del self._requests[name]

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            with self._guard:
                if not self._requests:
                    self._is_watching = False
                    return
            try:
                self._look()
            except Py4JError:  # what the JVM cannot do now it may do at the next look
                log.debug("the heap cannot be looked at", exc_info=True)
            except OSError:  # the JVM has ended, and this process with it
                return

    def _look(self) -> None:
        if not self._is_full():
            return
        before = self._read_allocated_bytes()
        time.sleep(MEASURE_SECONDS)
        after = self._read_allocated_bytes()
        growth = {
            name: sum(size - before[name].get(thread, size) for thread, size in threads.items())
            for name, threads in after.items()
            if name in before
        }
        name = max(growth, key=growth.__getitem__, default=None)
        with self._guard:
            request = None if name is None else self._requests.get(name)
        if request is None or not self._is_full():
            return
        log.warning("a request fills the heap", request=name, allocated=growth)
        request.end()
        # What the last collection left is known only; without another one the heap would still count as full.
        self._spark.method("java.lang.System.gc")()

    def _is_full(self) -> bool:
        """Return whether more than `heap_share` of the heap was still in use after the last collection."""
        pools = [
            pool for pool in self._spark.method(f"{_BEANS}.getMemoryPoolMXBeans")() if pool.getName() in _HEAP
        ]
        used = sum(int(pool.getCollectionUsage().getUsed()) for pool in pools)
        return used > self._spark.limits.heap_share * int(
            self._spark.method("java.lang.Runtime.getRuntime")().maxMemory()
        )

    def _read_allocated_bytes(self) -> Mapping[str, Mapping[int, int]]:
        """Return the bytes that each JVM thread of each request has allocated since the thread was started."""
        with self._guard:
            requests = dict(self._requests)
        size_of = self._spark.method(f"{_BEANS}.getThreadMXBean")().getThreadAllocatedBytes
        return {
            name: {
                number: int(size_of(number))
                for number in {int(thread.getId()) for thread in request.threads()}
            }
            for name, request in requests.items()
        }
