"""Limits of the calls in flight on a gRPC server: per method, and within it per dataset.

A call may wait for as long as what it asks for: a lock, an engine, a source. Its thread waits with it. With one pool
for all calls, sixteen pulls of one stuck dataset would leave no thread for `odf list`. So the pool is larger than
what any method may take of it, and no dataset may take all that its method has.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from odf_common.errors import Unavailable

WORKERS: Final = 1024  # threads at most; they are made when they are needed
CALLS: Final = 256  # of one method
CALLS_OF_ONE: Final = 64  # of one method for one dataset
PATIENCE_SECONDS: Final = 2.0  # what is quick frees its place in that time


@dataclass(eq=False, kw_only=True)
class Busy(Unavailable):
    """The service has as many of these calls in flight as it takes."""

    def advice(self) -> str:
        """Return what to do."""
        return "try again when some of them are done; `odf status` shows what they may be waiting for"


class Bulkheads:
    """Counts the calls in flight; safe to use from many threads."""

    def __init__(
        self, *, calls: int = CALLS, calls_of_one: int = CALLS_OF_ONE, patience: float = PATIENCE_SECONDS
    ) -> None:
        """Let in `calls` of each method at a time, `calls_of_one` for the same dataset, after `patience` s at most."""
        self._calls = calls
        self._calls_of_one = calls_of_one
        self._patience = patience
        self._in_flight: Counter[tuple[str, str]] = Counter()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """Return how many methods and datasets have calls in flight."""
        return len(self._in_flight)

    @contextmanager
    def method(self, method: str) -> Iterator[None]:
        """Have a place among the calls of a method; raises `Busy`."""
        with self._place((method, ""), self._calls):
            yield

    @contextmanager
    def dataset(self, method: str, ref: str) -> Iterator[None]:
        """Have a place among the calls of a method for one dataset; raises `Busy`."""
        if ref:
            with self._place((method, ref.lower()), self._calls_of_one):
                yield
        else:
            yield

    @contextmanager
    def _place(self, key: tuple[str, str], limit: int) -> Iterator[None]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._in_flight[key] < limit, self._patience):
                method, ref = key
                what = method.rpartition("/")[2] + (f" of {ref}" if ref else "")
                raise Busy(what=what, why=f"{limit} such calls are in flight")
            self._in_flight[key] += 1
        try:
            yield
        finally:
            with self._changed:
                self._in_flight[key] -= 1
                if not self._in_flight[key]:
                    del self._in_flight[key]
                self._changed.notify_all()


def ref_of(request: object) -> str:
    """Return which datasets a request is for, in one word; empty where it names none."""
    named = getattr(request, "header", request)  # of a stream of parts the first is its header
    return str(getattr(named, "ref", "")) or ",".join(getattr(named, "refs", ()))
