"""The private keys of this node's datasets, `$ODF_HOME/keys/<fed01…>`, and who may commit to a dataset."""

from dataclasses import dataclass
from pathlib import Path

from odf_common.adapters.local.faults import translating_os_errors
from odf_common.adapters.local.key_files import IMPORTED, has_dataset_key, keep_dataset_key, require_owned
from odf_common.identity.did import DatasetId
from odf_common.identity.keys import PrivateKey
from odf_common.ports.store import Catalog


@dataclass(frozen=True, slots=True)
class KeyStore:
    """Stores keys; a node that has a dataset's key owns it, others have copies."""

    folder: Path

    def save(self, key: PrivateKey) -> None:
        """Store a key durably."""
        keep_dataset_key(self.folder, key)

    def has(self, dataset: DatasetId) -> bool:
        """Return whether this node has the dataset's key."""
        return has_dataset_key(self.folder, dataset)

    @translating_os_errors
    def remove(self, dataset: DatasetId) -> None:
        """Delete a key, if it exists."""
        self._path(dataset).unlink(missing_ok=True)
        self._path(dataset).with_name(f"{dataset.folder}{IMPORTED}").unlink(missing_ok=True)

    def _path(self, dataset: DatasetId) -> Path:
        return self.folder / dataset.folder


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipCheck:
    """Checks which datasets this node may commit to."""

    keys: KeyStore
    catalog: Catalog

    def require(self, dataset: DatasetId) -> None:
        """Raise `NotOwned` unless this node has the dataset's key."""
        require_owned(self.keys.folder, self.catalog, dataset)
