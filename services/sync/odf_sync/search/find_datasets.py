"""Finds datasets of this node and of named repositories whose summaries contain all words of a query.

A repository that does not answer in time is read on in the background: a later search finds what that read.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import structlog

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.errors import OdfError
from odf_common.identity.dataset_refs import Name
from odf_common.ports.clock import Clock
from odf_common.service.settings import Settings
from odf_sync.access.sent_tokens import TokenFor, no_token
from odf_sync.search.crawl import read_listing
from odf_sync.search.index import NOTHING, Index, Indexes, Read
from odf_sync.search.own_datasets import OwnDatasets
from odf_sync.search.summary import DatasetSummary

MAX_AGE_MS: Final = 300_000  # of an index that is used without asking
SEARCH_SECONDS: Final = 10.0  # that a search waits for repositories, which are all read at the same time
FIELDS: Final = ("name", "keywords", "columns", "description")  # the best places for a word first

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is searched for, and where."""

    text: str
    repositories: tuple[str, ...] = ()
    """None: all, and this node."""
    refresh: bool = False
    """Rebuild the indexes of repositories now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A dataset with all the words."""

    repository: str
    """Empty: this node."""
    dataset: DatasetSummary
    found_in: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name by which it is pulled, or called here."""
        return f"{self.repository}/{self.dataset.name}" if self.repository else self.dataset.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedRepository:
    """A repository that was searched."""

    name: str
    index: Index
    problem: str = ""
    """Why it could not be read now; what its index had was searched."""


class Reads:
    """Reads of repositories that are in progress; thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running: dict[Read, Future[SearchedRepository]] = {}

    def begin(self, read: Read, perform: Callable[[], SearchedRepository]) -> Future[SearchedRepository]:
        """Return this read if it is in progress, else begin it."""
        with self._guard:
            running = self._running.get(read)
            if running is not None:
                return running
            begun = self._running[read] = Future[SearchedRepository]()
        # A daemon: the service does not wait for a silent repository when it stops.
        threading.Thread(
            target=self._complete, args=(read, perform, begun), name=f"search {read.name}", daemon=True
        ).start()
        return begun

    def _complete(
        self, read: Read, perform: Callable[[], SearchedRepository], future: Future[SearchedRepository]
    ) -> None:
        try:
            result = perform()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            future.set_exception(error)
        else:
            future.set_result(result)
        finally:
            with self._guard:
                del self._running[read]


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Searches of one node; what one reads, the next finds."""

    own: OwnDatasets
    settings: Settings
    clock: Clock
    token_for: TokenFor = no_token
    reads: Reads = field(default_factory=Reads)

    def find(self, query: Query) -> tuple[tuple[SearchHit, ...], tuple[SearchedRepository, ...]]:
        """Return what was found, best first, and the repositories that were searched; raises `UnknownRepository`.

        The earlier index of a repository that does not answer within `SEARCH_SECONDS` is searched.
        """
        repositories = LocalRepositories(self.settings.home)
        names = [Name(repository) for repository in query.repositories] or repositories.names()
        for name in names if query.repositories else ():
            repositories.find(name)

        answers = [self._asked(repositories, name, refresh=query.refresh) for name in names]
        words = query.text.lower().split()
        hits: list[SearchHit] = []
        if not query.repositories:
            hits += matching("", self.own.summaries(self.own.datasets.catalog.entries()), words)
        answered, _ = wait(answers, SEARCH_SECONDS)
        searched = tuple(
            answer.result() if answer in answered else self._unanswered(repositories, name)
            for name, answer in zip(names, answers, strict=True)
        )
        for repository in searched:
            hits += matching(repository.name, repository.index.listing.datasets, words)
        return tuple(sorted(hits, key=_rank)), searched

    @property
    def _indexes(self) -> Indexes:
        return Indexes(self.settings.home)

    def _asked(
        self, repositories: LocalRepositories, name: Name, *, refresh: bool
    ) -> Future[SearchedRepository]:
        """Return the index of a repository, known at once if it is not old, else when the repository has been read."""
        answer = Future[SearchedRepository]()
        try:
            read = self._read_of(repositories, name)
            index = self._indexes.find(read)
        except OdfError as error:
            answer.set_result(SearchedRepository(name=str(name), index=NOTHING, problem=str(error)))
            return answer
        if refresh or not 0 <= self.clock.now().ms - index.read_at_ms < MAX_AGE_MS:
            return self.reads.begin(read, partial(self._read, read, index))
        answer.set_result(SearchedRepository(name=str(name), index=index))
        return answer

    def _read_of(self, repositories: LocalRepositories, name: Name) -> Read:
        """Return how a repository is read now; raises `UnknownRepository`."""
        url = repositories.find(name).url
        return Read(name=name, url=url, token=self.token_for(url))

    def _read(self, read: Read, index: Index) -> SearchedRepository:
        """Return the index of a repository as it is now; the older one if it cannot be read."""
        try:
            now = self.clock.now().ms
            # The token of the read, also if the login has changed since: the index is kept as that login's.
            listing = read_listing(read.url, index.listing, lambda _: read.token, self.settings)
            index = Index(listing=listing, read_at_ms=now)
            self._indexes.keep(read, index)
        except OdfError as error:
            log.info("a repository is not indexed", repository=str(read.name), why=str(error))
            return SearchedRepository(name=str(read.name), index=index, problem=str(error))
        return SearchedRepository(name=str(read.name), index=index)

    def _unanswered(self, repositories: LocalRepositories, name: Name) -> SearchedRepository:
        """Return the earlier index of a repository that is still being read."""
        problem = f"no answer in {SEARCH_SECONDS:g} s; reading it continues in the background"
        try:
            index = self._indexes.find(self._read_of(repositories, name))
        except OdfError as error:
            return SearchedRepository(name=str(name), index=NOTHING, problem=str(error))
        return SearchedRepository(name=str(name), index=index, problem=problem)


def matching(
    repository: str, datasets: Iterable[DatasetSummary], words: Sequence[str]
) -> Iterator[SearchHit]:
    """Yield the datasets that have each word in one of the fields, in any case."""
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
