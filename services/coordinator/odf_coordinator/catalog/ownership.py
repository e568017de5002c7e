"""The private keys of datasets kept here: `$ODF_HOME/keys/<fed01…>`, for the owner's eyes only; and who may commit."""

from dataclasses import dataclass
from pathlib import Path

from odf_common.adapters.local.faults import guarded
from odf_common.adapters.local.keys import has_dataset_key, keep_dataset_key
from odf_common.errors import Refused
from odf_common.identity.did import DatasetId
from odf_common.identity.keys import PrivateKey
from odf_common.ports.store import Catalog


@dataclass(eq=False, kw_only=True)
class NotOwned(Refused):
    """The dataset is a copy."""

    reason: str = "NotOwned"

    def advice(self) -> str:
        """Return what can be done with a copy, and how it ceases to be one."""
        return (
            "pull what is new from where it is kept, `odf pull URL`; or, to go on with it here, bring its key: "
            "`odf key import DATASET FILE`"
        )


@dataclass(frozen=True, slots=True)
class KeyFolder:
    """Keeps keys; whoever holds a dataset's key is its owner, others have copies."""

    folder: Path

    def save(self, key: PrivateKey) -> None:
        """Store a key, durably."""
        keep_dataset_key(self.folder, key)

    def has(self, dataset: DatasetId) -> bool:
        """Tell whether the dataset was made here, or its key was brought here."""
        return has_dataset_key(self.folder, dataset)

    @guarded
    def remove(self, dataset: DatasetId) -> None:
        """Forget a key; nothing happens when there is none."""
        self._path(dataset).unlink(missing_ok=True)

    def _path(self, dataset: DatasetId) -> Path:
        return self.folder / dataset.folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Tells which datasets are ours to commit to."""

    keys: KeyFolder
    catalog: Catalog

    def require(self, dataset: DatasetId) -> None:
        """Return if we hold the dataset's key; raises `NotOwned` for a copy."""
        if not self.keys.has(dataset):
            entry = self.catalog.by_id(dataset)
            name = str(dataset) if entry is None else entry.alias
            text = f"{name} is a copy of a dataset that is kept elsewhere; only that node commits to it"
            raise NotOwned(text=text)
