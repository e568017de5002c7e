"""Private keys in files for the owner's eyes only: `$ODF_HOME/keys/<fed01…>` of datasets, `…/node` of the node."""

import contextlib
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import guarded, open_file
from odf_common.errors import InvalidInput, NotFound
from odf_common.identity import keys
from odf_common.identity.did import KEY_SIZE, DatasetId
from odf_common.identity.keys import PrivateKey

MODE: Final = 0o600
NODE: Final = "node"  # no dataset's: those begin with fed01


@dataclass(eq=False, kw_only=True)
class NoPrivateKey(NotFound):
    """There is no private key of the dataset here: it was made on another node."""

    def advice(self) -> str:
        """Say where it can be done."""
        return (
            "ask on the node that made the dataset, or set ODF_HOME to its folder; a copy has no key until one is "
            "brought with `odf key import`"
        )


@guarded
def dataset_key(folder: Path, dataset: DatasetId) -> PrivateKey:
    """Return the key of a dataset made here; raises `NoPrivateKey`, or `InvalidInput` when the file is not that key."""
    try:
        key = _read(folder / dataset.folder)
    except FileNotFoundError as error:
        raise NoPrivateKey(what=f"the private key of {dataset}") from error
    if key.dataset_id != dataset:
        raise InvalidInput(text="the file holds another dataset's key", where=str(folder / dataset.folder))
    return key


@guarded
def has_dataset_key(folder: Path, dataset: DatasetId) -> bool:
    """Tell whether the dataset was made here, or its key was brought here; others are copies."""
    return durable.exists(folder / dataset.folder)


@guarded
def keep_dataset_key(folder: Path, key: PrivateKey) -> None:
    """Store a dataset's key, durably and whole; one that is there already stays."""
    _keep(folder / key.dataset_id.folder, key)


@guarded
def node_key(folder: Path) -> PrivateKey:
    """Return the node's key, made when there is none yet; of several who make it at once, all return the same."""
    file = folder / NODE
    with contextlib.suppress(FileNotFoundError):
        return _read(file)
    _keep(file, keys.generate())
    return _read(file)


def _keep(file: Path, key: PrivateKey) -> None:
    """Store a key where none is; of several who do so at once, the first one's stays."""
    folder = file.parent
    durable.make_folder(folder.parent)
    folder.mkdir(exist_ok=True, mode=0o700)
    pending = folder / f"{durable.PENDING}{uuid.uuid4().hex}"
    descriptor = os.open(pending, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(key.raw)
            opened.flush()
            os.fsync(opened.fileno())
        # A link is taken by the first and never replaced, and it is never seen half written.
        with contextlib.suppress(FileExistsError):
            os.link(pending, file)
    finally:
        pending.unlink()
    durable.sync_folder(folder)


def _read(file: Path) -> PrivateKey:
    with open_file(file) as opened:
        raw = opened.read(KEY_SIZE + 1)
    if len(raw) != KEY_SIZE:
        raise InvalidInput(
            text=f"expected a key of {KEY_SIZE} bytes; restore the file from a copy", where=str(file)
        )
    return PrivateKey.from_bytes(raw)
