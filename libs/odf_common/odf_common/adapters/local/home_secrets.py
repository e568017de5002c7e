"""Secrets that the parts of one node share, in files that only the node's user may read: `$ODF_HOME/secrets/<name>`.

They are what distinguishes the node's user from other users of the machine, who reach the same loopback addresses.
"""

import contextlib
import os
import secrets
from pathlib import Path
from typing import Final

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import guarded
from odf_common.adapters.secrets import read_secret

FOLDER: Final = "secrets"
PRIVATE_FOLDER: Final = 0o700
SECRET_BYTES: Final = 32


def secret_file(home: Path, name: str) -> Path:
    """Return where a secret of the node is, whether it exists or not."""
    return home / FOLDER / name


@guarded
def ensure_secret(home: Path, name: str) -> str:
    """Return a secret of the node, as URL-safe text; it is created at the first call, durably and once.

    Processes that call this at the same time get the same text. Raises `InvalidInput` for a file that is no secret.
    """
    file = secret_file(home, name)
    if not durable.exists(file):
        durable.make_folder(file.parent, mode=PRIVATE_FOLDER)
        text = secrets.token_urlsafe(SECRET_BYTES)
        pending = durable.write_pending(file, f"{text}\n".encode(), mode=durable.PRIVATE)
        try:
            with contextlib.suppress(FileExistsError):  # another process was first
                os.link(pending, file)  # unlike a rename, it replaces nothing
        finally:
            pending.unlink()
        durable.sync_folder(file.parent)
    return read_secret(file)
