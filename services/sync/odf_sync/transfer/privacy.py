"""Private datasets stay private when they are copied, even where datasets are public by default."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urljoin

from odf_common.errors import InvalidInput
from odf_common.identity.did import DatasetId
from odf_common.ports.store import CatalogEntry
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Visibility
from odf_sync.repositories import RemoteDataset
from odf_sync.repositories.locate import is_multi_tenant

BASES: Final = ("../../", "../")  # of a node, from the URL of a dataset with and without an account


class NotPrivateThere(InvalidInput):
    """A push would create a dataset that everyone can read, although it is to be private."""

    MESSAGE = (
        "{alias} is to be private, but everyone who reaches {url} could read it: that node keeps no "
        "dataset of yours private"
    )
    ADVICE = (
        "log in there with `odf login`; or, if everyone may read it there, repeat the push with "
        "`--visibility public`"
    )

    alias: str
    url: str


@dataclass(frozen=True, slots=True)
class Privacy:
    """Knows which datasets are private here, and makes new copies private."""

    directory: Directory

    def is_private(self, entry: CatalogEntry) -> bool:
        """Return whether a dataset of this node is private."""
        return self.directory.visibility(entry.incarnation) is Visibility.PRIVATE

    @property
    def is_usual(self) -> bool:
        """Return whether new datasets of this node are private."""
        return self.directory.is_multi_tenant

    def follow(self, there: RemoteDataset, entry: CatalogEntry) -> None:
        """Make a copy private if its source may have become so, unless its visibility was chosen here."""
        if there.is_private():
            self.directory.make_private_by_default(entry.incarnation)

    @contextmanager
    def copying(self, there: RemoteDataset, dataset: DatasetId) -> Iterator[str | None]:
        """Yield the creation of a new copy that is to be private: it may be so there, or was here; else None."""
        if not there.is_private() and not self.directory.is_marked(dataset):
            yield None
            return
        with self.directory.creating(dataset, Visibility.PRIVATE) as creation:
            yield creation


def require_accounts(alias: str, url: str, token: str | None) -> None:
    """Raise `NotPrivateThere` unless the node of a dataset's URL has accounts, which keep their datasets private."""
    if not any(is_multi_tenant(urljoin(url, base), lambda _: token) for base in BASES):
        raise NotPrivateThere(alias=alias, url=url)
