"""Paths under `$ODF_HOME` (wire-facts §6.1)."""

from pathlib import Path

from odf_common.hashing.multihash import Multihash
from odf_common.identity.did import DatasetId
from odf_common.ports.store import ObjectKind


def dataset_folder(home: Path, dataset: DatasetId) -> Path:
    """Return the dataset's folder, which is also what other nodes pull."""
    return home / "datasets" / dataset.folder


def object_file(home: Path, dataset: DatasetId, kind: ObjectKind, name: Multihash) -> Path:
    """Return the file of one object."""
    # Joined at once, as it is done for each block of a chain.
    return home.joinpath("datasets", dataset.folder, kind.value, str(name))


def ref_file(home: Path, dataset: DatasetId, ref: str) -> Path:
    """Return the file of a reference."""
    return dataset_folder(home, dataset) / "refs" / ref


def note_file(home: Path, dataset: DatasetId, name: str) -> Path:
    """Return the file of a note of this node."""
    return dataset_folder(home, dataset) / "notes" / name


def index_folder(home: Path, dataset: DatasetId) -> Path:
    """Return the folder of what this node has indexed of a dataset."""
    return dataset_folder(home, dataset) / "index"


def lock_file(home: Path, dataset: DatasetId) -> Path:
    """Return the dataset's lock file; it is outside the dataset's folder, which is renamed while it is held."""
    return home / "locks" / dataset.folder
