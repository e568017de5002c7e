"""Private datasets stay private when they are copied, also where datasets are public by default."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from odf_common.identity.did import DatasetId
from odf_common.ports.store import CatalogEntry
from odf_sync.access.directory import Directory
from odf_sync.access.rules import Visibility
from odf_sync.repositories import RemoteDataset
from odf_sync.transfer.push_errors import NotPrivateThere


@dataclass(frozen=True, slots=True)
class Privacy:
    """Knows which datasets are private here, and makes new copies private."""

    directory: Directory

    def is_private(self, entry: CatalogEntry) -> bool:
        """Return whether a dataset of this node is private."""
        return self.directory.visibility(entry.incarnation) is Visibility.PRIVATE

    @contextmanager
    def copying(self, there: RemoteDataset, dataset: DatasetId) -> Iterator[str | None]:
        """Yield the creation of a new copy that is to be private, since the dataset may be so there; else None."""
        if not there.is_private():
            yield None
            return
        with self.directory.creating(dataset, Visibility.PRIVATE) as creation:
            yield creation


def require_account(alias: str, url: str) -> None:
    """Raise `NotPrivateThere` unless a dataset's URL has an account, whose datasets every node keeps private."""
    if len(urlsplit(url).path.strip("/").split("/")) < len(("account", "dataset")):
        raise NotPrivateThere(alias=alias, url=url)
