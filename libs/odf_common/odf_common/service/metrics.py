"""Prometheus metrics that every service has, and the HTTP server that exposes them.

Labels contain names of datasets, including private ones. On the loopback address, metrics are therefore for programs of
the node's user only, unless a token is configured; on other addresses readers always need the token.
"""

import hmac
import socket
import ssl
import sys
import threading
from collections import Counter as Tally
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final
from wsgiref.headers import Headers
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import structlog
from prometheus_client import Counter, Gauge, Histogram, make_wsgi_app

from odf_common.adapters.local.secrets import read_secret
from odf_common.errors import Unavailable
from odf_common.service.protection import (
    http_tls,
    is_loopback,
    require_protected,
    why_another_user,
    why_not_local,
)
from odf_common.service.settings import Settings

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

log = structlog.stdlib.get_logger(__name__)

REQUEST_SECONDS: Final = 10.0  # from the connection until its response is sent
MAX_CONNECTIONS: Final = 32
MAX_CONNECTIONS_PER_ADDRESS: Final = 8
NOT_LOCAL: Final = "the metrics are for programs of the node's user on this machine"
_ENDS: Final = "odf.ends"  # of a connection: the client's address and the server's

MESSAGES: Final = Counter("odf_messages_total", "Handled messages, by outcome.", ("topic", "outcome"))
SECONDS: Final = Histogram(
    "odf_message_seconds",
    "Time from reading a message until its results are sent.",
    ("topic",),
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
)
OWNED_PARTITIONS: Final = Gauge("odf_owned_partitions", "Partitions read by this instance.", ("topic",))
RETRIES: Final = Counter(
    "odf_retries_total", "Retries because a part of the node was unavailable, by error.", ("error",)
)


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves each connection in its own thread, including the TLS handshake, for a limited time."""

    daemon_threads = True

    def __init__(
        self, host: str, port: int, app: "WSGIApplication", *, tls: ssl.SSLContext | None = None
    ) -> None:
        """Listen at the address; raises `OSError` if it is in use or the host cannot be resolved."""
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        self.address_family = family
        self._tls = tls
        self._open: Tally[str] = Tally()
        self._lock = threading.Lock()
        super().__init__((str(address[0]), port), _Handler)
        self.set_app(app)

    def get_request(self) -> tuple[Any, Any]:  # Any: socketserver's own types
        """Return the next connection; its TLS handshake happens at the first read, in the connection's own thread."""
        connection, address = super().get_request()
        connection.settimeout(REQUEST_SECONDS)
        if self._tls is not None:
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return connection, address

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401
        """Return whether another connection is allowed, in total and from this address; if so, count it."""
        host = client_address[0]
        with self._lock:
            if self._open.total() >= MAX_CONNECTIONS or self._open[host] >= MAX_CONNECTIONS_PER_ADDRESS:
                return False
            self._open[host] += 1
            return True

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Start a thread that answers the connection; if that fails, the connection is closed and no longer counted."""
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._forget(client_address[0])
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Answer a connection; it is closed after `REQUEST_SECONDS`, even if the client keeps sending bytes."""
        end = threading.Timer(REQUEST_SECONDS, _cut_off, (request,))
        end.daemon = True
        try:
            end.start()
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._forget(client_address[0])

    def _forget(self, host: str) -> None:
        with self._lock:
            self._open[host] -= 1
            self._open += Tally()  # drops addresses without connections

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Log at level debug why a connection failed: bad handshakes, timeouts and resets are the client's problem."""
        log.debug("metrics connection failed", client=client_address[0], why=str(sys.exception()))


class _Handler(WSGIRequestHandler):
    def get_environ(self) -> "WSGIEnvironment":
        """Return the WSGI environment of the request, with the addresses of both ends of its connection."""
        return {**super().get_environ(), _ENDS: (self.client_address, self.connection.getsockname())}

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def expose(settings: Settings) -> None:
    """Serve the metrics of this process over HTTP if a port is configured; by HTTPS except on the loopback address.

    Raises `Unavailable` if the port is in use, `Unprotected` if listening on the host needs TLS that is not configured,
    and `InvalidInput` if the file of a certificate or token cannot be used.
    """
    port, host = settings.metrics_port, settings.metrics_host.strip("[]")
    if port is None:
        return
    require_protected(settings, "ODF_METRICS_HOST", f"{settings.metrics_host}:{port}")
    app = make_wsgi_app()
    if settings.metrics_token_file is not None:
        app = _for_bearers_of(read_secret(settings.metrics_token_file), app)
    elif is_loopback(host):
        app = _for_own_programs(app)
    tls = None if is_loopback(host) else http_tls(settings)
    try:
        server = MetricsServer(host, port, app, tls=tls)
    except OSError as error:
        raise Unavailable(what=f"port {port} for metrics", why=error.strerror or str(error)) from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()


def _for_bearers_of(token: str, app: "WSGIApplication") -> "WSGIApplication":
    # A hash only: the engine, which runs SQL of users, is one of those that serve metrics.
    expected = sha256(f"Bearer {token}".encode()).digest()

    def guard(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        sent = sha256(environ.get("HTTP_AUTHORIZATION", "").encode()).digest()
        if hmac.compare_digest(sent, expected):
            return app(environ, start_response)
        start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Length", "0")])
        return []

    return guard


def _for_own_programs(app: "WSGIApplication") -> "WSGIApplication":
    def guard(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        client, server = environ[_ENDS]
        prefix = "HTTP_"
        headers: Any = Headers(  # compares names as HTTP does
            [
                (name.removeprefix(prefix).replace("_", "-"), str(value))
                for name, value in environ.items()
                if name.startswith(prefix)
            ]
        )
        host = environ.get("HTTP_HOST", "")
        why = why_not_local(peer=client[0], host=host, headers=headers) or why_another_user(client, server)
        if why is None:
            return app(environ, start_response)
        text = f"{NOT_LOCAL}: {why}; others need the token that ODF_METRICS_TOKEN_FILE sets\n".encode()
        start_response("403 Forbidden", [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))])
        return [text]

    return guard


def _cut_off(connection: socket.socket) -> None:
    with suppress(OSError):  # it has ended
        socket.socket.shutdown(
            connection, socket.SHUT_RDWR
        )  # not TLS's, which changes what the thread reads from
