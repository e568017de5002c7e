"""The private keys of datasets made here: `$ODF_HOME/keys/<fed01…>`, for the owner's eyes only."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odf_common.identity.did import DatasetId
from odf_common.identity.keys import PrivateKey

MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class KeyFolder:
    """Keeps keys; whoever holds a dataset's key is its owner, others have copies."""

    folder: Path

    def save(self, key: PrivateKey) -> None:
        """Store a key, durably."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(self._path(key.dataset_id), os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.raw)
            file.flush()
            os.fsync(file.fileno())
        listing = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(listing)
        finally:
            os.close(listing)

    def has(self, dataset: DatasetId) -> bool:
        """Tell whether the dataset was made here."""
        return self._path(dataset).exists()

    def remove(self, dataset: DatasetId) -> None:
        """Forget a key; nothing happens when there is none."""
        self._path(dataset).unlink(missing_ok=True)

    def _path(self, dataset: DatasetId) -> Path:
        return self.folder / dataset.folder
