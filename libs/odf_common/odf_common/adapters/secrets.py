"""Secrets in files, such as passwords and tokens: the same rule for settings and for commands.

A file holds its secret as its only line. Its end of line is not part of the secret, other white space is. The file's
permissions are not checked: containers mount secrets as readable by all users of the container.
"""

from pathlib import Path
from typing import Final

from odf_common.errors import InvalidInput

MAX_SECRET_BYTES: Final = 64 * 1024


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
