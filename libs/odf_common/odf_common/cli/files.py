"""Files and URLs as users name them on the command line; - is standard input."""

import sys
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from odf_common.errors import InvalidInput, NotFound, Unavailable

STDIN: Final = "-"
_FILE: Final = "file://"
_THIS_MACHINE: Final = "localhost/"


def shown_name(name: str) -> str:
    """Return the name of a file for messages."""
    return "standard input" if name == STDIN else name


def read_limited(name: str, most: int) -> bytes:
    """Return the content of a file; raises `NotFound`, `Unavailable`, or `InvalidInput` if it is longer than `most`."""
    try:
        if name == STDIN:
            content = sys.stdin.buffer.read(most + 1)
        else:
            with Path(name).open("rb") as file:
                content = file.read(most + 1)
    except FileNotFoundError as error:
        raise NotFound(what=f"file {name}") from error
    except OSError as error:
        raise Unavailable(what=shown_name(name), why=error.strerror) from error
    require_short(content, most, name)
    return content


def require_short(content: bytes, most: int, name: str) -> None:
    """Raise `InvalidInput` if the content is longer than `most` bytes."""
    if len(content) > most:
        raise InvalidInput(text=f"longer than {most} bytes", where=shown_name(name))


def absolute_url(url: str) -> str:
    """Return the URL; a `file://` one absolute and escaped.

    `file://localhost/…` is `file:///…`; any other path is relative to the working directory.
    """
    if url[: len(_FILE)].lower() != _FILE:
        return url
    path = url[len(_FILE) :]
    if path.lower().startswith(_THIS_MACHINE):
        path = path[len(_THIS_MACHINE) - 1 :]
    return Path(unquote(path)).absolute().as_uri()
