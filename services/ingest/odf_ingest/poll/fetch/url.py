"""Url: one place, whose content is a block each time it has changed (spec: FetchStep::Url)."""

from collections.abc import Generator
from email.utils import format_datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from odf_common.errors import InvalidInput
from odf_common.metadata.events import SourceState
from odf_common.metadata.fetching import FetchStepUrl
from odf_common.metadata.scalars import Timestamp
from odf_ingest.poll.fetch import ftp
from odf_ingest.poll.fetch.body import Download, Validators
from odf_ingest.poll.fetch.fetch_step import Context, FetchedFile, fetch
from odf_ingest.poll.fetch.growing_file import is_complete
from odf_ingest.poll.fetch.http import Request, download
from odf_ingest.poll.fetch.local_file import copy_file
from odf_ingest.poll.poll_errors import SourceUnreachable
from odf_ingest.poll.polled_position import DIGEST, ETAG, LAST_MODIFIED, state_of

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
