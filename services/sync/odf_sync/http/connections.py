"""Limits of one connection: the time for the headers of a request, and the number of bytes received.

The number of connections is not limited here, but by a proxy in front of a public address and by the system's limit on
open files.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, cast

from aiohttp import hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest
from prometheus_client import Counter, Gauge

from odf_common.adapters.networks import WHILE_IDLE, watch

BACKLOG_CONNECTIONS: Final = 128  # connections that the system holds until they are accepted
HANDSHAKE_SECONDS: Final = 10.0  # of TLS
STALLED_SECONDS: Final = 60.0  # in which a client takes no byte of what is sent to it
GRACE_TURNS: Final = 10  # if the loop was busy, headers and the end of their time may be seen together

OPEN: Final = Gauge("odf_http_connections", "Open connections of the HTTP server.")
CLOSED: Final = Counter(
    "odf_http_connections_closed_total",
    "Connections closed by a limit: with slow headers, or with a message larger than announced.",
    ("reason",),
)
# `FileResponse`'s status for a file that it cannot open, and ours: the store found the file a moment ago.
NOT_OPENED: Final = {403: 500, 404: 503}
RETRY_AFTER_SECONDS: Final = 5
SLOW, LARGE = "slow", "large"


TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


async def listen(
    make: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    header_seconds: float,
) -> asyncio.Server:
    """Listen on an address, and serve each connection with a protocol from `make`; raises `OSError`.

    The headers of a request must arrive within `header_seconds`.
    """
    return await asyncio.get_running_loop().create_server(
        lambda: ClientConnection(header_seconds, make),
        host,
        port,
        ssl=tls,
        backlog=BACKLOG_CONNECTIONS,
        ssl_handshake_timeout=None if tls is None else HANDSHAKE_SECONDS,
    )


class ClientConnection(asyncio.Protocol):
    """A client's connection: a protocol that enforces limits between the transport and the HTTP server's protocol."""

    def __init__(self, header_seconds: float, make: Callable[[], asyncio.Protocol]) -> None:
        """Create the HTTP server's protocol by `make` once the connection is established."""
        self._header_seconds = header_seconds
        self._make = make
        self._transport: asyncio.Transport | None = None
        self._inner: asyncio.Protocol | None = None
        self._requests = 0  # in flight
        self._is_ended = False
        self._timer: asyncio.Handle | None = None
        self.received = 0
        """The number of bytes received on this connection."""
        self._left: int | None = None  # bytes that may still come; None: any number
        self._is_holding = False  # instead of closing when more come
        self.is_held = False
        """Whether reading is paused because more bytes were received than `hold` allows."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the HTTP server's protocol and the timeout for headers."""
        OPEN.inc()
        self._transport = cast("asyncio.Transport", transport)
        # While the kernel sends a file, no callback says that the client reads nothing: the kernel itself gives up.
        # It does so too on a client that has gone.
        stalled = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(STALLED_SECONDS * 1000))
        watch(transport.get_extra_info("socket"), (*WHILE_IDLE, stalled))
        self._inner = self._make()
        self._inner.connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Forward bytes; the first bytes of a request start the timeout for its headers."""
        if self._inner is None or self._is_ended:
            return
        self.received += len(data)
        if not self._requests and self._timer is None:
            self._start_timer()
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0 and not self._is_holding:
                self._end(LARGE, b"")
                return
            if self._left < 0:
                self._pause()
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Forward the end of the stream."""
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        """Forward backpressure: the send buffer is full."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Forward the end of backpressure: the send buffer has room again."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forward that the connection was lost."""
        OPEN.dec()
        self._stop_timer()
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def begin(self) -> None:
        """Count a request whose headers are complete; ends the timeout for headers."""
        self._requests += 1
        self._stop_timer()

    def finish(self) -> None:
        """Count a request as answered."""
        self._requests -= 1

    def limit(self, most: int | None) -> None:
        """Close the connection when more than `most` bytes are received from now on; None removes the limit."""
        self._left, self._is_holding = most, False
        self._resume()

    def hold(self, most: int) -> None:
        """Pause reading after more than `most` bytes are received from now on, until `limit` or `hold` is called."""
        self._left, self._is_holding = most, True
        self._resume()

    def _pause(self) -> None:
        # Each time: the HTTP server resumes a transport when it has passed on a message.
        self.is_held = True
        if self._transport is not None:
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self.is_held and self._transport is not None:
            self._transport.resume_reading()
        self.is_held = False

    def _start_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._header_seconds, self._expire, GRACE_TURNS)

    def _expire(self, turns: int) -> None:
        """Close the connection after some turns of the event loop, in which a request that has arrived can begin."""
        if turns:
            self._timer = asyncio.get_running_loop().call_soon(self._expire, turns - 1)
        else:
            self._end(SLOW, TOO_SLOW)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, reason: str, answer: bytes) -> None:
        CLOSED.labels(reason).inc()
        self._stop_timer()
        self._is_ended = True
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.write(answer)
            self._transport.close()


def connection_of(request: BaseRequest) -> ClientConnection:
    """Return the connection of a request. If it is closed or not of this server, limits on it have no effect."""
    protocol = None if request.transport is None else request.transport.get_protocol()
    return protocol if isinstance(protocol, ClientConnection) else ClientConnection(0, asyncio.Protocol)


@contextmanager
def in_flight(request: BaseRequest) -> Iterator[None]:
    """Count a request as in flight during the `with` block; the timeout for headers does not run meanwhile."""
    connection = connection_of(request)
    connection.begin()
    try:
        yield
    finally:
        connection.finish()


class SentFile(web.FileResponse):
    """A file as a response, which aiohttp sends after the handler has returned; the request is in flight until then."""

    def set_status(self, status: int, reason: str | None = None) -> None:
        """Set the status. A file that cannot be opened is an error of the server, which caches must not keep."""
        if status in NOT_OPENED:
            status, reason = NOT_OPENED[status], None
            self.headers.popall(hdrs.CACHE_CONTROL, None)
            self.headers[hdrs.RETRY_AFTER] = str(RETRY_AFTER_SECONDS)
        super().set_status(status, reason)

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter | None:
        """Send the file; raises `ConnectionResetError`, which aiohttp handles, if the client has disconnected."""
        with in_flight(request):
            try:
                return await super().prepare(request)
            except TimeoutError as error:  # of a client that stopped reading
                raise ConnectionResetError from error
            except AttributeError as error:
                # Over TLS, asyncio then fails to restore the protocol of a connection that has gone.
                if request.transport is None or request.transport.is_closing():
                    raise ConnectionResetError from error
                raise
