"""Secrets in files, such as passwords and tokens, and the protection of a home for its user.

A file holds its secret as its only line. Its end of line is not part of the secret, other white space is. The rule is
the same for settings and for commands. The permissions of a file are not checked: containers mount secrets as readable
by all users of the container. Those that a node has created itself are in `$ODF_HOME/secrets/<name>`, for its user
only: they distinguish the user from others of the machine, who reach the same loopback addresses.
"""

import contextlib
import os
import pwd
import stat
from pathlib import Path
from typing import Final, Self

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import translating_os_errors
from odf_common.errors import InvalidInput, Refused

FOLDER: Final = "secrets"  # of a home
REDIS_SECRET: Final = "redis"  # noqa: S105 - the name of the file there with the password of the embedded Redis
MAX_SECRET_BYTES: Final = 64 * 1024


class HomeOfAnotherUser(Refused):
    """The files of a node's home are for its user only."""

    MESSAGE = "the home {home} belongs to {user}, and so does its node"
    ADVICE = "run the command as that user, or set ODF_HOME to a home of your own"

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


def secret_file(home: Path, name: str) -> Path:
    """Return the path of a secret of the node; the file may not exist."""
    return home / FOLDER / name


def read_secret(file: Path) -> str:
    """Return the secret in a file; raises `InvalidInput` naming the file, and without its content."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise InvalidInput(where=str(file), text=error.strerror or str(error)) from error
    return secret_in(content, str(file))


def secret_in(content: bytes, where: str) -> str:
    """Return the secret in the content of a file; raises `InvalidInput` unless it is one line of text."""
    try:
        secret = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise InvalidInput(where=where, text="not UTF-8") from None  # its error quotes the secret
    if not secret or len(content) > MAX_SECRET_BYTES or not secret.isprintable():
        raise InvalidInput(where=where, text="expected one line of text, which is the secret")
    return secret


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
        durable.create(file, f"{text}\n".encode(), mode=durable.PRIVATE)
    return read_secret(file)


def keep_private(home: Path) -> None:
    """Make new files of this process readable only by its user, if this user owns the home.

    Root may work in the home of another user, whose node has to be able to read what root creates.
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
