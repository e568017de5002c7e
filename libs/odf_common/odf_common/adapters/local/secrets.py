"""Secrets in files, such as passwords and tokens, and protection of a home from other users.

A file contains its secret as a single line. The line break at the end is not part of the secret; other white space is.
This applies to the files of settings and of commands. Permissions of these files are not checked, because containers
mount secrets so that all users of the container can read them. Secrets that the node creates itself are in
`$ODF_HOME/secrets/<name>`, readable only by its user: they distinguish this user from others on the machine, who can
reach the same loopback addresses.
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
    """The home of the node belongs to another user, and only that user may read its files."""

    MESSAGE = "the home {home} belongs to {user}, and so does its node"
    ADVICE = "run the command as that user, or set ODF_HOME to a home of your own"

    text: str = ""
    home: Path
    user: str

    @classmethod
    def at(cls, home: Path) -> Self:
        """Return the error for a home, with the name of its owner if that is known."""
        user = "another user"
        with contextlib.suppress(OSError):
            owner = home.stat().st_uid
            user = f"user {owner}"
            with contextlib.suppress(KeyError):
                user = f"user {pwd.getpwuid(owner).pw_name}"
        return cls(home=home, user=user)


def secret_file(home: Path, name: str) -> Path:
    """Return the path of one of the node's secrets; the file need not exist."""
    return home / FOLDER / name


def read_secret(file: Path) -> str:
    """Return the secret in a file; raises `InvalidInput` with the name of the file, but never with its content."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_SECRET_BYTES + 1)
    except OSError as error:
        raise InvalidInput(where=str(file), text=error.strerror or str(error)) from error
    return secret_in(content, str(file))


def secret_in(content: bytes, where: str) -> str:
    """Return the secret in the content of a file; raises `InvalidInput` unless that is a single line of text."""
    try:
        secret = content.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise InvalidInput(where=where, text="not UTF-8") from None  # its error quotes the secret
    if not secret or len(content) > MAX_SECRET_BYTES or not secret.isprintable():
        raise InvalidInput(where=where, text="expected one line of text, which is the secret")
    return secret


def find_secret(home: Path, name: str) -> str | None:
    """Return a secret of the node, None if it was never created; raises `HomeOfAnotherUser` if it is unreadable."""
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
    """Return one of the node's secrets, as URL-safe text; the first call creates it durably.

    Concurrent callers get the same secret. Raises `InvalidInput` if the file does not contain a secret.
    """
    file = secret_file(home, name)
    if not durable.exists(file):
        durable.make_folder(file.parent, mode=durable.PRIVATE_FOLDER)
        import secrets  # noqa: PLC0415 - commands create none, and it imports modules for random numbers

        text = secrets.token_urlsafe(SECRET_BYTES)
        durable.create(file, f"{text}\n".encode(), mode=durable.PRIVATE)
    return read_secret(file)


def keep_private(home: Path) -> None:
    """Make new files of this process private to its user, if the home belongs to this user.

    Root may work in the home of another user, and that user's node must be able to read the files that root creates.
    """
    with contextlib.suppress(OSError):
        if home.stat().st_uid == os.geteuid():
            durable.keep_files_private()


def close_home(home: Path) -> None:
    """Remove the access rights of other users from the node's files and folders at the top of the home.

    Earlier releases created them with the rights of the umask. Nothing below them can be reached afterwards. The home
    itself keeps its mode, which its owner may have chosen, and so do other entries, such as a folder that datasets
    are pushed to.
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
