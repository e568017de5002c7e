"""Secrets in files, such as passwords and tokens: the same rule for settings and for commands.

A file holds its secret as its only line. Its end of line is not part of the secret, other white space is. The file's
permissions are not checked: containers mount secrets as readable by all users of the container. Those that a node has
created itself are in its home, for its user only (`adapters.local.home_secrets`).
"""

import contextlib
import pwd
from pathlib import Path
from typing import Final, Self

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
