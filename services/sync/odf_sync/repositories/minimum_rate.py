"""A least pace for responses: a server that sends a byte occasionally does not hold a pull forever.

A socket's timeout limits the wait for the next byte only. Here the time that all waits of a response take is measured,
not what the caller does between them.
"""

import http.client
import io
import socket
import time
from typing import TYPE_CHECKING, Any, Final

import urllib3

from odf_sync.access.rate_limits import Pace

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

HEADERS_SECONDS: Final = 60.0  # for the status and headers, with all interim responses
WINDOW_SECONDS: Final = 60.0
WINDOW_BYTES: Final = 64 * 1024  # that have to arrive while so long is waited for them
RESPONSE_SECONDS: Final = 24 * 3600.0  # for a response at whatever pace
MIN_BYTES_PER_SECOND: Final = WINDOW_BYTES / WINDOW_SECONDS


class TooSlow(TimeoutError):
    """A response has arrived too slowly."""


def with_minimum_rate(pools: urllib3.PoolManager) -> urllib3.PoolManager:
    """Return the pools, whose responses now raise `ReadTimeoutError` of urllib3, from `TooSlow`."""
    pools.pool_classes_by_scheme = {
        scheme: _paced_pool(pool) for scheme, pool in pools.pool_classes_by_scheme.items()
    }
    return pools


def _paced_pool(pool: Any) -> Any:  # noqa: ANN401 - the types of urllib3 have no name for it
    connection = type("PacedConnection", (pool.ConnectionCls,), {"response_class": PacedResponse})
    return type("PacedPool", (pool,), {"ConnectionCls": connection})


class PacedResponse(http.client.HTTPResponse):
    """A response that reads its socket at a least pace."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - passed on
        """Read the response to a request that was sent."""
        super().__init__(sock, *arguments, **options)
        self._pace = _PacedSocket(sock)
        self.fp.close()
        self.fp = io.BufferedReader(self._pace)

    def begin(self) -> None:
        """Read the status and headers."""
        super().begin()
        self._pace.has_headers = True


class _PacedSocket(io.RawIOBase):
    """The bytes that a socket receives; raises `TooSlow`."""

    def __init__(self, sock: socket.socket) -> None:
        self._raw = sock.makefile("rb", buffering=0)
        self.has_headers = False
        self._waited = 0.0  # seconds, since the first byte was awaited
        self._pace = Pace(
            WINDOW_SECONDS,
            WINDOW_BYTES / WINDOW_SECONDS,
            total_seconds=RESPONSE_SECONDS,
            subject=" of the response",
        )

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        began = time.monotonic()
        count = self._raw.readinto(buffer) or 0
        waited = time.monotonic() - began
        self._waited += waited
        self._pace.note(count, waited)
        if count:
            self._check()
        return count

    def _check(self) -> None:
        if not self.has_headers and self._waited > HEADERS_SECONDS:
            raise TooSlow(f"no complete headers in {HEADERS_SECONDS:g} s")
        if self._pace.seconds_left <= 0:
            raise TooSlow(self._pace.too_slow())

    def close(self) -> None:
        self._raw.close()
        super().close()
