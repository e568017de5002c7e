"""Lists the datasets of a repository: by a request to a node, or by reading the chains in a folder or a bucket.

Repositories are not trusted: the number of datasets, of blocks and of bytes is limited.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import structlog

from odf_common.adapters.local.faults import guarded
from odf_common.adapters.repository_urls import BUCKETS, SMART, SMART_PREFIX, WEB
from odf_common.adapters.s3.location import S3Location
from odf_common.chain.walk import raw_blocks
from odf_common.codec.flatbuffers import decode_block
from odf_common.errors import InvalidInput, NotFound, OdfError
from odf_common.hashing.multihash import Multihash
from odf_common.identity.dataset_refs import parse_alias
from odf_common.metadata.events import Seed, SetDataSchema, SetInfo
from odf_common.service.connections import s3_access
from odf_common.service.settings import Settings
from odf_sync.access.sent_tokens import TokenFor
from odf_sync.repositories import RemoteDataset, remote_dataset
from odf_sync.repositories.http_dataset import HttpDataset
from odf_sync.search.summary import (
    AFTER,
    KINDS,
    LIST_LIMIT,
    PATH,
    DatasetSummary,
    column_names,
    description_of,
    keywords_of,
    parse_page,
)

DATASETS_LIMIT: Final = 10_000  # of one repository
BLOCKS_LIMIT: Final = 10_000  # of one chain in a folder or a bucket, from its head back
PARALLEL_READERS: Final = 8  # chains at a time

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The datasets of a repository."""

    datasets: tuple[DatasetSummary, ...] = ()
    etag: str = ""
    """What a node calls this version of its list; empty for others."""


def read_listing(url: str, previous: Listing, token_for: TokenFor, settings: Settings) -> Listing:
    """Return the datasets of the repository at a URL; `known` saves reading what has not changed.

    Raises `NotFound` if a server does not list datasets, `InvalidInput` and `Unavailable`.
    """
    scheme = urlsplit(url).scheme
    if scheme in (*WEB, *SMART):
        return _from_node(url.removeprefix(SMART_PREFIX), previous, token_for)
    earlier = {dataset.name: dataset for dataset in previous.datasets}
    names = _names(url, settings)

    def read(name: str) -> DatasetSummary | None:
        return _from_chain(url + quote(name), name, earlier.get(name), settings)

    with ThreadPoolExecutor(PARALLEL_READERS, thread_name_prefix="search") as pool:
        summaries = [
            summary for summary in pool.map(read, islice(names, DATASETS_LIMIT)) if summary is not None
        ]
    return Listing(datasets=tuple(summaries))


def _from_node(base: str, previous: Listing, token_for: TokenFor) -> Listing:
    server = HttpDataset(base, token_for(base))
    try:
        first = server.document(PATH, LIST_LIMIT, previous.etag)
    except NotFound as error:
        raise NotFound(what=f"a list of datasets at {base}{PATH}") from error
    if first is None:
        return previous
    page = parse_page(first.content, base + PATH)
    summaries, left = list(page.datasets), LIST_LIMIT - len(first.content)
    while page.next and len(summaries) < DATASETS_LIMIT:
        last, path = page.next, f"{PATH}?{AFTER}={quote(page.next, safe='')}"
        following = server.document(path, left)
        assert following is not None, "only a conditional request is answered 304"
        page = parse_page(following.content, base + path)
        if not page.datasets or (page.next and page.next.lower() <= last.lower()):
            raise InvalidInput(text="its pages do not continue each other", where=base + path)
        summaries += page.datasets
        left -= len(following.content)
    return Listing(datasets=tuple(summaries[:DATASETS_LIMIT]), etag=first.etag)


def _names(url: str, settings: Settings) -> Iterator[str]:
    """Yield what may be a dataset's name: folders, and folders in folders without a head."""
    for name in _valid(_folders(url, settings)):
        if _has_head(url + quote(name), settings):
            yield name
        else:
            yield from _valid(f"{name}/{inner}" for inner in _folders(f"{url}{quote(name)}/", settings))


def _valid(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        try:
            parse_alias(name)
        except InvalidInput:
            continue
        yield name


@guarded
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


def _from_chain(
    url: str, name: str, previous: DatasetSummary | None, settings: Settings
) -> DatasetSummary | None:
    """Return the summary of a dataset; None if it is not a dataset, or cannot be read."""
    try:
        there = remote_dataset(url, settings=settings)
        head = there.head()
        if previous is not None and previous.head == str(head):
            return previous
        return summary_of_chain(there, name, head, previous)
    except OdfError as error:
        log.debug("a dataset is not indexed", url=url, why=str(error))
        return None


def summary_of_chain(
    there: RemoteDataset, name: str, head: Multihash, previous: DatasetSummary | None
) -> DatasetSummary:
    """Return the summary of a chain, read from its head back to the head of the earlier summary if that is in it."""
    info: SetInfo | None = None
    schema: SetDataSchema | None = None
    base = DatasetSummary(name=name)
    for number, (block, raw, _) in enumerate(raw_blocks(there.block, head)):
        if previous is not None and str(block) == previous.head:
            base = replace(previous, head=str(head))
            break
        if number == BLOCKS_LIMIT:
            break
        event = decode_block(raw).block.event
        if isinstance(event, SetInfo):
            info = info or event
        elif isinstance(event, SetDataSchema):
            schema = schema or event
        elif isinstance(event, Seed):
            kind = KINDS[event.dataset_kind]
            base = replace(base, id=str(event.dataset_id), kind=kind, head=str(head))
    if info is not None:
        base = replace(base, description=description_of(info), keywords=keywords_of(info))
    return base if schema is None else replace(base, columns=column_names(schema))
