"""Lists the datasets of a repository: as a node lists them, or by the names of the folders in a folder or a bucket.

Repositories are not trusted: the number of datasets and of bytes is limited.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.adapters.repository_urls import BUCKETS, SMART, SMART_PREFIX, WEB
from odf_common.adapters.s3.location import S3Location
from odf_common.errors import InvalidInput, NotFound, OdfError
from odf_common.identity.dataset_refs import parse_alias
from odf_common.service.connections import s3_access
from odf_common.service.settings import Settings
from odf_sync.access.sent_tokens import TokenFor
from odf_sync.repositories import remote_dataset
from odf_sync.repositories.http_dataset import HttpDataset
from odf_sync.search.summary import AFTER, LIST_LIMIT, PATH, DatasetSummary, parse_page

DATASETS_LIMIT: Final = 10_000  # of one repository
PARALLEL_READERS: Final = 8  # folders at a time


def list_datasets(url: str, token_for: TokenFor, settings: Settings) -> tuple[DatasetSummary, ...]:
    """Return the datasets of the repository at a URL; those of folders and buckets have nothing but a name.

    Raises `NotFound` if a server does not list datasets, `InvalidInput` and `Unavailable`.
    """
    if urlsplit(url).scheme in (*WEB, *SMART):
        return _datasets_of_node(url.removeprefix(SMART_PREFIX), token_for)
    names = islice(_dataset_names(url, settings), DATASETS_LIMIT)
    return tuple(DatasetSummary(name=name) for name in names)


def _datasets_of_node(base: str, token_for: TokenFor) -> tuple[DatasetSummary, ...]:
    server = HttpDataset(base, token_for(base))
    path, last, remaining = PATH, "", LIST_LIMIT
    summaries: list[DatasetSummary] = []
    while len(summaries) < DATASETS_LIMIT:
        try:
            content = server.document(path, remaining)
        except NotFound as error:
            raise NotFound(what=f"a list of datasets at {base}{PATH}") from error
        page = parse_page(content, base + path)
        summaries += page.datasets
        remaining -= len(content)
        if not page.next:
            break
        if not page.datasets or page.next.lower() <= last.lower():
            raise InvalidInput(text="its pages do not continue each other", where=base + path)
        last, path = page.next, f"{PATH}?{AFTER}={quote(page.next, safe='')}"
    return tuple(summaries[:DATASETS_LIMIT])


def _dataset_names(url: str, settings: Settings) -> Iterator[str]:
    """Yield the names of folders with a head, `DATASET` or `ACCOUNT/DATASET`, in the order of the folders."""
    with ThreadPoolExecutor(PARALLEL_READERS, thread_name_prefix="search") as pool:
        names = list(_valid(_folders(url, settings)))
        for found in pool.map(lambda name: tuple(_datasets_in(url, name, settings)), names):
            yield from found


def _datasets_in(url: str, name: str, settings: Settings) -> Iterator[str]:
    if _has_head(url + quote(name), settings):
        yield name
        return
    for inner in _valid(f"{name}/{folder}" for folder in _folders(f"{url}{quote(name)}/", settings)):
        if _has_head(url + quote(inner), settings):
            yield inner


def _valid(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        try:
            parse_alias(name)
        except InvalidInput:
            continue
        yield name


@translating_os_errors
def _folders(url: str, settings: Settings) -> tuple[str, ...]:
    """Return the names of the folders at a URL; raises `NotFound` if it is not a folder."""
    if urlsplit(url).scheme in BUCKETS:
        from odf_common.adapters.s3.bucket import Bucket  # noqa: PLC0415 the SDK takes long to import

        location = S3Location.parse(url)
        return tuple(Bucket(location, s3_access(settings, location)).folders())
    folder = Path(unquote(urlsplit(url).path))
    if not folder.is_dir():
        raise NotFound(what=f"folder {folder}")
    return tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir()))


def _has_head(url: str, settings: Settings) -> bool:
    try:
        remote_dataset(url, settings=settings).head()
    except NotFound:
        return False
    except OdfError:
        return True  # which cannot be read
    return True
