"""Looks up the datasets, sources and staged files that requests name, and checks keys."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odf_common.adapters.local.process_files import Staging
from odf_common.chain.state import ChainState
from odf_common.errors import InvalidInput, NotFound
from odf_common.identity.dataset_refs import DatasetId
from odf_common.metadata.events import AddPushSource
from odf_common.ports.store import Catalog, CatalogEntry, require_entry
from odf_ingest.commit.file_commit import chosen_source

MAX_KEY_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class PushTargets:
    """The datasets that records may be pushed to."""

    catalog: Catalog
    require_owned: Callable[[DatasetId], None]
    """Raises `NotOwned` for a copy, to which no commit is possible."""

    def find(self, ref: str) -> CatalogEntry:
        """Return a dataset of this node, by its name or id; raises `NotFound`, and `NotOwned` for a copy."""
        entry = require_entry(self.catalog, ref)
        self.require_owned(entry.dataset_id)
        return entry


def staged_file(staging: Staging, name: str) -> Path:
    """Return a file in the staging folder; raises `InvalidInput` unless it is a plain name, `NotFound`."""
    if Path(name).name != name or name in {".", ".."}:
        raise InvalidInput(text=f"not the name of a staged file: {name!r}")
    file = staging.path(name)
    if not file.is_file():
        raise NotFound(what=f"staged file {name}")
    return file


def source_named(state: ChainState, name: str) -> AddPushSource:
    """Return the push source with this name, or the only one; raises `InvalidInput` if the request is wrong."""
    try:
        return chosen_source(state, name)
    except NotFound as error:
        raise InvalidInput(text=str(error)) from error


def require_key(what: str, key: str) -> None:
    """Raise `InvalidInput` unless a key that a client chose is short and printable."""
    if not 0 < len(key) <= MAX_KEY_CHARACTERS or not key.isascii() or not key.isprintable():
        raise InvalidInput(where=what, text=f"expected 1 to {MAX_KEY_CHARACTERS} printable ASCII characters")
