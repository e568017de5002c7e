"""URLs as users type them."""

from pathlib import Path
from typing import Final
from urllib.parse import unquote

_FILE: Final = "file://"
_THIS_MACHINE: Final = "localhost/"


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
