"""Calls on a gRPC server: limits on concurrent calls, and the facts that the audit records about each call.

A call blocks its thread while it waits for a lock, an engine or a source. With a single limit, sixteen pulls of one
stuck dataset would leave no thread for `odf list`. Therefore the thread pool is larger than the limit per method, and
the limit per method is larger than the limit per method and dataset.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import grpc

from odf_common.errors import Unavailable

MAX_WORKERS: Final = 1024  # maximum threads; created on demand
MAX_CALLS_OF_METHOD: Final = 256  # of one method
MAX_CALLS_OF_DATASET: Final = 64  # of one method for one dataset
ADMISSION_TIMEOUT_SECONDS: Final = 2.0  # quick calls finish in that time


class Busy(Unavailable):
    """The service has reached its limit of concurrent calls."""

    ADVICE = "retry when some of them are done; `odf status` shows what they may be waiting for"


class Bulkheads:
    """Limits the number of concurrent calls per method and per dataset; thread-safe."""

    def __init__(
        self,
        *,
        calls: int = MAX_CALLS_OF_METHOD,
        calls_of_one: int = MAX_CALLS_OF_DATASET,
        timeout: float = ADMISSION_TIMEOUT_SECONDS,
    ) -> None:
        """Allow `calls` per method and `calls_of_one` per method and dataset; others wait up to `timeout` seconds."""
        self._calls = calls
        self._calls_of_one = calls_of_one
        self._timeout = timeout
        self._in_flight: Counter[tuple[str, str]] = Counter()
        self._changed = threading.Condition()

    def __len__(self) -> int:
        """Return the number of methods, and of methods with a dataset, that have calls in flight."""
        return len(self._in_flight)

    @contextmanager
    def method(self, method: str) -> Iterator[None]:
        """Occupy a slot of the method during the `with` block; raises `Busy` if none becomes free in time."""
        with self._occupy((method, ""), self._calls):
            yield

    @contextmanager
    def dataset(self, method: str, ref: str) -> Iterator[None]:
        """Occupy a slot of the method for this dataset during the `with` block; raises `Busy` if none becomes free."""
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


COMMON_NAME: Final = "x509_common_name"
USER_AGENT: Final = "user-agent"
DATASETS: Final = ("dataset", "alias")  # fields that name a dataset, where `ref` and `refs` do not
SUBJECTS: Final = ("account", "name", "id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The facts of a finished call."""

    method: str
    """`/package.Service/Method`."""
    dataset: str = ""
    """The datasets that the call names or has created, joined by commas."""
    subject: str = ""
    """The account, token or webhook that the call names."""
    status: grpc.StatusCode = grpc.StatusCode.OK
    error: str = ""
    """Name of the error with which the call failed; empty if it succeeded."""
    address: str = ""
    """Host of the client, or the path of a local socket."""
    certificate_name: str = ""
    """Common name of the client's certificate, which the node's authority has signed; empty without TLS."""
    user_agent: str = ""
    """The client's `user-agent` header, unverified."""


def dataset_in(request: object, reply: object = None) -> str:
    """Return the datasets that a request or the reply to it names, joined by commas."""
    named = ref_of(request) or _first_text(request, DATASETS)
    if named or reply is None:
        return named
    return ",".join(result.alias for result in getattr(reply, "results", ()) if hasattr(result, "alias"))


def subject_in(request: object) -> str:
    """Return the account, token or webhook that a request names."""
    return _first_text(request, SUBJECTS)


def address_of(context: grpc.ServicerContext) -> str:
    """Return the client's host, or the path of a local socket."""
    kind, _, rest = unquote(context.peer()).partition(":")
    return rest.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else rest


def certificate_name(context: grpc.ServicerContext) -> str:
    """Return the common name of the client's certificate; empty if it presented none."""
    auth: Any = context.auth_context()
    return next(iter(auth.get(COMMON_NAME, ())), b"").decode(errors="replace")


def user_agent(context: grpc.ServicerContext) -> str:
    """Return the client's `user-agent` header."""
    metadata: Any = context.invocation_metadata() or ()
    return next((str(value) for key, value in metadata if key == USER_AGENT), "")


def _first_text(request: object, names: Iterable[str]) -> str:
    values = (getattr(request, name, "") for name in names)
    return next((text for text in values if text and isinstance(text, str)), "")
