"""Finds datasets of this node and of named repositories whose summaries contain all words of a query."""

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Final

import structlog

from odf_common.adapters.local.repositories import LocalRepositories
from odf_common.errors import OdfError
from odf_common.identity.dataset_refs import Name
from odf_common.service.settings import Settings
from odf_sync.access.sent_tokens import TokenFor, no_token
from odf_sync.search.listing import list_datasets
from odf_sync.search.own_datasets import OwnDatasets
from odf_sync.search.summary import DatasetSummary

SEARCH_SECONDS: Final = 10.0
FIELDS: Final = ("name", "keywords", "columns", "description")  # the best places for a word first

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Words, and the repositories to search."""

    text: str
    repositories: tuple[str, ...] = ()
    """Empty: all, and this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A dataset with all the words."""

    repository: str
    """Empty: this node."""
    dataset: DatasetSummary
    found_in: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name that `odf pull` takes, or the name on this node."""
        return f"{self.repository}/{self.dataset.name}" if self.repository else self.dataset.name


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedRepository:
    """A repository that was searched."""

    name: str
    datasets: tuple[DatasetSummary, ...] = ()
    problem: str = ""
    """The reason for which its datasets could not be listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Searches of one node."""

    own: OwnDatasets
    settings: Settings
    token_for: TokenFor = no_token
    seconds: float = SEARCH_SECONDS
    """The time that repositories have to answer, all at once."""

    def find(self, query: Query) -> tuple[tuple[SearchHit, ...], tuple[SearchedRepository, ...]]:
        """Return the hits, best first, and the repositories that were searched; raises `UnknownRepository`."""
        repositories = LocalRepositories(self.settings.home)
        names = [Name(repository) for repository in query.repositories] or repositories.names()
        for name in names if query.repositories else ():
            repositories.find(name)

        answers = [self._list(repositories, name) for name in names]
        words = query.text.lower().split()
        hits: list[SearchHit] = []
        if not query.repositories:
            hits += matching("", self.own.summaries(self.own.datasets.catalog.entries()), words)
        answered, _ = wait(answers, self.seconds)
        late = f"no answer in {self.seconds:g} s"
        searched = tuple(
            answer.result() if answer in answered else SearchedRepository(name=str(name), problem=late)
            for name, answer in zip(names, answers, strict=True)
        )
        for repository in searched:
            hits += matching(repository.name, repository.datasets, words)
        return tuple(sorted(hits, key=_rank)), searched

    def _list(self, repositories: LocalRepositories, name: Name) -> Future[SearchedRepository]:
        """Return the datasets of a repository, once it has been read."""
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
