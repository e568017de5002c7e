"""Url: one place, whose content is a block each time it has changed (spec: FetchStep::Url).

Http: Downloads over http and https: conditional requests, redirects, limits; untrusted servers and names.

The address that is connected to is the one that was checked, for each redirect too. Headers of the source are sent to
its own origin only. A body that breaks off is requested again, and never taken for a whole one.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from email.utils import format_datetime, parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, NameResolutionError, NewConnectionError
from urllib3.util import Url, make_headers, parse_url

from odf_common.adapters.networks import CONNECT_SECONDS, restricted_pools
from odf_common.errors import InvalidInput
from odf_common.metadata.events import SourceState
from odf_common.metadata.fetching import FetchStepUrl
from odf_common.metadata.scalars import Timestamp
from odf_ingest.poll.fetch import ftp
from odf_ingest.poll.fetch.fetch_step import (
    CHUNK_BYTES,
    SILENCE_SECONDS,
    Body,
    Context,
    Download,
    FetchedFile,
    Validators,
    fetch,
    with_retry,
)
from odf_ingest.poll.fetch.files_glob import copy_file, is_complete
from odf_ingest.poll.poll_errors import NothingAtSource, SourceRefusedRequest, SourceUnreachable
from odf_ingest.poll.polled_position import DIGEST, ETAG, LAST_MODIFIED, state_of

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
    """Store the content in `target`; None if it is unchanged. Retries transient errors."""

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


URL_SCHEMES: Final = ("http", "https", "ftp", "file")


@fetch.register
def url(step: FetchStepUrl, context: Context) -> Generator[FetchedFile]:
    """Yield the content, unless it is that of the last block; nothing is requested again with `cache: Forever`."""
    if step.cache is not None and context.last is not None:
        return
    scheme = urlsplit(step.url).scheme.lower()
    match scheme:
        case "http" | "https":
            downloaded = _over_http(step, context)
        case "ftp":
            downloaded = _over_ftp(step, context)
        case "file":
            downloaded = _from_file(step, context)
        case _:
            raise InvalidInput(where="fetch.url", text=f"expected {', '.join(URL_SCHEMES)}, got {scheme!r}")
    if downloaded is not None:
        yield downloaded


def _over_http(step: FetchStepUrl, context: Context) -> FetchedFile | None:
    label = label_of(step.url)
    context.report(label)
    target = context.folder / "fetched"
    request = Request(
        url=step.url,
        label=label,
        headers={header.name: header.value for header in step.headers or ()},
        conditions=_conditions(context.last),
        is_same=lambda downloaded: context.last is not None and _state(downloaded) == context.last,
    )
    downloaded = download(request, target, context)
    if downloaded is None:
        return None
    return _as_fetched(step, context, target, label=label, downloaded=downloaded)


def _over_ftp(step: FetchStepUrl, context: Context) -> FetchedFile | None:
    if step.headers:
        raise InvalidInput(where="fetch.headers", text="ftp has no headers")
    label, target = label_of(step.url), context.folder / "fetched"
    context.report(label)
    etag = context.last.value if context.last is not None and context.last.kind == ETAG else None
    downloaded = ftp.download(ftp.FtpFile.parse(urlsplit(step.url), label), target, context, etag)
    return (
        None if downloaded is None else _as_fetched(step, context, target, label=label, downloaded=downloaded)
    )


def _from_file(step: FetchStepUrl, context: Context) -> FetchedFile | None:
    parts = urlsplit(step.url)
    if parts.netloc not in ("", "localhost"):
        raise InvalidInput(where="fetch.url", text=f"a file URL has no host; write file:///…, not {step.url}")
    label, target = f"file://{parts.path}", context.folder / "fetched"
    context.report(label)
    path = Path(unquote(parts.path))
    digest, status = copy_file(path, target, context, label)
    if not is_complete(path, status, target, context, label):
        raise SourceUnreachable(what=label, why="it is being written: its last line is not complete")
    downloaded = Download(validators=Validators(modified=Timestamp(status.st_mtime_ns)), digest=digest)
    return _as_fetched(step, context, target, label=label, downloaded=downloaded)


def _as_fetched(
    step: FetchStepUrl, context: Context, target: Path, *, label: str, downloaded: Download
) -> FetchedFile | None:
    state = _state(downloaded.validators) or state_of(DIGEST, str(downloaded.digest))
    if state == context.last:
        return None
    before = context.position.last
    return FetchedFile(
        label=label,
        file=target,
        event_time=context.event_time(
            step.event_time, urlsplit(step.url).path, downloaded.validators.modified
        ),
        state=state,
        is_read=lambda position: position.last != before,
    )


def _state(validators: Validators) -> SourceState | None:
    if validators.etag is not None:
        return state_of(ETAG, validators.etag)
    return None if validators.modified is None else state_of(LAST_MODIFIED, str(validators.modified))


def _conditions(last: SourceState | None) -> dict[str, str]:
    if last is None or last.kind not in (ETAG, LAST_MODIFIED):
        return {}
    if last.kind == ETAG:
        return {"if-none-match": last.value}
    return {"if-modified-since": format_datetime(Timestamp.parse(last.value).datetime(), usegmt=True)}


def label_of(text: str) -> str:
    """Return a URL for people: without user, password, query and fragment, which may have secrets."""
    parts = urlsplit(text)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
