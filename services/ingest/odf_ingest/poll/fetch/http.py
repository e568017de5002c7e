"""Downloads over http and https: conditional requests, redirects, limits; untrusted servers and names.

The address that is connected to is the one that was checked, for each redirect too. Headers of the source are sent to
its own origin only. A body that breaks off is requested again, and never taken for a whole one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

import urllib3
from urllib3.exceptions import HTTPError, NameResolutionError, NewConnectionError
from urllib3.util import Url, make_headers, parse_url

from odf_common.adapters.live_sockets import CONNECT_SECONDS
from odf_common.adapters.networks import restricted_pools
from odf_common.errors import InvalidInput
from odf_common.metadata.scalars import Timestamp
from odf_ingest.poll.fetch.body import SILENCE_SECONDS, Body, Download, Validators, with_retry
from odf_ingest.poll.fetch.fetch_step import CHUNK_BYTES, Context
from odf_ingest.poll.poll_errors import NothingAtSource, SourceRefusedRequest, SourceUnreachable

FETCH_TIMEOUT: Final = urllib3.Timeout(connect=CONNECT_SECONDS, read=SILENCE_SECONDS)
MAX_REDIRECTS: Final = 10
OK, NOT_MODIFIED = 200, 304
GONE_STATUSES: Final = frozenset({404, 410})
TRANSIENT_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})
OWN_HEADERS: Final = {"user-agent": "odf", "accept": "*/*", "accept-encoding": "identity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request: `label` stands for the URL in messages, `headers` are the source's own."""

    url: str
    label: str
    headers: Mapping[str, str]
    conditions: Mapping[str, str]
    """`If-None-Match` or `If-Modified-Since`."""
    is_same: Callable[[Validators], bool]
    """Returns whether validators are those of what was read last, for servers that ignore conditions."""


def download(request: Request, target: Path, context: Context) -> Download | None:
    """Store the content in `target`; None if it is the same as before. Retries what may pass."""

    def attempt() -> Download | None:
        with restricted_pools(
            context.limits.networks, num_pools=MAX_REDIRECTS, timeout=FETCH_TIMEOUT, retries=False
        ) as pools:
            return _download(pools, request, target, context)

    return with_retry(attempt, context)


def _download(
    pools: urllib3.PoolManager, request: Request, target: Path, context: Context
) -> Download | None:
    answer = _answer(pools, request, context)
    try:
        if answer.status == NOT_MODIFIED and request.conditions:
            return None
        _require_content(answer, request)
        validators = _validators(answer)
        if request.is_same(validators):
            return None
        total = int(answer.headers.get("content-length", "0")) if _is_number(answer) else 0
        body = Body(label=request.label, chunks=_chunks(answer, request.label), total=total)
        digest, _ = body.store(target, context)
        return Download(validators=validators, digest=digest)
    finally:
        answer.close()


def _answer(pools: urllib3.PoolManager, request: Request, context: Context) -> urllib3.BaseHTTPResponse:
    """Return the first response that is not a redirect, its body unread."""
    url = origin = require_http(request.url)
    for _ in range(MAX_REDIRECTS + 1):
        context.require_wanted()
        headers = {**OWN_HEADERS, **request.conditions}
        if _origin(url) == _origin(origin):
            headers |= {name.lower(): value for name, value in request.headers.items()}
            if url.auth is not None:
                headers |= make_headers(basic_auth=url.auth)
        try:
            answer = pools.request(
                "GET", url._replace(auth=None).url, headers=headers, redirect=False, preload_content=False
            )
        except HTTPError as error:
            raise SourceUnreachable(what=request.label, why=_reason(error)) from None
        redirect = answer.headers.get("location")
        if answer.status not in REDIRECT_STATUSES or not redirect:
            return answer
        answer.close()
        try:
            url = require_http(urljoin(url.url, redirect))
        except InvalidInput as error:
            raise SourceRefusedRequest(text=f"{request.label} redirects elsewhere: {error.text}") from None
        if origin.scheme == "https" and url.scheme != "https":
            raise SourceRefusedRequest(text=f"{request.label} redirects from https to {url.scheme}")
    raise SourceRefusedRequest(text=f"{request.label} redirects more than {MAX_REDIRECTS} times")


def require_http(text: str) -> Url:
    """Parse a URL; raises `InvalidInput` unless it is http or https with a host."""
    try:
        url = parse_url(text)
    except HTTPError as error:
        raise InvalidInput(where="fetch.url", text="not a URL") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidInput(where="fetch.url", text=f"expected http or https and a host, got {url.scheme}://")
    return url


def _origin(url: Url) -> tuple[str | None, str | None, int]:
    return url.scheme, url.host, url.port or (443 if url.scheme == "https" else 80)


def _require_content(answer: urllib3.BaseHTTPResponse, request: Request) -> None:
    """Raise unless the response has the whole content."""
    status = answer.status
    if status == OK:
        return
    if status in GONE_STATUSES:
        raise NothingAtSource(what=f"{request.label} (status {status})")
    if status in TRANSIENT_STATUSES:
        raise SourceUnreachable(what=request.label, why=f"status {status}")
    raise SourceRefusedRequest(text=f"{request.label} answers with status {status}")


def _validators(answer: urllib3.BaseHTTPResponse) -> Validators:
    modified = None
    try:
        date = parsedate_to_datetime(answer.headers.get("last-modified", ""))
        modified = Timestamp.from_datetime(date)
    except (
        ValueError,
        TypeError,
        OverflowError,
        InvalidInput,
    ):  # absent or malformed, which is as good as absent
        pass
    return Validators(etag=answer.headers.get("etag") or None, modified=modified)


def _chunks(answer: urllib3.BaseHTTPResponse, label: str) -> Iterator[bytes]:
    """Yield the body in pieces as they arrive; a lost connection raises `SourceUnreachable`."""
    while True:
        try:
            chunk = answer.read1(CHUNK_BYTES, decode_content=False)
        except (HTTPError, OSError) as error:
            raise SourceUnreachable(what=label, why=_reason(error)) from None
        if not chunk:
            return
        yield chunk


def _is_number(answer: urllib3.BaseHTTPResponse) -> bool:
    length = answer.headers.get("content-length", "")
    return length.isascii() and length.isdigit()


def _reason(error: Exception) -> str:
    """Return the reason why a request failed, without its URL, which may have secrets."""
    match error:
        case NameResolutionError():
            return "its host name cannot be resolved"
        case NewConnectionError():
            return str(error).rpartition(": ")[2]
        case urllib3.exceptions.ConnectTimeoutError():
            return "no connection in time"
        case urllib3.exceptions.ReadTimeoutError() | TimeoutError():
            return f"nothing arrived for {FETCH_TIMEOUT.read_timeout} s"
        case urllib3.exceptions.IncompleteRead() | urllib3.exceptions.ProtocolError():
            return "the connection was interrupted"
        case urllib3.exceptions.SSLError():
            return f"TLS: {error.args[0] if error.args else 'failed'}"
        case _:
            return type(error).__name__
