"""URLs as people type them."""

from pathlib import Path
from typing import Final
from urllib.parse import unquote

_FILE: Final = "file://"
_THIS_MACHINE: Final = "localhost/"


def absolute_url(url: str) -> str:
    """Return the URL; that of a folder from the root of the file system, escaped, wherever it is used.

    `file://localhost/…` is `file:///…`; with anything else there the path begins in the working directory.
    """
    if url[: len(_FILE)].lower() != _FILE:
        return url
    path = url[len(_FILE) :]
    if path.lower().startswith(_THIS_MACHINE):
        path = path[len(_THIS_MACHINE) - 1 :]
    return Path(unquote(path)).absolute().as_uri()
