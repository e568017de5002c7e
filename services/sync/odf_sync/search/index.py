"""Indexes of repositories in the node's home: `$ODF_HOME/search/<lower-case name>.json`.

An index is a cache; a lost or damaged one is rebuilt from the repository.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import guarded_methods, read_file
from odf_common.adapters.local.repositories import index_file
from odf_common.errors import InvalidInput
from odf_common.hashing.physical import physical_hash_of
from odf_common.identity.dataset_refs import Name
from odf_sync.search.crawl import Listing
from odf_sync.search.summary import DatasetSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """The datasets of a repository when it was last read."""

    listing: Listing
    read_at_ms: int
    """When that was last known to be right, ms since the epoch; 0: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A read of a repository: with another token it lists other datasets, which only that login may see."""

    name: Name
    url: str
    token: str | None = field(default=None, repr=False)

    @property
    def login(self) -> str:
        """Return the hash of the token, which tells logins apart; empty without one."""
        return "" if self.token is None else str(physical_hash_of(self.token.encode()))


NOTHING: Final = Index(listing=Listing(), read_at_ms=0)


@guarded_methods
class Indexes:
    """Indexes by the names of their repositories; several processes may use them at once."""

    def __init__(self, home: Path) -> None:
        """Use `home`, which need not exist yet."""
        self._home = home

    def find(self, read: Read) -> Index:
        """Return the index of a repository; empty if there is none for that URL and login, or if it is damaged."""
        try:
            plain = json.loads(read_file(self._file(read.name)))
            if (plain["url"], plain["login"]) != (read.url, read.login):
                return NOTHING
            datasets = tuple(map(DatasetSummary.of_json, plain["datasets"]))
            listing = Listing(datasets=datasets, etag=str(plain["etag"]))
            return Index(listing=listing, read_at_ms=int(plain["readAtMs"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError, InvalidInput):
            return NOTHING

    def keep(self, read: Read, index: Index) -> None:
        """Replace the index of a repository."""
        document = {
            "url": read.url,
            "login": read.login,
            "etag": index.listing.etag,
            "readAtMs": index.read_at_ms,
            "datasets": [dataset.json() for dataset in index.listing.datasets],
        }
        durable.write(self._file(read.name), json.dumps(document).encode())

    def _file(self, name: Name) -> Path:
        return index_file(self._home, name)
