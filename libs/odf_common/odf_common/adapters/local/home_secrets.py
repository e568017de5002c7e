"""Protection of a node's home for its user: modes, and secrets that its parts share, in `$ODF_HOME/secrets/<name>`.

The secrets distinguish the node's user from other users of the machine, who reach the same loopback addresses.
"""

import contextlib
import os
import stat
from pathlib import Path
from typing import Final

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import translating_os_errors
from odf_common.adapters.secrets import read_secret, secret_file

__all__ = ["close_home", "ensure_secret", "keep_private", "secret_file"]

SECRET_BYTES: Final = 32
# As in docs/formats/store-layout.md.
OWN_ENTRIES: Final = frozenset(
    {
        *(
            "accepted",
            "access.db",
            "cache",
            "claims",
            "datasets",
            "downloads",
            "kafka",
            "keys",
            "locks",
            "logs",
            "names",
        ),
        *(
            "node-id",
            "node.json",
            "node.lock",
            "ports.json",
            "redis",
            "repositories",
            "reserve",
            "scratch",
            "search",
        ),
        *(
            "secrets",
            "staging",
            "store",
            "tenancy",
            "uploads",
            "verified",
            "views",
            "webhooks",
            "webhooks.db",
        ),
    }
)


@translating_os_errors
def ensure_secret(home: Path, name: str) -> str:
    """Return a secret of the node, as URL-safe text; it is created at the first call, durably and once.

    Processes that call this at the same time get the same text. Raises `InvalidInput` for a file that is no secret.
    """
    file = secret_file(home, name)
    if not durable.exists(file):
        durable.make_folder(file.parent, mode=durable.PRIVATE_FOLDER)
        import secrets  # noqa: PLC0415 - commands create none, and it imports modules for random numbers

        text = secrets.token_urlsafe(SECRET_BYTES)
        pending = durable.write_pending(file, f"{text}\n".encode(), mode=durable.PRIVATE)
        try:
            with contextlib.suppress(FileExistsError):  # another process was first
                os.link(pending, file)  # unlike a rename, it replaces nothing
        finally:
            pending.unlink()
        durable.sync_folder(file.parent)
    return read_secret(file)


def keep_private(home: Path) -> None:
    """Create files for this process's user only, if the home is this user's.

    What root creates in another user's home, the node has to read.
    """
    with contextlib.suppress(OSError):
        if home.stat().st_uid == os.geteuid():
            durable.keep_files_private()


def close_home(home: Path) -> None:
    """Take all rights of other users from the node's entries of a home, which an earlier release created by the umask.

    What is below them cannot be reached then. The home itself keeps its mode, since its owner may have chosen it, and
    so do entries that are not the node's, such as a folder that datasets are pushed to.
    """
    for entry in _entries(home):
        with contextlib.suppress(OSError):  # a file that is gone; one of another user; a read-only mount
            mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
            if entry.name in OWN_ENTRIES and mode & durable.PRIVATE_UMASK and not entry.is_symlink():
                Path(entry.path).chmod(mode & ~durable.PRIVATE_UMASK)


def _entries(home: Path) -> list["os.DirEntry[str]"]:
    try:
        return list(os.scandir(home))
    except OSError:  # not made yet, or another user's
        return []
