"""A least pace for responses: a server that sends a byte now and then does not hold a pull forever.

A socket's timeout limits the wait for the next byte only. Here the time that all waits of a response take is measured,
not what the caller does between them.
"""

import http.client
import io
import socket
import time
from typing import TYPE_CHECKING, Any, Final

import urllib3

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

HEADERS_SECONDS: Final = 60.0  # for the status and headers, with all interim responses
WINDOW_SECONDS: Final = 60.0
WINDOW_BYTES: Final = 64 * 1024  # at least, in each window
RESPONSE_SECONDS: Final = 24 * 3600.0  # for a response at whatever pace
MIN_BYTES_PER_SECOND: Final = WINDOW_BYTES / WINDOW_SECONDS


class TooSlow(TimeoutError):
    """A response has arrived too slowly."""


def paced(pools: urllib3.PoolManager) -> urllib3.PoolManager:
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
    """What a socket receives; raises `TooSlow`."""

    def __init__(self, sock: socket.socket) -> None:
        self._raw = sock.makefile("rb", buffering=0)
        self.has_headers = False
        self._waited = 0.0  # seconds, since the first byte was awaited
        self._window = (0.0, 0)  # seconds waited when it began, and bytes that arrived in it

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "WriteableBuffer", /) -> int:
        began = time.monotonic()
        count = self._raw.readinto(buffer) or 0
        self._waited += time.monotonic() - began
        start, arrived = self._window
        self._window = (start, arrived + count)
        if count:
            self._check()
        return count

    def _check(self) -> None:
        start, arrived = self._window
        if not self.has_headers and self._waited > HEADERS_SECONDS:
            raise TooSlow(f"no complete headers in {HEADERS_SECONDS:g} s")
        if self._waited > RESPONSE_SECONDS:
            raise TooSlow(f"no end of the response in {RESPONSE_SECONDS:g} s")
        if self._waited - start > WINDOW_SECONDS:
            if arrived < WINDOW_BYTES:
                raise TooSlow(f"{arrived} bytes in {WINDOW_SECONDS:g} s")
            self._window = (self._waited, 0)

    def close(self) -> None:
        self._raw.close()
        super().close()
