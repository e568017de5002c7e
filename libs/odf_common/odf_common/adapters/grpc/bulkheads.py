"""Limits on the calls in flight on a gRPC server: per method, and within a method per dataset.

A call may block its thread for as long as it waits for a lock, an engine or a source. With one shared pool, sixteen
pulls of one stuck dataset would leave no thread for `odf list`. So the pool is larger than any method's share, and no
dataset may use all of its method's share.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from odf_common.errors import Unavailable

MAX_WORKERS: Final = 1024  # maximum threads; created on demand
MAX_CALLS_OF_METHOD: Final = 256  # of one method
MAX_CALLS_OF_DATASET: Final = 64  # of one method for one dataset
ADMISSION_TIMEOUT_SECONDS: Final = 2.0  # quick calls finish in that time


class Busy(Unavailable):
    """The service has reached its limit of calls in flight."""

    ADVICE = "retry when some of them are done; `odf status` shows what they may be waiting for"


class Bulkheads:
    """Counts the calls in flight; thread-safe."""

    def __init__(
        self,
        *,
        calls: int = MAX_CALLS_OF_METHOD,
        calls_of_one: int = MAX_CALLS_OF_DATASET,
        timeout: float = ADMISSION_TIMEOUT_SECONDS,
    ) -> None:
        """Admit up to `calls` per method and `calls_of_one` per dataset; a call waits `timeout` s for admission."""
        self._calls = calls
        self._calls_of_one = calls_of_one
        self._timeout = timeout
        self._in_flight: Counter[tuple[str, str]] = Counter()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """Return the number of methods and datasets with calls in flight."""
        return len(self._in_flight)

    @contextmanager
    def method(self, method: str) -> Iterator[None]:
        """Count as a call of the method while the block runs; raises `Busy`."""
        with self._occupy((method, ""), self._calls):
            yield

    @contextmanager
    def dataset(self, method: str, ref: str) -> Iterator[None]:
        """Count as a call of the method for a dataset while the block runs; raises `Busy`."""
        if ref:
            with self._occupy((method, ref.lower()), self._calls_of_one):
                yield
        else:
            yield

    @contextmanager
    def _occupy(self, key: tuple[str, str], limit: int) -> Iterator[None]:
        with self._changed:
            if not self._changed.wait_for(lambda: self._in_flight[key] < limit, self._timeout):
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
    """Return the datasets that a request names, joined by commas; empty if it names none."""
    named = getattr(request, "header", request)  # the first part of a stream is its header
    return str(getattr(named, "ref", "")) or ",".join(getattr(named, "refs", ()))
