"""What requests name: datasets and staged files."""

from pathlib import Path

from odf_common.adapters.local.staging import Staging
from odf_common.errors import InvalidInput, NotFound
from odf_common.identity.did import PREFIX, DatasetId
from odf_common.ports.store import Catalog, CatalogEntry


def entry_of(catalog: Catalog, ref: str) -> CatalogEntry:
    """Return the dataset with a name or id; raises `NotFound`."""
    is_id = ref.startswith(PREFIX)
    entry = catalog.by_id(DatasetId.parse(ref)) if is_id else catalog.by_alias(ref)
    if entry is None:
        raise NotFound(what=f"dataset {ref}")
    return entry


def staged_file(staging: Staging, name: str) -> Path:
    """Return a file in the staging folder; raises `InvalidInput` for what is no plain name, `NotFound`."""
    if Path(name).name != name or name in {".", ".."}:
        raise InvalidInput(text=f"not the name of a staged file: {name!r}")
    file = staging.path(name)
    if not file.is_file():
        raise NotFound(what=f"staged file {name}")
    return file
