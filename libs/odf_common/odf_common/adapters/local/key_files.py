"""Private keys in files readable only by their owner: `$ODF_HOME/keys/<fed01…>` for datasets, `…/node` for the node."""

import contextlib
from pathlib import Path
from typing import Final

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import open_file, translating_os_errors
from odf_common.errors import InvalidInput, NotFound, Refused
from odf_common.identity import keys
from odf_common.identity.dataset_refs import KEY_BYTES, DatasetId
from odf_common.identity.keys import PrivateKey
from odf_common.ports.store import Catalog

IMPORTED: Final = ".imported"  # next to the key of a dataset that was created on another node
NODE: Final = "node"  # never a dataset's name: those begin with fed01


class NoPrivateKey(NotFound):
    """This node does not have the private key of the dataset, which was created on another node."""

    ADVICE = (
        "run this on the node that created the dataset, or set ODF_HOME to its home; a copy has no key "
        "until `odf key import`"
    )


class NotOwned(Refused):
    """The dataset is a copy of another node's dataset."""

    ADVICE = (
        "update the copy with `odf pull URL`; or, to continue the dataset here, import its key: `odf "
        "key import DATASET FILE`"
    )


@translating_os_errors
def dataset_key(folder: Path, dataset: DatasetId) -> PrivateKey:
    """Return the private key of a dataset.

    Raises `NoPrivateKey` if this node does not have the key, `InvalidInput` if its file contains something else.
    """
    try:
        key = _read(folder / dataset.folder)
    except FileNotFoundError as error:
        raise NoPrivateKey(what=f"the private key of {dataset}") from error
    if key.dataset_id != dataset:
        raise InvalidInput(text="the file holds another dataset's key", where=str(folder / dataset.folder))
    return key


@translating_os_errors
def has_dataset_key(folder: Path, dataset: DatasetId) -> bool:
    """Return whether this node has the private key of a dataset; without the key, the dataset is a copy."""
    return durable.exists(folder / dataset.folder)


def require_owned(folder: Path, catalog: Catalog, dataset: DatasetId) -> None:
    """Raise `NotOwned`, with the dataset's name in `catalog`, unless this node has its private key."""
    if not has_dataset_key(folder, dataset):
        entry = catalog.by_id(dataset)
        name = str(dataset) if entry is None else entry.alias
        text = f"{name} is a copy; only the node that has the dataset's private key can commit to it"
        raise NotOwned(text=text)


@translating_os_errors
def keep_dataset_key(folder: Path, key: PrivateKey) -> None:
    """Store the private key of a dataset durably and atomically, unless one exists."""
    _keep(folder / key.dataset_id.folder, key)


@translating_os_errors
def mark_imported(folder: Path, dataset: DatasetId) -> None:
    """Record durably that a dataset was created on another node."""
    durable.make_folder(folder, mode=durable.PRIVATE_FOLDER)
    durable.write(folder / f"{dataset.folder}{IMPORTED}", b"")


@translating_os_errors
def is_imported(folder: Path, dataset: DatasetId) -> bool:
    """Return whether a dataset was created on another node and its key was imported to this node."""
    return durable.exists(folder / f"{dataset.folder}{IMPORTED}")


@translating_os_errors
def node_key(folder: Path) -> PrivateKey:
    """Return the node's private key; the first call creates it, and concurrent callers get the same one."""
    file = folder / NODE
    with contextlib.suppress(FileNotFoundError):
        return _read(file)
    _keep(file, keys.generate())
    return _read(file)


def _keep(file: Path, key: PrivateKey) -> None:
    """Store a key unless one exists; the first of several concurrent callers wins."""
    durable.make_folder(file.parent, mode=durable.PRIVATE_FOLDER)
    durable.create(file, key.raw, mode=durable.PRIVATE)


def _read(file: Path) -> PrivateKey:
    with open_file(file) as opened:
        raw = opened.read(KEY_BYTES + 1)
    if len(raw) != KEY_BYTES:
        raise InvalidInput(
            text=f"expected a key of {KEY_BYTES} bytes; restore the file from a copy", where=str(file)
        )
    return PrivateKey.from_bytes(raw)
