"""Searches this node and named repositories for datasets whose summaries contain all words of a query.

A node lists summaries of its datasets in pages, by `GET /datasets?after=NAME` (ADR 0060). In folders and buckets, the
names of the datasets' folders are listed. Repositories are not trusted: the number of datasets and bytes is limited,
and their summaries are truncated and checked.
"""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote, unquote, urlsplit

import structlog

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.adapters.repository_urls import BUCKETS, SMART, SMART_PREFIX, WEB
from odf_common.adapters.s3.location import S3Location
from odf_common.chain.state import ChainState
from odf_common.data.schema_evolution import schema_of_event
from odf_common.dataset.node_datasets import NodeDatasets
from odf_common.errors import InvalidInput, NotFound, OdfError, Unavailable
from odf_common.identity.dataset_refs import Name, parse_alias
from odf_common.metadata.events import DatasetKind, SetDataSchema
from odf_common.ports.store import CatalogEntry
from odf_common.service.connections import s3_access
from odf_common.service.settings import Settings
from odf_sync.access.remote_login import TokenFor, no_token
from odf_sync.repositories import remote_dataset
from odf_sync.repositories.http_dataset import HttpDataset

PATH: Final = "datasets"
AFTER: Final = "after"
PAGE_DATASETS: Final = 100
PAGE_BYTES: Final = 1024 * 1024  # after which a page ends; one dataset has less than that
LIST_LIMIT: Final = 64 * 1024 * 1024  # bytes of all pages of another node
DESCRIPTION_LENGTH: Final = 1000  # characters
WORD_LENGTH: Final = 100  # characters of a keyword, and of a column's name
KEYWORDS, COLUMNS = 50, 500  # of one dataset
KINDS: Final = {DatasetKind.Root: "root", DatasetKind.Derivative: "derivative"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSummary:
    """A dataset as it is listed: its name, id, kind, description, keywords and columns."""

    name: str
    """The name of the dataset in its repository, `[account/]dataset`."""
    id: str = ""
    """The id of the dataset, empty if unknown."""
    kind: str = ""
    head: str = ""
    """The head of the chain that the summary describes, empty if unknown."""
    description: str = ""
    keywords: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise `InvalidInput` unless the name is a valid dataset name."""
        parse_alias(self.name)

    def json(self) -> dict[str, object]:
        """Return the summary as a JSON object."""
        return asdict(self)

    @classmethod
    def of_json(cls, value: object) -> Self:
        """Return the summary in untrusted JSON, truncated to the limits; raises `InvalidInput`."""
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            raise InvalidInput(text="not a listed dataset")
        return cls(
            name=value["name"],
            id=_text(value.get("id"), WORD_LENGTH),
            kind=_text(value.get("kind"), WORD_LENGTH),
            head=_text(value.get("head"), WORD_LENGTH),
            description=_text(value.get("description"), DESCRIPTION_LENGTH),
            keywords=_words(value.get("keywords"), KEYWORDS),
            columns=_words(value.get("columns"), COLUMNS),
        )


def summary_of(alias: str, state: ChainState) -> DatasetSummary:
    """Return the summary of a dataset of this node."""
    return DatasetSummary(
        name=alias,
        id=str(state.dataset_id),
        kind=KINDS[state.kind],
        head=str(state.head),
        description=_text(state.info and state.info.description, DESCRIPTION_LENGTH),
        keywords=_words(list((state.info and state.info.keywords) or ()), KEYWORDS),
        columns=_column_names(state.schema),
    )


def _column_names(schema: SetDataSchema | None) -> tuple[str, ...]:
    """Return the names of the columns, or none if the schema cannot be read."""
    if schema is None:
        return ()
    try:
        return _words(schema_of_event(schema).names, COLUMNS)
    except InvalidInput:
        return ()


def _text(value: object, length: int) -> str:
    """Return a string cut to `length` characters, with control characters replaced.

    Empty for values that are not strings.
    """
    text = value[:length] if isinstance(value, str) else ""
    return "".join(character if character.isprintable() else " " for character in text)


def _words(value: object, most: int) -> tuple[str, ...]:
    words: Iterable[object] = value[:most] if isinstance(value, list) else ()
    return tuple(_text(word, WORD_LENGTH) for word in words if isinstance(word, str))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a list of datasets, ordered by lower-case name."""

    datasets: tuple[DatasetSummary, ...]
    next: str = ""
    """The name after which the next page begins, empty for the last page."""

    def to_bytes(self) -> bytes:
        """Return the page as a JSON document."""
        document = {"datasets": [dataset.json() for dataset in self.datasets], "next": self.next or None}
        return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def parse_page(raw: bytes, where: str) -> Page:
    """Return the page in a JSON document from another node; raises `InvalidInput`."""
    try:
        plain = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(text="not JSON", where=where) from error
    match plain:
        case {"datasets": list(datasets), **rest}:
            after = rest.get("next")
            summaries = tuple(map(DatasetSummary.of_json, datasets))
            return Page(datasets=summaries, next=after if isinstance(after, str) else "")
        case _:
            raise InvalidInput(text="not a list of datasets", where=where)


log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnDatasets:
    """Lists the datasets of this node."""

    datasets: NodeDatasets
    in_bucket: bool
    """Whether the datasets are stored in a bucket, which may become unreachable."""

    def summaries(self, entries: Iterable[CatalogEntry]) -> Iterator[DatasetSummary]:
        """Yield the summaries of datasets; those whose chain does not exist yet or cannot be read are skipped.

        Raises `Unavailable` if the node's bucket cannot be reached, because an empty list would be misleading.
        """
        for entry in entries:
            try:
                state = self.datasets.states.current(entry.dataset_id)
            except OdfError as error:
                self._require_reachable(error)
                log.debug(
                    "a dataset is not listed",
                    dataset=entry.alias,
                    dataset_id=str(entry.dataset_id),
                    why=str(error),
                )
                continue
            if state is not None:
                yield summary_of(entry.alias, state)

    def page(self, entries: Iterable[CatalogEntry], after: str) -> Page:
        """Return the page of datasets whose names follow `after`; the entries must be sorted by lower-case name."""
        datasets: list[DatasetSummary] = []
        size = 0
        for summary in self.summaries(entry for entry in entries if entry.alias.lower() > after.lower()):
            if len(datasets) == PAGE_DATASETS or size > PAGE_BYTES:
                return Page(datasets=tuple(datasets), next=datasets[-1].name)
            datasets.append(summary)
            size += len(Page(datasets=(summary,)).to_bytes())
        return Page(datasets=tuple(datasets))

    def _require_reachable(self, error: OdfError) -> None:
        """Raise the error again if the node's bucket is unreachable, which concerns all datasets, not only one."""
        if isinstance(error, Unavailable) and self.in_bucket:
            raise error


DATASETS_LIMIT: Final = 10_000  # of one repository
PARALLEL_READERS: Final = 8  # folders at a time


def list_datasets(url: str, token_for: TokenFor, settings: Settings) -> tuple[DatasetSummary, ...]:
    """Return the datasets of the repository at a URL; for folders and buckets, the summaries only have names.

    Raises `NotFound` if a server does not list its datasets, `InvalidInput`, and `Unavailable`.
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
    """Yield the names of the folders that contain a head, `DATASET` or `ACCOUNT/DATASET`, in sorted order."""
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
    """Return the names of the folders below a URL; raises `NotFound` unless the URL is that of a folder."""
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


SEARCH_SECONDS: Final = 10.0
FIELDS: Final = ("name", "keywords", "columns", "description")  # the best places for a word first


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A dataset that contains all words of the query."""

    repository: str
    """The repository of the dataset, empty for this node."""
    dataset: DatasetSummary
    found_in: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name of the dataset on this node, or the name under which `odf pull` finds it."""
        return f"{self.repository}/{self.dataset.name}" if self.repository else self.dataset.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedRepository:
    """The datasets of one searched repository, or the reason why they could not be listed."""

    name: str
    datasets: tuple[DatasetSummary, ...] = ()
    problem: str = ""
    """The reason why the datasets could not be listed, empty if they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Searches the datasets of this node and of its named repositories."""

    own: OwnDatasets
    settings: Settings
    token_for: TokenFor = no_token
    seconds: float = SEARCH_SECONDS
    """The timeout for all repositories together, in seconds."""

    def find(
        self, text: str, searched: Sequence[str] = ()
    ) -> tuple[tuple[SearchHit, ...], tuple[SearchedRepository, ...]]:
        """Return the datasets that contain all words of `text`, best match first, and the searched repositories.

        If `searched` is empty, all named repositories and this node are searched. Raises `UnknownRepository`.
        """
        repositories = LocalRepositories(self.settings.home)
        names = [Name(repository) for repository in searched] or repositories.names()
        for name in names if searched else ():
            repositories.find(name)

        answers = [self._list(repositories, name) for name in names]
        words = text.lower().split()
        hits: list[SearchHit] = []
        if not searched:
            hits += matching("", self.own.summaries(self.own.datasets.catalog.entries()), words)
        answered, _ = wait(answers, self.seconds)
        late = f"no answer in {self.seconds:g} s"
        found = tuple(
            answer.result() if answer in answered else SearchedRepository(name=str(name), problem=late)
            for name, answer in zip(names, answers, strict=True)
        )
        for repository in found:
            hits += matching(repository.name, repository.datasets, words)
        return tuple(sorted(hits, key=_rank)), found

    def _list(self, repositories: LocalRepositories, name: Name) -> Future[SearchedRepository]:
        """Start to list the datasets of a repository in a thread, and return the future result."""
        answer = Future[SearchedRepository]()

        def read() -> None:
            try:
                url = repositories.find(name).url
                datasets = list_datasets(url, self.token_for, self.settings)
                answer.set_result(SearchedRepository(name=str(name), datasets=datasets))
            except OdfError as error:
                log.info("a repository cannot be searched", repository=str(name), why=str(error))
                answer.set_result(SearchedRepository(name=str(name), problem=str(error)))
            except BaseException as error:  # noqa: BLE001 - raised again where the result is read
                answer.set_exception(error)

        # A daemon: the service does not wait for a silent repository when it stops.
        threading.Thread(target=read, name=f"search {name}", daemon=True).start()
        return answer


def matching(
    repository: str, datasets: Iterable[DatasetSummary], words: Sequence[str]
) -> Iterator[SearchHit]:
    """Yield the datasets in which each word occurs in one of the fields, ignoring case."""
    for dataset in datasets:
        texts = {
            "name": dataset.name,
            "keywords": "\n".join(dataset.keywords),
            "columns": "\n".join(dataset.columns),
            "description": dataset.description,
        }
        texts = {field: text.lower() for field, text in texts.items()}
        if all(any(word in text for text in texts.values()) for word in words):
            fields = tuple(field for field in FIELDS if any(word in texts[field] for word in words))
            yield SearchHit(repository=repository, dataset=dataset, found_in=fields)


def _rank(hit: SearchHit) -> tuple[int, str, str]:
    best = min((FIELDS.index(field) for field in hit.found_in), default=0)
    return best, hit.repository.lower(), hit.dataset.name.lower()
