"""HTTP requests to a node that the user named, and to the URLs in its responses: redirects and URLs of objects.

These URLs are not trusted. Origins other than the node's get no token of this client, even if the node sent it back
with the URL. They must be at public addresses, or within `ODF_FETCH_NETWORKS`; else a node could make this one send
requests inside its own network.

Responses have a minimum rate, so that a server that sends a byte occasionally cannot block a pull forever. The timeout
of a socket limits only the wait for the next byte. Here the sum of all waits of a response counts, without the time
that the caller takes between reads.
"""

import http.client
import io
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final
from urllib.parse import urljoin

import urllib3
from urllib3.util import parse_url

from odf_common.adapters.networks import ALWAYS, DEFAULT_PORTS, Networks, Options, Pools, restricted_pools
from odf_common.errors import InvalidInput, Unavailable
from odf_sync.access.rate_limits import Pace

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


HEADERS_SECONDS: Final = 60.0  # for the status and headers, with all interim responses
WINDOW_SECONDS: Final = 60.0
WINDOW_BYTES: Final = 64 * 1024  # that have to arrive while so long is waited for them
RESPONSE_SECONDS: Final = 24 * 3600.0  # for a response at whatever pace
MIN_BYTES_PER_SECOND: Final = WINDOW_BYTES / WINDOW_SECONDS


class TooSlow(TimeoutError):
    """A response arrived more slowly than the minimum rate."""


def with_minimum_rate(pools: urllib3.PoolManager) -> urllib3.PoolManager:
    """Return the pools, whose responses now raise `ReadTimeoutError`, from `TooSlow`, below the minimum rate."""
    pools.pool_classes_by_scheme = {
        scheme: _paced_pool(pool) for scheme, pool in pools.pool_classes_by_scheme.items()
    }
    return pools


def _paced_pool(pool: Any) -> Any:  # noqa: ANN401 - the types of urllib3 have no name for it
    connection = type("PacedConnection", (pool.ConnectionCls,), {"response_class": PacedResponse})
    return type("PacedPool", (pool,), {"ConnectionCls": connection})


class PacedResponse(http.client.HTTPResponse):
    """A response that enforces the minimum rate when it reads from its socket."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - passed on
        """Wrap the socket of a request that has been sent."""
        super().__init__(sock, *arguments, **options)
        self._pace = _PacedSocket(sock)
        self.fp.close()
        self.fp = io.BufferedReader(self._pace)

    def begin(self) -> None:
        """Read the status and headers."""
        super().begin()
        self._pace.has_headers = True


class _PacedSocket(io.RawIOBase):
    """The bytes that a socket receives; raises `TooSlow` below the minimum rate."""

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


MAX_REDIRECTS: Final = 3
MAX_DISCARDED_BYTES: Final = 16 * 1024  # bytes of a body that are read, so that its connection is used again
MAX_RETRY_AFTER_SECONDS: Final = 10  # at most, whatever a node asks for
SECRET_HEADERS: Final = frozenset({"authorization", "cookie", "proxy-authorization"})


class NodeClient:
    """Sends requests with one connection pool for the node and one for all other origins."""

    def __init__(
        self,
        url: str,
        networks: Networks,
        *,
        timeout: urllib3.Timeout,
        retries: urllib3.Retry,
        sockets: Options = ALWAYS,
    ) -> None:
        """Trust the origin of `url`; other origins must be at public addresses or within `networks`."""
        self._origin = _origin(url)
        # Bodies are sent in urllib3's pieces of 16 KiB. Larger ones take less processor time, but the timeout is that
        # of a whole piece, so that they would fail on a slow line.
        options: dict[str, Any] = {"maxsize": 10, "timeout": timeout, "retries": retries, "sockets": sockets}
        self._own = with_minimum_rate(Pools(num_pools=2, **options))
        self._others = with_minimum_rate(restricted_pools(networks, num_pools=4, **options))

    def get(self, url: str, headers: Mapping[str, str]) -> urllib3.BaseHTTPResponse:
        """Follow redirects, and return the first other response with its body unread.

        Raises `AddressForbidden`, `InvalidInput`, `Unavailable` after too many redirects, and the errors of urllib3.
        """
        location = url
        for _ in range(MAX_REDIRECTS + 1):
            answer = self._request("GET", location, headers, None)
            target = answer.get_redirect_location()
            if not target:
                return answer
            answer.close()
            location = _redirect_target(location, target)
        raise Unavailable(what=url, why=f"more than {MAX_REDIRECTS} redirects")

    def is_own(self, url: str) -> bool:
        """Return whether a URL has the origin of the node."""
        return _origin(url) == self._origin

    def put(
        self, url: str, headers: Mapping[str, str], content: BinaryIO | bytes
    ) -> urllib3.BaseHTTPResponse:
        """Send a body by PUT, and return the response; redirects are not followed. Raises as `get` does."""
        return self._request("PUT", url, headers, content)

    def _request(
        self, method: str, url: str, headers: Mapping[str, str], content: BinaryIO | bytes | None
    ) -> urllib3.BaseHTTPResponse:
        pool = self._own
        if not self.is_own(url):
            pool = self._others
            headers = {name: value for name, value in headers.items() if name.lower() not in SECRET_HEADERS}
        return pool.request(method, url, headers=headers, body=content, redirect=False, preload_content=False)


def discard(answer: urllib3.BaseHTTPResponse) -> None:
    """Release the connection of a response whose body is not needed; a short body is read so that it can be reused."""
    if answer.length_remaining is not None and answer.length_remaining <= MAX_DISCARDED_BYTES:
        answer.drain_conn()
        answer.release_conn()
    else:
        answer.close()


def _redirect_target(url: str, target: str) -> str:
    """Return the target of a redirect; raises `InvalidInput` unless it is a valid URL and does not drop encryption."""
    try:
        location = urljoin(url, target)
    except ValueError as error:
        raise InvalidInput(text=f"redirects to {target[:200]!r}, which is not a URL", where=url) from error
    scheme = _origin(location)[0]
    if _origin(url)[0] == "https" and scheme != "https":
        raise InvalidInput(text="redirects from https to http", where=url)
    return location


def _origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port as urllib3 parses them when it connects, as other parsers may see another host."""
    try:
        parts = parse_url(url)
    except urllib3.exceptions.LocationParseError as error:
        raise InvalidInput(text=f"not a URL: {error}", where=url[:200]) from error
    if parts.scheme not in DEFAULT_PORTS or not parts.host:
        raise InvalidInput(text="expected a URL of http or https", where=url[:200])
    return parts.scheme, parts.host, DEFAULT_PORTS[parts.scheme] if parts.port is None else parts.port
