"""What keeps a node's home for its user: modes, and secrets that its parts share, in `$ODF_HOME/secrets/<name>`.

The secrets distinguish the node's user from other users of the machine, who reach the same loopback addresses.
"""

import contextlib
import os
import pwd
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import guarded
from odf_common.adapters.secrets import read_secret
from odf_common.errors import Refused

FOLDER: Final = "secrets"
SECRET_BYTES: Final = 32


@dataclass(eq=False, kw_only=True)
class HomeOfAnotherUser(Refused):
    """The files of a node's home are for its user only."""

    text: str = ""
    home: Path
    user: str

    @classmethod
    def at(cls, home: Path) -> Self:
        """Return the error for a home, with the name of its user if that can be found out."""
        user = "another user"
        with contextlib.suppress(OSError):
            owner = home.stat().st_uid
            user = f"user {owner}"
            with contextlib.suppress(KeyError):
                user = f"user {pwd.getpwuid(owner).pw_name}"
        return cls(home=home, user=user)

    def __str__(self) -> str:
        """Return which home, and whose it is."""
        return f"the home {self.home} belongs to {self.user}, and so does its node"

    def advice(self) -> str:
        """Return how to use the node, or another one."""
        return "run the command as that user, or set ODF_HOME to a home of your own"


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
        durable.make_folder(file.parent, mode=durable.PRIVATE_FOLDER)
        text = secrets.token_urlsafe(SECRET_BYTES)
        pending = durable.write_pending(file, f"{text}\n".encode(), mode=durable.PRIVATE)
        try:
            with contextlib.suppress(FileExistsError):  # another process was first
                os.link(pending, file)  # unlike a rename, it replaces nothing
        finally:
            pending.unlink()
        durable.sync_folder(file.parent)
    return read_secret(file)


def find_secret(home: Path, name: str) -> str | None:
    """Return a secret of the node, None if it was never created; raises `HomeOfAnotherUser` if it cannot be read."""
    file = secret_file(home, name)
    try:
        file.open("rb").close()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise HomeOfAnotherUser.at(home) from error
    return read_secret(file)


def keep_private(home: Path) -> None:
    """Create files for this process's user only, if the home is this user's.

    What root creates in another user's home, the node has to read.
    """
    with contextlib.suppress(OSError):
        if home.stat().st_uid == os.geteuid():
            durable.keep_files_private()


def close_home(home: Path) -> None:
    """Take all rights of other users from the entries of a home, which an earlier release created by the umask.

    What is below them cannot be reached then. The home itself keeps its mode: its owner may have chosen it.
    """
    with contextlib.suppress(OSError):  # a file that is gone; one of another user; a read-only mount
        for entry in os.scandir(home):
            mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
            if mode & durable.PRIVATE_UMASK and not entry.is_symlink():
                with contextlib.suppress(OSError):
                    Path(entry.path).chmod(mode & ~durable.PRIVATE_UMASK)
